"""What the site is made from: pages of systems, the contents, the reference, its settings."""

import inspect
import json
import re
import runpy
import sys
from importlib import import_module
from pathlib import Path
from unittest.mock import Mock

import pytest

import torchcaps as tc

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = ROOT / "docs"
sys.path.insert(0, str(ROOT / "tools"))
site = pytest.importorskip("make_site", reason="needs a checkout")


def test_each_model_is_at_the_head_of_one_page_that_says_all():
    assert list(site.system_gaps(DOCUMENTS)) == []
    heads = "\n".join(map(site.head_of, site.SYSTEMS))
    for model in tc.list_models():
        info = tc.models.model_info(model)
        row = next(line for line in heads.splitlines() if line.startswith(f"| `{model}` |"))
        assert f"| {info.parameters:,} | {info.published} |" in row
        assert info.title in heads
    recipes = [name for names in site.recipes().values() for name in names]
    assert sorted(recipes) == sorted(tc.training.list_recipes())
    assert "`capsnet_small` in the package classify 99.41 % of mnist" in site.head_of("capsnet")


def test_gaps_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(site, "SYSTEMS", {"hvc": ("hvc",), "other": ("capsnet", "hvc")})
    for page in site.SYSTEMS:
        (tmp_path / f"{page}.md").write_text("# A page\n\n## When it fails\n")
    gaps = list(site.system_gaps(tmp_path))
    assert gaps[:2] == ["hvc.md has no formula", "hvc.md has no picture"]
    assert "hvc is on 2 pages; name its file in SYSTEMS of make_site.py" in gaps
    assert "resnet20 is on 0 pages; name its file in SYSTEMS of make_site.py" in gaps


def test_the_contents_have_each_page_once():
    sections = site.contents((DOCUMENTS / "index.md").read_text(encoding="utf-8"))
    pages = [page for titles in sections.values() for page in titles]
    files = DOCUMENTS.glob("*.md"), DOCUMENTS.glob("tutorials/*.md")
    expected = {str(path.relative_to(DOCUMENTS).with_suffix("")) for part in files for path in part}
    written = [page for page in pages if not page.startswith("reference/")]
    assert sorted(written) == sorted(expected - {"index"})
    assert sections["Systems"]["capsnet"] == "CapsNet"


def test_the_reference_has_each_public_class_and_function():
    surface = json.loads(Path(__file__).with_name("api_surface.json").read_text())
    helpers = {"import_submodules"}  # of the registries, imported where it is called
    for module in sorted(surface.keys() & set(site.REFERENCE)):
        reference = site.reference_of(module)
        for name in set(surface[module]) - helpers:
            member = getattr(import_module(module), name)
            if inspect.isclass(member) or inspect.isfunction(member):
                assert f"{{py:obj}}`{name} <" in reference, f"{module}.{name}"
    assert ".. autoclass:: torchcaps.types.Capsules" in site.reference_of("torchcaps.types")
    assert ".. autoclass:: torchcaps.Capsules" not in site.reference_of("torchcaps")


def test_the_settings_load_and_quote_docstrings():
    settings = runpy.run_path(str(DOCUMENTS / "conf.py"))
    lines = [
        "Poses of `[batch, *space]`.",
        "",
        "    v = |s|",
        "",
        "A `model_`, model_.",
        "",
        "Args:",
    ]
    settings["quote_docstring"](None, "function", "f", None, None, lines)
    text = "\n".join(lines)
    assert "``[batch, *space]``" in text
    assert ".. code-block:: text\n\n    v = |s|" in text
    assert "``model_``, model\\_." in text

    source = ["# CapsNet\n\n[rules](../CONTRIBUTING.md#a-router), [code](../src/a.py)\n"]
    app = Mock()
    settings["complete_page"](app, "capsnet", source)
    for path in app.env.note_dependency.call_args_list:
        assert path.args[0].is_file()
    assert source[0].startswith("# CapsNet\n\nSource: *Dynamic Routing Between Capsules*, 2017")
    assert "/torchcaps/blob/main/CONTRIBUTING.md#a-router)" in source[0]
    assert "/torchcaps/blob/main/src/a.py)" in source[0]

    for path in (DOCUMENTS / "site.js", *DOCUMENTS.glob("_*/*")):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"https?:|url\(|@import|fetch\(", text), path


def test_sphinx_takes_the_settings(monkeypatch, tmp_path):
    application = pytest.importorskip("sphinx.application", reason="comes with the extra docs")
    folders = []
    monkeypatch.setattr(site, "write_reference", folders.append)
    places = (DOCUMENTS, DOCUMENTS, tmp_path / "site", tmp_path / "trees")
    app = application.Sphinx(*places, "html", status=None, warningiserror=True)
    assert app.builder.theme.name == app.config.html_theme == "furo"
    assert "myst_nb" in app.extensions
    assert folders == [DOCUMENTS / "reference"]
