"""What the site has beside the documents, made from the registry and the package.

    python tools/make_site.py build/site/index.html

writes the landing page: the page that explains, with a network in it; and beside it face.html, the
page of the misplaced face. docs/conf.py asks the other
functions for the heads of the systems' pages, the contents and the reference. Sphinx is not needed
here.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torchcaps as tc
from torchcaps.models._registry import MODELS

ROOT = Path(__file__).resolve().parents[1]
LANDING_MODEL = "capsnet_small"
LANDING_LINKS = {
    "docs/index.html": "Documentation",
    "docs/tutorials/first-network.html": "A first network",
    "docs/results.html": "Results",
    "face.html": "The misplaced face",
}

# Pages of systems, and the files of torchcaps.models that they are about.
SYSTEMS = {
    "affcaps": ("affcaps",),
    "backbones": ("backbone",),
    "canonical-capsules": ("canonical_capsules",),
    "capsnet": ("capsnet",),
    "deepcaps": ("deepcaps",),
    "efficient-capsnet": ("efficient_capsnet",),
    "em-routing": ("matrix_caps",),
    "heinsen-routing": ("heinsen",),
    "hvc": ("hvc",),
    "inverted-attention": ("inverted_attention",),
    "label-trees": ("tree_capsnet",),
    "plain-networks": ("cnn", "cnn_decoder", "resnet", "unet"),
    "scae": ("scae",),
    "segcaps": ("segcaps",),
    "self-routing": ("self_routing",),
    "transforming-autoencoder": ("transforming_autoencoder",),
    "vb-routing": ("vb_caps",),
}

# What two of them export is documented by the first, and named by the other.
REFERENCE = (
    "torchcaps.nn",
    "torchcaps.functional",
    "torchcaps.ops",
    "torchcaps.types",
    "torchcaps.errors",
    "torchcaps.models",
    "torchcaps.data",
    "torchcaps.tasks",
    "torchcaps.training",
    "torchcaps.evaluation",
    "torchcaps.viz",
    "torchcaps.reporting",
    "torchcaps.reproduction",
    "torchcaps.exporting",
    "torchcaps.testing",
    "torchcaps",
)
LINK = re.compile(r"\[([^\]]+)\]\(([\w/-]+)\.md\)")


def file_of(model: str) -> str:
    """The file of torchcaps.models that registers a model."""
    builder: Any = MODELS[model][0]
    while isinstance(builder, partial):
        builder = builder.func
    return str(builder.__module__).rpartition(".")[2]


def models_of(page: str) -> list[str]:
    """Registered models that a system's page is about; the first file's come first."""
    models = sorted(tc.list_models())
    return [model for file in SYSTEMS[page] for model in models if file_of(model) == file]


def sources_of(page: str) -> list[Path]:
    """Files that the head of a system's page is made from."""
    models = [ROOT / "src" / "torchcaps" / "models" / f"{name}.py" for name in SYSTEMS[page]]
    return [Path(__file__), *models, *sorted((ROOT / "recipes").glob("*.toml"))]


@cache
def recipes() -> dict[str, list[str]]:
    """Names of recipes, by the model that they train."""
    names: dict[str, list[str]] = {}
    for name in tc.training.list_recipes():
        recipe = tc.training.load_recipe(name)
        names.setdefault(recipe.config.model.name, []).append(name)
    return names


def head_of(page: str) -> str:
    """The head of a system's page: papers, purpose, sizes, figures, recipes."""
    models = models_of(page)
    infos = [tc.models.model_info(model) for model in models]
    papers = "\\\n".join(dict.fromkeys(map(paper_of, models)))
    purposes = "; ".join(dict.fromkeys(info.purpose for info in infos))
    lines = [f"{papers}\\", f"Purpose: {purposes}.", ""]
    lines.append("| model | task | images | classes | parameters | published |")
    lines.append("|---|---|---|---|---|---|")
    for model, info in zip(models, infos, strict=True):
        cells = (
            f"`{model}`",
            tc.models.default_task(model),
            f"{info.in_chans}×{info.img_size[0]}×{info.img_size[1]}",
            str(info.num_classes or "-"),
            f"{info.parameters:,}",
            info.published,
        )
        lines.append(f"| {' | '.join(cells)} |")
    for model in models:
        lines += recipes_of(model)
    return "\n".join(lines) + "\n"


def recipes_of(model: str) -> Iterator[str]:
    """Lines about what a model was and can be trained with."""
    if model in tc.list_models(pretrained=True):
        weights = tc.models.weights_info(model)
        accuracy = f"{100 * weights['accuracy']:.2f} % of {weights['data']}"
        yield f"\nThe weights of `{model}` in the package classify {accuracy} correctly."
    names = ", ".join(f"`{recipe}`" for recipe in recipes().get(model, ()))
    if names:
        yield f"\nRecipes of `{model}` (`torchcaps train RECIPE`): {names}."


