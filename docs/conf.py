"""The site, which `make site` builds: these documents, tutorials that run, the reference."""

import re
import sys
from pathlib import Path

DOCUMENTS = Path(__file__).resolve().parent
ROOT = DOCUMENTS.parent
sys.path.insert(0, str(ROOT / "tools"))

import make_site  # noqa: E402

project = "torchcaps"
html_title = "torchcaps"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_templates"]
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
# In each page: nothing is loaded for it.
html_js_files = [(None, {"body": (DOCUMENTS / "site.js").read_text(encoding="utf-8")})]
pygments_dark_style = "github-dark"
html_copy_source = False
html_show_sphinx = False
templates_path = ["_templates"]
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "landing.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
myst_heading_anchors = 4
# Tutorials run when the site is built, and again only when they have changed.
nb_execution_mode = "cache"
nb_execution_cache_path = str(ROOT / "build" / "tutorials")
nb_execution_timeout = 300
nb_execution_raise_on_error = True
autodoc_member_order = "groupwise"
autodoc_typehints_format = "short"
napoleon_use_ivar = True
# An attribute's text has its shape: annotations of jaxtyping are no markup.
napoleon_attr_annotations = False

ADDRESS = re.search(r'^Repository = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
OUTSIDE = re.compile(
    r"\]\(((?:\.\./)+)((?:src|examples|benchmarks|claims|tests|tools|recipes)/[^)]*|[A-Z]+\.md[^)]*)\)"
)
SECTIONS = re.compile(r"(Args|Returns|Raises|Yields|Attributes|Example|Shape)s?:$")
SPAN = re.compile(r"(``[^`]+``)|`([^`]+)`|([|*]|_(?!\w))")


def complete_page(app, page, source):
    """Add heads of systems and contents; lead links out of the documents to the repository."""
    text = OUTSIDE.sub(rf"]({ADDRESS[1]}/blob/main/\2)", source[0])
    if page in make_site.SYSTEMS:
        for path in make_site.sources_of(page):
            app.env.note_dependency(path)
        title, _, body = text.partition("\n")
        text = f"{title}\n\n{make_site.head_of(page)}\n{body}"
    if page == "index":
        for heading, titles in make_site.contents(text).items():
            entries = "\n".join(f"{title} <{name}>" for name, title in titles.items())
            text += f"\n```{{toctree}}\n:caption: {heading}\n:hidden:\n\n{entries}\n```\n"
    source[0] = text


def quote_docstring(app, what, name, obj, options, lines):
    """Docstrings are plain text: names in one backtick are code, stars and bars stay."""
    if name.endswith(".forward") and lines and lines[0].startswith("Define the computation"):
        lines.clear()  # torch's own
    quoted = []
    paragraph = []
    in_text = True
    in_block = False
    for line in [*lines, ""]:
        if SECTIONS.match(line):
            in_text = in_block = False
        begins_block = in_text and line.startswith("    ") and not in_block
        if in_block and line.strip() and not line.startswith("    "):
            in_block = False
            quoted.append("")
        is_code = begins_block or in_block or ">>>" in line
        if is_code:
            quoted += quote(paragraph)
            paragraph = []
            if begins_block:
                quoted += ["", ".. code-block:: text", ""]
                in_block = True
            quoted.append(line)
        else:
            paragraph.append(line)
    lines[:] = quoted + quote(paragraph)


def quote(paragraph):
    """Lines of text with their marks quoted; a span of code may go over two lines."""
    return SPAN.sub(quote_span, "\n".join(paragraph)).split("\n") if paragraph else []


def quote_span(match):
    """One span of code, or one mark."""
    literal, code, mark = match.groups()
    return literal or (f"``{code}``" if code else f"\\{mark}")


def setup(app):
    """Connect both, and write the reference."""
    make_site.write_reference(DOCUMENTS / "reference")
    app.connect("source-read", complete_page)
    app.connect("autodoc-process-docstring", quote_docstring, priority=400)
