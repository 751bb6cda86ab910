"""A short campaign, and the tests of what runs it."""

import json

import pytest

from campaign.core import area_names, draw_case, fixed, shares, title
from campaign.run import Campaign
from campaign.worker import Worker
from checks import column


@pytest.mark.timeout(1200)
def test_case(case, verdicts):
    failure = verdicts[title(case)].failure
    assert failure is None, f"{failure}\n{json.dumps(case)}"


@pytest.fixture(scope="module")
def worker():
    watched = Worker()
    yield watched
    watched.close()


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ("aborts", "the process ended with status -6"),
        ("nothing", None),
        ("hangs", "did not end within 3 seconds"),
        ("grows", "memory grew by"),
        ("swells", "took more than"),
        ("raises", "KeyError: 'key'"),
        ("writes", "something was executed or written: open"),
        ("runs", "os.system"),
        ("works", "of processor time"),
        ("nothing", None),
    ],
)
def test_a_case_that_fails_is_reported_and_the_next_one_is_checked(worker, test, words):
    failure = worker.check({"area": "_broken", "test": test, "seed": 0}).failure
    assert failure is None if words is None else words in failure


def test_a_campaign_of_ten_thousand_has_every_area_in_its_share():
    numbers = shares()
    assert sum(numbers.values()) == 10_000
    assert set(column(numbers, 0)) == set(area_names())


def test_a_case_is_drawn_again_by_its_seed_and_survives_json():
    for name, test in shares():
        case = draw_case(name, test, 7)
        assert case == draw_case(name, test, 7) == json.loads(json.dumps(case))


def test_the_committed_cases_have_names_of_their_own():
    titles = list(map(title, fixed()))
    assert len(titles) == len(set(titles)) > 50


def test_failures_are_counted_and_written(tmp_path):
    raising = {"area": "_broken", "test": "raises", "seed": 3}
    passing = {"area": "_broken", "test": "nothing", "seed": 3}
    campaign = Campaign(iter([raising, passing, passing]), tmp_path)
    campaign.run(2)
    assert campaign.table().splitlines()[-1].startswith("| all |  | 3 | 1 | ")
    [file] = tmp_path.iterdir()
    assert json.loads(file.read_text())["failure"].startswith("KeyError: 'key' (_broken.py:")
