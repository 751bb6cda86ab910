"""The order of the packages, and what an import costs."""

import ast
import importlib
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import version
from pathlib import Path

import pytest

import torchcaps

SOURCE = Path(torchcaps.__file__).parent
PACKAGES = [
    ("types", "errors"),
    ("templates", "words", "transfer"),
    ("plugins", "isolated", "weight_files"),
    ("registry",),
    ("distributed",),
    ("groups",),
    ("functional",),
    ("kernels",),
    ("ops",),
    ("data",),
    ("settings",),
    ("nn",),
    ("testing",),
    ("models",),
    ("evaluation",),
    ("viz",),
    ("tasks",),
    ("training",),
    ("reporting",),
    ("reproduction",),
    ("exporting",),
    ("explorer",),
    ("cli",),
]
RANK = {package: rank for rank, packages in enumerate(PACKAGES) for package in packages}
# Beside the packages above it, what a package may import, and all that some others may.
EXTRA_IMPORTS = {"types": {"errors", "transfer"}, "errors": {"types"}}
EXCLUSIVE_IMPORTS = {
    # `words` imports nothing: what a set says of its files reads as all messages do.
    "data": {
        "types",
        "errors",
        "words",
        "plugins",
        "registry",
        "groups",
        "isolated",
        "transfer",
    },
    "plugins": {"errors"},
}
FILES = sorted(SOURCE.rglob("*.py"))
TEXTS = {path: path.read_text(encoding="utf-8") for path in FILES}


def imported_packages(text):
    """Packages that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module == "torchcaps":
            yield from (alias.name for alias in node.names if alias.name in RANK)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torchcaps."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("torchcaps."):
                    yield alias.name.split(".")[1]


def package_of(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


IMPORTS = {path: set(imported_packages(text)) - {package_of(path)} for path, text in TEXTS.items()}


def test_every_package_has_its_rank():
    assert {package_of(path) for path in FILES} - {"__init__", "__main__"} == set(RANK)


@pytest.mark.parametrize("package", RANK)
def test_a_package_imports_from_those_above_it(package):
    packages_above = {name for name in RANK if RANK[name] < RANK[package]}
    allowed = EXCLUSIVE_IMPORTS.get(package, packages_above | EXTRA_IMPORTS.get(package, set()))
    for path, packages in IMPORTS.items():
        if package_of(path) == package:
            assert packages <= allowed, path


def file_of(module):
    """The file of a module of the package, if there is one."""
    path = SOURCE.parent.joinpath(*module.split("."))
    return next(filter(TEXTS.get, (path.with_suffix(".py"), path / "__init__.py")), None)


def imported_files(text):
    """Files of the package that a file imports, anywhere in it but for annotations alone."""
    tree = ast.parse(text)
    tree.body = [node for node in tree.body if "TYPE_CHECKING" not in ast.unparse(node)[:20]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (file_of(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield file_of(f"{node.module}.{alias.name}") or file_of(node.module)


def test_no_files_import_each_other():
    graph = {path: set(imported_files(text)) - {None} for path, text in TEXTS.items()}
    del graph[SOURCE / "__init__.py"]  # it imports nothing before it is asked for
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle = [str(path.relative_to(SOURCE)) for path in error.args[1]]
        pytest.fail(f"imports in a circle: {' <- '.join(circle)}")


def test_only_ops_imports_kernels():
    importers = {package_of(path) for path, packages in IMPORTS.items() if "kernels" in packages}
    assert importers == {"ops"}


def test_the_command_line_does_not_wait_for_torch():
    code = """
import sys
from torchcaps.cli.main import main
try:
    main(["--help"])
except SystemExit:
    pass
assert not {"torch", "matplotlib"} & {*sys.modules}
"""
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def test_modules_that_few_of_its_parts_need_are_not_imported(tmp_path):
    code = """
import sys
import torch
import torchcaps as tc
import torchcaps.training.api
assert not {"scipy.stats", "scipy.optimize", "matplotlib", "PIL.ImageFont"} & {*sys.modules}
model = tc.create_model("capsnet_small", pretrained=True)
file = tc.save(model, sys.argv[1])
tc.predict(file, torch.zeros(1, 1, 28, 28))
assert not {"torch._dynamo", "sympy"} & {*sys.modules}  # torch's compiler takes two seconds
"""
    words = [sys.executable, "-c", code, str(tmp_path / "model.safetensors")]
    subprocess.run(words, check=True)


def test_library_code_reads_no_environment_and_no_torchvision():
    for path, text in TEXTS.items():
        reads = "os.environ" in text or "getenv" in text
        # The command line reads it, and passes it on as arguments.
        assert not reads or path.name == "main.py", path
        assert "import torchvision" not in text, path


def test_version_is_that_of_the_package():
    assert torchcaps.__version__ == version("torchcaps")


VERBS = (
    "train fit load save evaluate predict compare diagnose report explore reproduce "
    "create_model list_models"
)


def test_a_package_takes_the_place_of_no_verb():
    for package in RANK:
        importlib.import_module(f"torchcaps.{package}")
    for verb in VERBS.split():
        assert callable(getattr(torchcaps, verb)), verb


def test_public_names_resolve():
    for name in torchcaps.__all__:
        assert getattr(torchcaps, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = torchcaps.nothing
