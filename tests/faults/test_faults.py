"""The runner of faults on a package of one function; the records of faults fit the sources."""

from operator import attrgetter

import pytest

from .records import Fault, load
from .runner import judge

FAULTS = load()
FILES = {
    "src/torchcaps/__init__.py": "",
    "src/torchcaps/sums.py": "def add(x, y):\n    return x + y\n\n\ndef negate(x):\n    return -x\n",
    "tests/test_sums.py": "from torchcaps.sums import add\n"
    "def test_add():\n    assert add(1, 2) == 3\n",
    "tests/test_fails.py": "def test_fails():\n    assert False\n",
    "pyproject.toml": "",
}


@pytest.mark.parametrize(
    ("verdict", "find", "replace", "test"),
    [
        ("caught", "x + y", "x - y", "sums"),
        ("caught", "def add", "def added", "sums"),
        ("survived", "-x", "x", "sums"),
        ("stale", "x * y", "x", "sums"),
        ("stale", "return", "pass", "sums"),
        ("stale", "x + y", "x - y", "nothing"),
        ("unusable", "x + y", "x - y", "fails"),
    ],
)
def test_verdicts(verdict, find, replace, test, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take most of the time
    for path, text in FILES.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    fault = Fault(verdict, "src/torchcaps/sums.py", find, replace, (f"tests/test_{test}.py",), ".")
    assert judge(fault, tmp_path) == verdict
    assert (tmp_path / fault.path).read_text() == FILES[fault.path]


@pytest.mark.parametrize("fault", FAULTS, ids=attrgetter("name"))
def test_a_record_fits_the_sources(fault):
    assert fault.stale() == ""
    assert fault.tests and fault.why and fault.find != fault.replace


def test_there_are_faults_of_each_package():
    packages = {fault.path.removeprefix("src/torchcaps/").split("/")[0] for fault in FAULTS}
    assert packages >= {"functional", "nn", "models", "data", "tasks", "training", "evaluation"}
    assert packages >= {"explorer", "cli"}