def paper_of(model: str) -> str:
    """Title and year of the paper that a model is from, with its address where it has one."""
    info = tc.models.model_info(model)
    address = f", [arXiv {info.arxiv}](https://arxiv.org/abs/{info.arxiv})" if info.arxiv else ""
    return f"Source: *{info.title}*, {info.year}{address}"


def contents(index: str) -> dict[str, dict[str, str]]:
    """Titles of pages by page and by heading, from docs/index.md; a page belongs to its last one."""
    sections: dict[str, dict[str, str]] = {}
    for section in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        heading, _, text = section.partition("\n")
        titles = {}
        for title, page in LINK.findall(text):
            title = " ".join(title.split())
            titles[page] = title[0].upper() + title[1:]
        for others in sections.values():
            for page in titles:
                others.pop(page, None)
        sections[heading] = titles
    sections["Reference"] = {reference_page(name): name for name in REFERENCE}
    return sections


def reference_page(module: str) -> str:
    """Where the reference of a module is, without its ending."""
    return f"reference/{module}"


def public_members(name: str) -> dict[str, Any]:
    """Classes and functions of this package that a module makes public, by name."""
    module = import_module(name)
    names = getattr(module, "__all__", None)
    if names is None:
        names = [one for one in vars(module) if not one.startswith("_")]
    members = {}
    for one in sorted(names):
        member = getattr(module, one)
        home = getattr(member, "__module__", None) or ""
        is_own = home.startswith(f"{name}.") or home == name
        if callable(member) and (is_own or one in getattr(module, "__all__", ())):
            members[one] = member
    return members


@cache
def homes() -> dict[int, str]:
    """Where each public member is documented, by its identity."""
    places: dict[int, str] = {}
    for name in REFERENCE:
        for one, member in public_members(name).items():
            places.setdefault(id(member), f"{name}.{one}")
    return places


def reference_of(name: str) -> str:
    """The reference of a module: a table of its names, and the docstrings of those at home here."""
    lines = [f"# {name}", "", "| name | what it is |", "|---|---|"]
    details = []
    for one, member in public_members(name).items():
        home = homes()[id(member)]
        summary = (inspect.getdoc(member) or "").partition("\n\n")[0]
        summary = " ".join(summary.split()).replace("|", r"\|")
        lines.append(f"| {{py:obj}}`{one} <{home}>` | {summary} |")
        if home != f"{name}.{one}":
            continue
        if inspect.isclass(member):
            details += [f".. autoclass:: {home}", "   :members:", "   :show-inheritance:", ""]
        else:
            details += [f".. autofunction:: {home}", ""]
    return "\n".join([*lines, "", "```{eval-rst}", *details, "```", ""])


def write_reference(folder: Path) -> None:
    """Write the pages of the reference; what has not changed is left alone."""
    folder.mkdir(exist_ok=True)
    for name in REFERENCE:
        path = folder / f"{name}.md"
        text = reference_of(name)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def system_gaps(documents: Path) -> Iterator[str]:
    """What systems' pages lack: a model, a formula, a picture, when it fails."""
    pages: dict[str, list[str]] = {model: [] for model in tc.list_models()}
    for page in SYSTEMS:
        for model in models_of(page):
            pages[model].append(page)
        text = (documents / f"{page}.md").read_text(encoding="utf-8")
        if not re.search(r"^    \S", text, re.MULTILINE):
            yield f"{page}.md has no formula"
        if "](images/" not in text:
            yield f"{page}.md has no picture"
        if "\n## When it fails\n" not in text:
            yield f"{page}.md does not say when it fails"
    for model, places in pages.items():
        if len(places) != 1:
            yield f"{model} is on {len(places)} pages; name its file in SYSTEMS of make_site.py"


def main(path: Path) -> int:
    """Write the landing page, and that of the misplaced face."""
    sys.path.insert(0, str(ROOT))
    from claims.face.page import write_page

    path.parent.mkdir(parents=True, exist_ok=True)
    tc.export(tc.models.weights_file(LANDING_MODEL), path, format="page")
    links = " · ".join(f'<a href="{page}">{title}</a>' for page, title in LANDING_LINKS.items())
    mark = '<p id="about"></p>'
    html = path.read_text(encoding="utf-8")
    assert mark in html
    path.write_text(html.replace(mark, f"{mark}\n  <nav>{links}</nav>"), encoding="utf-8")
    write_page(path.with_name("face.html"))
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
