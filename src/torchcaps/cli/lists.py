"""torchcaps models and torchcaps recipes."""

from __future__ import annotations

from torchcaps.cli.console import show


def models(pattern: str = "*", json: bool = False) -> int:
    """List the models, with their papers.

    Example: torchcaps models --pattern "caps*"

    Args:
        pattern: Wildcard for names.
        json: Print JSON.
    """
    from dataclasses import asdict

    from torchcaps.models import list_models, model_passport

    passports = {name: model_passport(name) for name in list_models(pattern)}
    document = [{"name": name} | asdict(passport) for name, passport in passports.items()]
    rows = [(n, str(p.year), f"{p.parameters:,}", p.title, p.published) for n, p in passports.items()]
    show(json, document, [("model", "year", "parameters", "paper", "published"), *rows])
    return 0


def recipes(json: bool = False) -> int:
    """List the recipes: published experiments that one command runs.

    Example: torchcaps recipes

    Args:
        json: Print JSON.
    """
    from torchcaps.training import list_recipes, load_recipe

    found = [load_recipe(name) for name in list_recipes()]
    document = [{"name": r.name, "title": r.title, "published": r.published, "run": r.config.to_dict()} for r in found]
    rows = [(r.name, r.rows[0].name, r.config.data.name, r.title) for r in found]
    show(json, document, [("recipe", "first row", "data", "title"), *rows])
    return 0
