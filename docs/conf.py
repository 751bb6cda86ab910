"""The site, which `make site` builds: these documents, pages of systems, tutorials, reference."""

import re
from pathlib import Path

import torchcaps as tc

ROOT = Path(__file__).resolve().parents[1]
REPOSITORY = re.search(
    r'^Repository = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE
)

project = "torchcaps"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
root_doc = "landing/index"
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "torchcaps"
html_static_path = ["landing/_static"]
html_js_files = ["sort.js"]
html_css_files = ["sort.css"]
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 4
# Tutorials run when the site is built, and again only when they have changed.
nb_execution_mode = "cache"
nb_execution_cache_path = str(ROOT / "build" / "tutorials")
nb_execution_timeout = 300
nb_execution_raise_on_error = True
autodoc_member_order = "groupwise"
napoleon_use_ivar = True
# Files of the repository, and blocks of code that are no complete program.
suppress_warnings = ["myst.xref_missing", "misc.highlighting_failure", "toc.not_included"]

# Pages of systems, and the models whose facts stand at their heads.
SYSTEMS = {
    "affcaps": ["affcaps"],
    "canonical-capsules": ["canonical_capsules", "canonical_capsules_small"],
    "capsnet": ["capsnet", "capsnet_small"],
    "deepcaps": ["deepcaps", "deepcaps_small"],
    "efficient-capsnet": [
        "efficient_capsnet",
        "efficient_capsnet_smallnorb",
        "efficient_capsnet_multimnist",
    ],
    "em-routing": ["matrix_caps", "matrix_caps_small"],
    "heinsen-routing": ["heinsen", "heinsen_2019"],
    "hvc": ["hvc"],
    "inverted-attention": ["inverted_attention", "inverted_attention_small"],
    "label-trees": ["tree_capsnet"],
    "scae": ["scae"],
    "segcaps": ["segcaps", "segcaps_r1", "segcaps_small"],
    "self-routing": ["sr_capsnet"],
    "transforming-autoencoder": ["transforming_autoencoder"],
    "vb-routing": ["vb_caps", "vb_caps_small"],
}


def recipes_of(model):
    """Names of the recipes that train a model."""
    loaded = map(tc.training.load_recipe, tc.training.list_recipes())
    return [recipe.name for recipe in loaded if recipe.config.model.name == model]


def head_of(page):
    """The table at the head of a system's page, from the registry."""
    lines = [
        "| model | paper | images | parameters | published | recipes |",
        "|---|---|---|---|---|---|",
    ]
    for name in SYSTEMS[page]:
        info = tc.models.model_info(name)
        paper = f"{info.title} ({info.year})"
        if info.arxiv:
            paper = f"[{paper}](https://arxiv.org/abs/{info.arxiv})"
        height, width = info.img_size
        recipes = ", ".join(f"`{recipe}`" for recipe in recipes_of(name)) or "-"
        cells = (f"`{name}`", paper, f"{info.in_chans}×{height}×{width}", f"{info.parameters:,}")
        lines.append(f"| {' | '.join((*cells, info.published, recipes))} |")
    purpose = tc.models.model_info(SYSTEMS[page][0]).purpose
    return f"*{purpose[0].upper()}{purpose[1:]}.*\n\n" + "\n".join(lines) + "\n"


def complete_page(app, page, source):
    """Put the head below a system's title; point links out of the documents at the repository."""
    if page in SYSTEMS:
        title, _, body = source[0].partition("\n")
        source[0] = f"{title}\n\n{head_of(page)}\n{body}"
    outside = r"\]\(((?:\.\./)+)((?:src|examples|benchmarks|claims|tests|tools|recipes)/[^)]*|[A-Z]+\.md)\)"
    address = REPOSITORY.group(1) if REPOSITORY else ""
    if address:
        source[0] = re.sub(outside, rf"]({address}/blob/main/\2)", source[0])


SECTIONS = re.compile(r"(Args|Returns|Raises|Yields|Attributes|Example)s?:$")


def quote_docstring(app, what, name, obj, options, lines):
    """Docstrings are plain text: bars and stars stay, and indented equations are set as written."""
    if name.endswith(".forward") and lines and lines[0].startswith("Define the computation"):
        lines.clear()  # torch's own
    quoted = []
    in_text = True
    in_block = False
    for line in lines:
        if SECTIONS.match(line):
            in_text = in_block = False
        if in_text and line.startswith("    "):
            if not in_block:
                quoted += ["", "::", ""]
            in_block = True
        elif in_block and line.strip():
            quoted.append("")
            in_block = False
        is_code = in_block or ">>>" in line
        quoted.append(line if is_code else re.sub(r"(?<!`)([|*])(?!`)", r"\\\1", line))
    lines[:] = quoted


def setup(app):
    """Connect both."""
    app.connect("source-read", complete_page)
    app.connect("autodoc-process-docstring", quote_docstring, priority=400)
