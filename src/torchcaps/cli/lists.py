"""torchcaps models, torchcaps recipes and torchcaps doctor: what there is."""

from dataclasses import asdict

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


def doctor(json: Json = False) -> int:
    """Report versions, device, threads, precision, and the kernels that run on this machine.

    Example: torchcaps doctor
    """
    environment = tc.training.environment
    device = tc.training.device.resolve_device("auto")
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
