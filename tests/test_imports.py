"""The order of the packages, and what an import costs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import torchcaps

SOURCE = Path(torchcaps.__file__).parent
PACKAGES = [
    ("types", "errors"),
    ("templates", "words"),
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
    ("bench",),
    ("reporting",),
    ("reproduction",),
    ("explorer",),
    ("cli",),
]
RANK = {package: rank for rank, packages in enumerate(PACKAGES) for package in packages}
FILES = sorted(SOURCE.rglob("*.py"))


def imported_packages(path):
    """Packages that a file imports, wherever in the file it does."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "torchcaps":
            yield from (alias.name for alias in node.names if alias.name in RANK)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torchcaps."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("torchcaps."))


def package_of(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@pytest.mark.parametrize(
    "path", [p for p in FILES if package_of(p) in RANK], ids=lambda p: str(p.relative_to(SOURCE))
)
def test_a_package_imports_from_those_above_it(path):
    package = package_of(path)
    for other in imported_packages(path):
        assert other in RANK, f"{path} imports {other}, which is no package"
        assert (
            other == package
            or RANK[other] < RANK[package]
            or {package, other} == {"types", "errors"}
        ), f"imports {other}"


def test_every_room_has_its_place():
    packages = {package_of(path) for path in FILES} - {"__init__", "__main__"}
    assert packages == set(RANK)


def test_data_knows_only_types_errors_and_plugins():
    for path in (SOURCE / "data").rglob("*.py"):
        assert set(imported_packages(path)) <= {
            "types",
            "errors",
            "plugins",
            "registry",
            "groups",
            "isolated",
            "data",
        }, path


def test_plugins_know_only_errors():
    assert set(imported_packages(SOURCE / "plugins.py")) == {"errors"}


def test_only_ops_imports_kernels():
    for path in FILES:
        if package_of(path) not in ("ops", "kernels"):
            assert "kernels" not in set(imported_packages(path)), path


HELP = """
from torchcaps.cli.main import main
try:
    main(["--help"])
except SystemExit:
    pass
"""


@pytest.mark.parametrize("statement", ["import torchcaps", "import torchcaps.cli.main", HELP])
def test_import_does_not_wait_for_torch(statement):
    code = f"{statement}\nimport sys; sys.exit(bool({{'torch', 'matplotlib'}} & {{*sys.modules}}))"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_library_code_reads_no_environment_and_no_torchvision():
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        reads = "os.environ" in text or "getenv" in text
        assert not reads or path.name == "main.py", (
            path
        )  # the command line, which says it to what it calls
        assert "import torchvision" not in text, path


def test_version_is_that_of_the_package():
    from importlib.metadata import version

    assert torchcaps.__version__ == version("torchcaps")


VERBS = "train fit load save evaluate predict compare diagnose report explore reproduce create_model list_models"


def test_a_package_takes_the_place_of_no_verb():
    code = f"""
import importlib, pkgutil, torchcaps
for module in pkgutil.iter_modules(torchcaps.__path__):
    if module.name != "__main__":
        importlib.import_module("torchcaps." + module.name)
for verb in {VERBS.split()}:
    assert callable(getattr(torchcaps, verb)), verb
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_public_names_resolve():
    for name in torchcaps.__all__:
        assert getattr(torchcaps, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = torchcaps.nothing
