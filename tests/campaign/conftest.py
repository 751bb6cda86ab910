import math
from itertools import islice

import pytest

from campaign.core import WALL, area, area_names, cases, fixed, limit, read_cases, title
from campaign.run import Campaign

FRACTION = 300  # a short run draws one of so many of the campaign's cases


def short_run():
    """The committed cases, and the first few of each test in areas that start no processes."""
    short_cases = fixed()
    for name in area_names():
        if starts_processes(name):
            continue
        for test, share in area(name).TESTS.items():
            if share:
                number = math.ceil(share / FRACTION)
                short_cases += islice(cases(0, [f"{name}/{test}"]), number)
    return short_cases


def starts_processes(name):
    """Whether the cases of an area start programs, which takes seconds; such areas have more time."""
    return limit(name, "WALL") > WALL


def mark_slow(case):
    marks = [pytest.mark.slow] if starts_processes(case["area"]) else []
    return pytest.param(case, id=title(case), marks=marks)


def pytest_generate_tests(metafunc):
    if "case" in metafunc.fixturenames:
        file = metafunc.config.getoption("--case")
        parameters = read_cases(file) if file is not None else list(map(mark_slow, short_run()))
        metafunc.parametrize("case", parameters, ids=None if file is None else title)


def pytest_collection_modifyitems(config, items):
    if config.getoption("--case") is not None:
        items[:] = [item for item in items if "case" in getattr(item, "fixturenames", ())]


@pytest.fixture(scope="session")
def verdicts(request):
    """Verdicts of the selected cases, by title; one process checks them all."""
    cases = []
    for item in request.session.items:
        if "case" in item.fixturenames:
            cases.append(item.callspec.params["case"])
    campaign = Campaign(iter(cases))
    campaign.run(1)
    return {title(case): verdict for case, verdict in campaign.verdicts}
