"""What a release says of itself: its version, its links, its workflows and its tables."""

import re
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

import torchcaps as tc

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
make_citation = pytest.importorskip("make_citation", reason="needs a checkout")
make_results = pytest.importorskip("make_results", reason="needs a checkout")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
# What builds and runs a package: an own action of these alone is trusted.
ACTIONS = ("actions/", "pypa/gh-action-pypi-publish@")


def test_the_version_and_the_owner_are_named_once():
    assert make_citation.package_version() == tc.__version__
    assert make_citation.gaps() == []
    assert "version" in PROJECT["dynamic"]
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert text.count(PROJECT["urls"]["Repository"]) == text.count("github.com") == 1


@pytest.mark.skipif(find_spec("hatchling") is None, reason="hatchling is not installed")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a](docs/a.md#b)", "[a](https://host/o/n/blob/v1/docs/a.md#b)"),
        ("![a\nb](docs/a.png)", "![a\nb](https://host/o/n/raw/v1/docs/a.png)"),
        ('<img src="docs/a.svg">', '<img src="https://host/o/n/raw/v1/docs/a.svg">'),
        ("[a](https://b.org/c.png)", "[a](https://b.org/c.png)"),
        ("[a](#b) [c](mailto:d@e.org)", "[a](#b) [c](mailto:d@e.org)"),
    ],
)
def test_links_of_the_readme_lead_to_the_repository(text, expected):
    from build_metadata import absolute_links

    assert absolute_links(text, "https://host/o/n", "v1") == expected


@pytest.mark.parametrize("path", WORKFLOWS, ids=[path.stem for path in WORKFLOWS])
def test_a_workflow_is_read_as_one(path):
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    # YAML 1.1 reads the key `on` as true.
    assert workflow[True]
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    for job in workflow["jobs"].values():
        matrix = job.get("strategy", {}).get("matrix", {})
        assert job["timeout-minutes"] <= 90
        assert re.fullmatch(r"ubuntu-latest|\$\{\{ matrix\.os \}\}", job["runs-on"])
        assert set(re.findall(r"matrix\.(\w+)", str(job))) == set(matrix)
        assert job.get("needs", "build") in workflow["jobs"] or "needs" not in job
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            assert step.get("uses", "actions/").startswith(ACTIONS)
            words = step.get("run", "").split()
            if words[:1] == ["make"]:
                assert words[1] in targets
            for word in words:
                assert not word.startswith("tools/") or (ROOT / word).exists()


def test_the_workflows_try_the_oldest_and_the_newest_of_what_is_claimed():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    text = (ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8")
    matrix = yaml.safe_load(text)["jobs"]["versions"]["strategy"]["matrix"]
    claimed = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert matrix["python"] == [claimed[0], claimed[-1]]
    assert PROJECT["requires-python"] == f">={claimed[0]}"
    [torch] = [text for text in PROJECT["dependencies"] if text.startswith("torch")]
    assert matrix["torch"][0].removesuffix(".*") == torch.removeprefix("torch>=")
    assert {name.split("-")[0] for name in matrix["os"]} == {"ubuntu", "macos", "windows"}


@pytest.mark.skipif(shutil.which("actionlint") is None, reason="actionlint is not installed")
def test_actionlint_accepts_the_workflows():
    line = ["actionlint", *WORKFLOWS]
    process = subprocess.run(line, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout


def test_the_tables_of_results_are_those_of_the_file():
    assert make_results.gaps() == []


def test_every_figure_says_where_it_comes_from():
    for figures in make_results.load().values():
        for figure in figures.values():
            for row in figure.rows:
                assert 0 <= float(row["error"]) <= 100
                assert re.fullmatch(r"\d+(-\d+)?", row["seed"])
                assert re.fullmatch(r"[0-9a-f]{8,}", row["commit"])
                assert row["command"].startswith("torchcaps ")
                # One row for several seeds has their spread; one for one has none.
                assert bool(row["deviation"]) == ("-" in row["seed"])
