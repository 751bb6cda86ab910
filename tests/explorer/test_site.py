"""The site in a real browser: its tables sort, and its pages ask nobody for anything."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "build" / "site"
TABLE = """<!doctype html><article><table>
<thead><tr><th>network</th><th>accuracy</th></tr></thead>
<tbody>
<tr><td>b</td><td>99.4 %</td></tr><tr><td>c</td><td>-</td></tr>
<tr><td>a</td><td>1,280.5</td></tr><tr><td>d</td><td>−3</td></tr>
</tbody></table></article>"""


def first_column(browser):
    rows = browser.find_elements("css selector", "article tbody tr")
    return "".join(row.text[:1] for row in rows)


def foreign_requests(browser):
    """Addresses outside of the folder that were asked since the log was last read."""
    addresses = []
    for entry in browser.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            addresses.append(message["params"]["request"]["url"])
    return [address for address in addresses if address.startswith(("http", "//", "ws"))]


def test_a_table_sorts_by_the_heading_that_is_pressed(browser, tmp_path):
    script = (ROOT / "docs" / "site.js").read_text(encoding="utf-8")
    page = tmp_path / "table.html"
    page.write_text(f'<meta charset="utf-8">{TABLE}<script>{script}</script>', encoding="utf-8")
    browser.get(page.as_uri())
    name, accuracy = browser.find_elements("css selector", "button.sort")
    assert first_column(browser) == "bcad"
    accuracy.click()
    assert first_column(browser) == "dbac"  # what has no figure stays last
    accuracy.click()
    assert first_column(browser) == "abdc"
    name.click()
    assert first_column(browser) == "abcd"


@pytest.mark.slow
def test_the_built_site_is_whole_and_asks_nobody(browser):
    if not (BUILT / "docs" / "index.html").exists():
        pytest.skip("the site is not built: make site")
    browser.get_log("performance")
    browser.get((BUILT / "index.html").as_uri())
    links = browser.find_elements("css selector", "a[href*='docs/']")
    assert links, "the first page leads to no other"
    pages = [link.get_attribute("href").partition("#")[0] for link in links]
    pages += [(BUILT / "docs" / name).as_uri() for name in ("capsnet.html", "results.html")]
    tutorials = (BUILT / "docs" / "tutorials").glob("*.html")
    for address in [*dict.fromkeys(pages), *(path.as_uri() for path in tutorials)]:
        browser.get(address)
        assert browser.find_elements("css selector", "article h1"), address
        broken = browser.execute_script(
            "return [...document.images].filter(i => !i.naturalWidth).map(i => i.src)"
        )
        assert broken == [], address
        width = browser.execute_script(
            "return document.documentElement.scrollWidth - window.innerWidth"
        )
        assert width <= 0, address
    browser.get((BUILT / "docs" / "results.html").as_uri())
    assert len(browser.find_elements("css selector", "button.sort")) > 10
    assert foreign_requests(browser) == []
