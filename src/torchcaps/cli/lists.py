"""What there is, and what others have published: models, recipes, doctor, data, import."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import torchcaps as tc
from torchcaps.cli.console import UsageError, announce, note, print_json, print_wrapped, show, usage
from torchcaps.cli.parser import Flag, Json, parse_options
from torchcaps.plugins import load_object


def models(*, pattern: str = "*", json: Json = False) -> None:
    """List the models: task, parameters, accuracy, and what each is for.

    Accuracy is that of the weights in the package, or else the paper's; `--json` adds the papers.

    Example: torchcaps models --pattern "caps*"

    Args:
        pattern: Wildcard for names.
    """
    document = []
    lines = []
    names = tc.list_models(pattern)
    packaged = tc.list_models(pretrained=True)
    for name in names:
        info = tc.models.model_info(name)
        task = tc.models.default_task(name)
        accuracy = info.published.partition(" (")[0].partition(";")[0]
        if name in packaged:
            weights = tc.models.weights_info(name)
            accuracy = f"{weights['data']} {weights['accuracy']:.2%} (in the package)"
        document.append({"name": name, "task": task, "accuracy": accuracy} | asdict(info))
        lines.append(f"{name}: {task}, {info.parameters:,} parameters, {accuracy}")
        lines.append(f"    {info.purpose or info.title}")
    if json:
        print_json(document)
        return
    for line in lines:
        print_wrapped(line)


def recipes(*, json: Json = False) -> None:
    """List the recipes, each a published experiment that one command runs.

    Example: torchcaps recipes
    """
    document = []
    rows = [("recipe", "data", "title")]
    for name in tc.training.list_recipes():
        recipe = tc.training.load_recipe(name)
        facts = {"name": name, "title": recipe.title, "published": recipe.published}
        document.append(facts | {"run": recipe.config.to_dict()})
        rows.append((name, recipe.config.data.name, recipe.title))
    show(json, document, rows)


def doctor(*, kernels: bool = False, json: Json = False) -> int:
    """Report versions, device, threads, precision, and the kernels that run on this machine.

    Example: torchcaps doctor

    Args:
        kernels: Compare every kernel that can run here with the reference, in value and gradient;
            status 1 if one fails. Loops are compiled first, which takes a minute.
    """
    machine = tc.training.device
    device = machine.resolve_device("auto")
    if kernels:
        document = []
        rows: list[Sequence[str]] = [
            ("kernel", "implementation", "products", "error", "allowed", "tensor", "passed")
        ]
        for check in tc.testing.check_kernels(device):
            *names, tensor, error, limit = check
            number = error if math.isfinite(error) else None  # JSON has no other numbers
            document.append(check._asdict() | {"error": number, "passed": check.passed})
            passed = "yes" if check.passed else "no"
            rows.append((*names, f"{error:.1e}", f"{limit:.1e}", tensor, passed))
        show(json, document, rows)
        return int(not all(row["passed"] for row in document))
    facts = machine.environment()
    facts["device"] = str(device)
    facts["precision auto"] = machine.resolve_precision("auto", device)
    for operator, (implementation, reason) in tc.testing.survey(device).items():
        facts[f"kernel {operator}"] = f"{implementation}: {reason}"
    for package in ("matplotlib", "numba", "triton"):
        facts[package] = machine.package_version(package)
    show(json, facts, [("fact", "value"), *((name, str(fact)) for name, fact in facts.items())])
    return 0


def data(
    action: Literal["list", "fetch", "verify"],
    name: str | None = None,
    *,
    root: Path | None = None,
    json: Json = False,
) -> int:
    """List the named data sets, download one, or compare one with its published checksums.

    Example: torchcaps data fetch mnist && torchcaps data verify mnist

    Args:
        action: list, fetch (the only command that ever downloads), or verify.
        name: The data set, for fetch and verify.
        root: Folder to look in first (verify), or to download to (fetch); by default the cache,
            ~/.cache/torchcaps.
    """
    document: list[Any] = []
    if action == "list":
        keys = ("name", "title", "classes", "image_shape", "train", "test", "license", "source")
        rows: list[Sequence[str]] = [("data set", "image", "images", "classes", "title")]
        for name in tc.data.list_datasets():
            info = tc.data.dataset_info(name)
            shape = "×".join(map(str, info.image_shape))
            counts = (f"{info.train + info.test:,}", str(len(info.classes)))
            rows.append((name, shape, *counts, info.title))
            document.append({key: getattr(info, key) for key in keys})
        show(json, document, rows)
    elif name is None:
        raise UsageError(
            f"name: expected the data set to {action}, got nothing; see `torchcaps data list`"
        )
    elif action == "fetch":
        title = f"fetching {name}"
        with announce(title), tc.training.callbacks.progress_bar(title) as bar:
            task = bar.add_task("", total=None)

            def progress(file: str, num_bytes: int, total: int | None) -> None:
                bar.update(task, description=file, completed=num_bytes, total=total)

            folder = tc.data.fetch_dataset(name, root, progress)
        print(folder)
    else:
        with announce(f"verifying {name}"):
            checks = tc.data.verify_dataset(name, root)
        rows = [("file", "state", "why")]
        for check in checks:
            rows.append((check.file, "ok" if check.ok else "DAMAGED", check.reason))
            document.append(check._asdict())
        show(json, document, rows)
        return int(not all(check.ok for check in checks))
    return 0


def check(
    layer: Annotated[str, Flag(metavar="FILE.py:LAYER")],
    *,
    shape: tuple[int, int] = (6, 8),
    option: Sequence[str] = (),
    json: Json = False,
) -> int:
    """Test the properties of a layer or router of your own; status 1 where one does not hold.

    A layer takes child capsules [batch, children, dim] and gives parents of that form. A function
    of votes [batch, children, parents, dim] and child activation is tested as a router. The file's
    code is run.

    Example: torchcaps check my_layer.py:CapsuleLayer --option out_capsules=5

    Args:
        layer: A .py file or a module, and the name of a class, function or object in it.
        shape: Children and their dimensions.
        option: Argument of the class, such as out_capsules=5; may be given several times.
    """
    file, colon, name = layer.rpartition(":")
    if not (colon and file and name):
        raise UsageError(f"layer: expected FILE.py:NAME, got {layer}")
    with usage():
        target = load_object(file, name)
    with usage(), announce("testing the properties"):
        outcomes = tc.testing.check_any(target, *shape, **parse_options(option))
    if json:
        print_json(outcomes)
    else:
        for title, problem in outcomes.items():
            print_wrapped(f"FAILS  {title}: {problem}" if problem else f"holds  {title}")
    return int(any(outcomes.values()))


def import_(file: Path, *, output: Path | None = None) -> None:
    """Write a model file from published weights of CapsNet or Efficient-CapsNet.

    Example: torchcaps import caps.h5 && torchcaps predict caps.safetensors photo.png

    Args:
        file: Keras' .h5 (it needs h5py), or a state_dict that PyTorch has saved. No code in it is
            run.
        output: The model file; by default the file's name with the ending .safetensors.
    """
    path, source = tc.training.import_weights(file, output)
    note(f"the weights are of {source}")
    print(path)
