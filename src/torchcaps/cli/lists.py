"""torchcaps models, torchcaps recipes and torchcaps doctor: what there is."""

from dataclasses import asdict

import torchcaps as tc
from torchcaps.cli.console import print_json, show
from torchcaps.cli.flags import Json


def models(pattern: str = "*", json: Json = False) -> int:
    """List the models, with their papers.

    Example: torchcaps models --pattern "caps*"

    Args:
        pattern: Wildcard for names.
    """
    infos = {name: tc.models.model_info(name) for name in tc.list_models(pattern)}
    document = [{"name": name} | asdict(info) for name, info in infos.items()]
    rows = [(n, str(p.year), f"{p.parameters:,}", p.title, p.published) for n, p in infos.items()]
    show(json, document, [("model", "year", "parameters", "paper", "published"), *rows])
    return 0


def recipes(json: Json = False) -> int:
    """List the recipes: published experiments that one command runs.

    Example: torchcaps recipes
    """
    found = [tc.training.load_recipe(name) for name in tc.training.list_recipes()]
    document = [
        {"name": r.name, "title": r.title, "published": r.published, "run": r.config.to_dict()}
        for r in found
    ]
    rows = [(r.name, r.rows[0].name, r.config.data.name, r.title) for r in found]
    show(json, document, [("recipe", "first row", "data", "title"), *rows])
    return 0


def doctor(json: Json = False) -> int:
    """Say what this machine offers: versions, device, threads, precision, and which kernels run and why.

    Example: torchcaps doctor
    """
    device_module, environment = tc.training.device, tc.training.environment
    device = device_module.resolve_device("auto")
    facts = environment.environment() | {
        "device": str(device),
        "precision auto": device_module.resolve_precision("auto", device),
    }
    facts |= {
        f"kernel {op}": f"{name}: {reason}" for op, (name, reason) in tc.ops.survey(device).items()
    }
    for extra in ("matplotlib", "numba", "triton"):
        facts[extra] = environment.package_version(extra)
    if json:
        print_json(facts)
        return 0
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name.ljust(width)}  {value}")
    return 0
