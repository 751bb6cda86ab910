"""torchcaps models, torchcaps recipes and torchcaps doctor: what there is."""

import math
from dataclasses import asdict
from typing import Any

import torchcaps as tc
from torchcaps.cli.console import show
from torchcaps.cli.flags import Json


def models(pattern: str = "*", json: Json = False) -> int:
    """List the models, with their papers; `--json` adds their published figures.

    Example: torchcaps models --pattern "caps*"

    Args:
        pattern: Wildcard for names.
    """
    document = []
    rows = [("model", "year", "parameters", "paper")]
    for name in tc.list_models(pattern):
        info = tc.models.model_info(name)
        document.append({"name": name} | asdict(info))
        rows.append((name, str(info.year), f"{info.parameters:,}", info.title))
    show(json, document, rows)
    return 0


def recipes(json: Json = False) -> int:
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
    return 0


def doctor(kernels: bool = False, json: Json = False) -> int:
    """Report versions, device, threads, precision, and the kernels that run on this machine.

    Example: torchcaps doctor

    Args:
        kernels: Compare every kernel that can run here with the reference, in value and gradient;
            status 1 if one fails. Loops are compiled first, which takes a minute.
    """
    environment = tc.training.environment
    device = tc.training.device.resolve_device("auto")
    if kernels:
        return _check_kernels(device, json)
    facts = environment.environment()
    facts["device"] = str(device)
    facts["precision auto"] = tc.training.device.resolve_precision("auto", device)
    for operator, (implementation, reason) in tc.ops.survey(device).items():
        facts[f"kernel {operator}"] = f"{implementation}: {reason}"
    for package in ("matplotlib", "numba", "triton"):
        facts[package] = environment.package_version(package)
    rows = [("fact", "value")]
    for name, fact in facts.items():
        rows.append((name, str(fact)))
    show(json, facts, rows)
    return 0


def _check_kernels(device: Any, json: bool) -> int:
    """Show the error of every kernel; 1 if one is beyond rounding."""
    document = []
    rows: list[tuple[str, ...]] = [
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
