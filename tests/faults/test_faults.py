"""The runner of faults on a package of two functions; the records of faults fit the sources."""

import json
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from checks import column

from .__main__ import main
from .mutants import mirrored, mutants, sample
from .records import Fault, load
from .runner import Verdict, run
from .tree import ROOT, Outcome, Tree

FAULTS = load()

SOURCE = '''"""Sums."""


def total(values, start=0):
    """The sum."""
    for value in values:
        start = start + value
    return start


def is_large(value):
    if not value > 10:
        return False
    raise ValueError("too large")
'''
TEST = """
from torchcaps.sums import total

def test_total():
    assert total([1, 2, 3]) == 6
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A checkout with one module and one test."""
    root = tmp_path_factory.mktemp("checkout")
    for path, text in (
        ("src/torchcaps/__init__.py", ""),
        ("src/torchcaps/sums.py", SOURCE),
        ("tests/test_sums.py", TEST),
        ("tests/test_fails.py", "def test_fails():\n    assert False\n"),
        ("pyproject.toml", ""),
    ):
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def fault(name: str, find: str, replace: str, *tests: str) -> Fault:
    return Fault(
        name, "src/torchcaps/sums.py", find, replace, tests or ("tests/test_sums.py",), "."
    )


FAULTY = {
    "caught": fault("caught", "start + value", "start - value"),
    "survived": fault("survived", "value > 10", "value > 11"),
    "stale": fault("stale", "start * value", "start"),
    "unusable": fault("unusable", "value > 10", "value > 11", "tests/test_fails.py"),
}


def pretend(tree: Tree, tests: list[str]) -> Outcome:
    """The outcome of the tests of this checkout, without a process."""
    assert tests
    namespace: dict[str, Any] = {}
    exec((tree.path / "src/torchcaps/sums.py").read_text(), namespace)
    wrong = "fails" in tests[0] or ("sums" in tests[0] and namespace["total"]([1, 2, 3]) != 6)
    return Outcome("failed" if wrong else "passed", tests[0], 1.0)


def test_each_fault_is_alone_in_its_copy(root, monkeypatch):
    monkeypatch.setattr(Tree, "run", pretend)
    twice = fault("twice", "value", "values")
    repeated = fault("repeated", "start=0", "start=1")
    reported = []
    verdicts = run([*FAULTY.values(), twice, repeated], 2, reported.append, root=root)
    words = {verdict.name: verdict.verdict for verdict in verdicts}
    expected = dict(zip(FAULTY, FAULTY, strict=True))
    assert words == expected | {"twice": "stale", "repeated": "caught"}
    assert reported == verdicts
    assert (root / "src/torchcaps/sums.py").read_text() == SOURCE


def test_further_tests_run_for_what_survives(root, monkeypatch):
    monkeypatch.setattr(Tree, "run", pretend)
    lazy = fault("lazy", "start + value", "start - value", "tests/test_import.py")
    (root / "tests/test_import.py").touch()
    (verdict,) = run([lazy], 1, lambda _: None, root=root)
    assert verdict.verdict == "survived"
    (verdict,) = run([lazy], 1, lambda _: None, lambda _: [("tests/test_sums.py",)], root=root)
    assert verdict.verdict == "caught"


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTY)
def test_tests_run_in_the_copy(root, name):
    (verdict,) = run([FAULTY[name]], 1, lambda _: None, root=root)
    assert verdict.verdict == name
    if name == "caught":
        assert verdict.detail == "tests/test_sums.py::test_total"


def test_mutants_of_each_rule(root):
    faults = mutants(Path("src/torchcaps/sums.py"), root)
    names = set()
    rules = set()
    for mutant in faults:
        source = mutant.inject(SOURCE)
        assert source is not None and source != SOURCE
        compile(source, "sums.py", "exec")
        names.add(mutant.name)
        rules.add(mutant.why.split(": ", 1)[1])
    assert len(names) == len(faults)
    assert rules == {
        "operation: + -> -",
        "statement removed: start = start + value -> pass",
        "constant: 0 -> 1",
        "constant: 10 -> 0",
        "constant: False -> True",
        "comparison: > -> >=",
        "not removed: not value > 10 -> (value > 10)",
        'statement removed: raise ValueError("too large") -> pass',
    }


def package_of(fault: Fault) -> str:
    return fault.path.split("/")[2]


def test_a_larger_sample_keeps_a_smaller_one():
    small = sample(["functional", "nn"], 4, seed=3)
    large = sample(["functional", "nn"], 9, seed=3)
    assert small == large[:4]
    assert list(map(package_of, small)) == ["functional", "nn", "functional", "nn"]
    with pytest.raises(ValueError, match="nothing"):
        sample(["nothing"], 1)


def test_sources_have_the_tests_of_their_name():
    def tests(path):
        return mirrored(Path("src/torchcaps") / path, ROOT)

    assert tests("functional/routing/em.py") == ("tests/functional/test_em.py",)
    assert tests("data/sets/svhn.py") == ("tests/data/sets/test_svhn.py",)
    assert tests("data/_registry.py") == ("tests/data",)
    assert tests("kernels/numerics.py") == ("tests/kernels", "tests/ops")
    assert "tests/test_imports.py" in tests("types.py")


def test_generated_faults_with_a_verdict_do_not_run_again(tmp_path, monkeypatch, capsys):
    runs = []

    def survive(faults, jobs, report, stages):
        for mutant in faults:
            runs.append(mutant)
            report(Verdict(mutant.name, mutant.path, "survived", "", 0.0, mutant.why))

    monkeypatch.setattr("faults.__main__.run", survive)
    results = tmp_path / "results.jsonl"
    first, *pending = sample(["functional"], 3)
    row = {"name": first.name, "verdict": "caught"}
    results.write_text(json.dumps(row) + "\n")
    arguments = ["generate", "--count", "3", "--packages", "functional", "--results", str(results)]
    assert main(arguments) == 0
    assert runs == pending
    rows = map(json.loads, results.read_text().splitlines())
    assert column(rows, "name") == [first.name, pending[0].name, pending[1].name]
    assert "1 caught, 2 survived" in capsys.readouterr().out


@pytest.mark.parametrize("record", FAULTS, ids=attrgetter("name"))
def test_a_record_is_not_stale(record):
    assert record.stale() == ""


def test_there_are_records_for_each_package():
    packages = set(map(package_of, FAULTS))
    assert len(FAULTS) >= 58
    assert packages >= {"functional", "nn", "models", "data", "tasks", "training", "evaluation"}
    assert packages >= {"explorer", "cli"}
