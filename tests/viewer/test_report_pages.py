"""A report in a real Chromium, from a file: every page that it leads to is in it, and nothing is asked of a network."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from hermes_rl.cli.run_access import viewed_runs
from hermes_rl.viewer.report.builder import write_report
from tests.viewer.pages import GROUPS, Theme, Visit, chromium, reading, write_everything
from tests.viewer.test_pages import PAGES, SERIOUS, axe

__all__ = ["axe"]

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.parts]

NUMBERS = re.compile(r"[\d-]+")
DRAWN = "new Promise((done) => requestAnimationFrame(() => setTimeout(done, 50)))"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("records")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HERMES_HOME", str(tmp_path_factory.mktemp("home")))
        write_everything(folder)
        names = [str(folder / name) for name in ("words.jsonl", "first", "second")]
        write_report(["r1", "r2", *names], viewed_runs(), folder / "all.html")
        write_report(names[1:2], viewed_runs(), folder / "one.html")
    return folder


@pytest_asyncio.fixture(loop_scope="session")
async def visit(browser: Browser, records: Path) -> AsyncIterator[Visit]:
    async with reading(browser, records / "all.html") as visit:
        yield visit


@pytest.mark.parametrize(("path", "shown"), PAGES.items())
async def test_a_page_of_the_viewer_is_in_the_report(visit: Visit, path: str, shown: str) -> None:
    page = await visit.to(path)
    await expect(page.locator("main")).to_contain_text(shown)
    await expect(page.get_by_text("not included in the report")).to_have_count(0)
    assert visit.wrong == []


async def test_every_kind_of_link_of_a_report_leads_to_something(visit: Visit) -> None:
    page = visit.page
    seen: set[str] = set()
    waiting = ["/"]
    while waiting:
        path = waiting.pop()
        if _kind(path) in seen:
            continue
        seen.add(_kind(path))
        await visit.to(path)
        await page.evaluate(DRAWN)
        await visit.settled()
        assert await page.locator("main .trouble", has_text="not included in the report").count() == 0, path
        links = await page.locator("main a[href^='#/']").evaluate_all("all => all.map((a) => a.getAttribute('href'))")
        waiting += [link.removeprefix("#") for link in links]
    assert len(seen) > 12
    assert visit.wrong == []


def _kind(path: str) -> str:
    """A path without the numbers in it: one group or one tool is like another."""
    bare, _, query = path.partition("?")
    names = sorted(part.partition("=")[0] for part in query.split("&"))
    return "/".join("N" if NUMBERS.fullmatch(part) else part for part in bare.split("/")) + "?" + "&".join(names)


async def test_a_report_of_one_source_begins_with_it_and_says_what_it_is(browser: Browser, records: Path) -> None:
    async with reading(browser, records / "one.html") as visit:
        await expect(visit.page.locator("main h1")).to_have_text("first")
        await expect(visit.page.locator(".report-note")).to_contain_text("complete, 3 groups with 3 rollouts")
        await expect(visit.page.get_by_role("link", name="Compare")).to_have_count(0)
        assert visit.wrong == []


async def test_a_hostile_rollout_runs_nothing_in_a_report(visit: Visit) -> None:
    page = await visit.to("/s/{words}/rollouts/4-0")
    await page.keyboard.press("e")
    await expect(page.locator("main .folded.result .foreign")).to_contain_text("onerror")
    assert await page.evaluate("window.ran") is None
    assert await page.locator("main script, main img, main a[href^=javascript]").count() == 0
    assert visit.wrong == []


async def test_a_script_that_was_put_into_a_report_does_not_run(
    browser: Browser, records: Path, tmp_path: Path
) -> None:
    changed = tmp_path / "changed.html"
    page = (records / "one.html").read_text()
    changed.write_text(
        page.replace("</body>", "<script>window.ran = 1</script><img src=x onerror='window.ran=1'></body>")
    )
    async with reading(browser, changed) as visit:
        await expect(visit.page.locator("main h1")).to_have_text("first")
        assert await visit.page.evaluate("window.ran") is None


async def test_a_long_text_says_that_its_rest_is_not_there(visit: Visit) -> None:
    page = await visit.to("/s/{words}/rollouts/5-0")
    await expect(page.locator("main")).to_contain_text("The first 20,000 of 5,000,008 characters")
    await expect(page.get_by_role("button", name="Next part")).to_have_count(0)


async def test_a_list_of_a_report_is_paged_and_filtered(visit: Visit) -> None:
    page = await visit.to("/s/{words}/groups")
    await expect(page.locator("tbody tr")).to_have_count(50)
    await page.get_by_role("button", name="Next").click()
    await expect(page.locator("tbody tr")).to_have_count(GROUPS - 50)
    page = await visit.to("/s/{words}/rollouts")
    await page.get_by_label("Search").fill("orange")
    await expect(page.locator("tbody tr")).to_have_count(1)


async def test_a_link_into_a_report_opens_there(browser: Browser, records: Path) -> None:
    async with reading(browser, records / "all.html") as visit:
        page = await visit.to("/s/{words}/rollouts/1-1?view=tokens")
        await page.reload()
        await expect(page.locator("main")).to_contain_text("sampled of")
        assert visit.wrong == []


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_no_page_of_a_report_has_a_serious_fault_of_accessibility(
    browser: Browser, records: Path, theme: Theme, axe: str
) -> None:
    async with reading(browser, records / "all.html", theme) as visit:
        for path in ("/", "/s/{first}", "/s/{words}/groups/1"):
            page = await visit.to(path)
            await page.evaluate(axe)
            assert await page.evaluate(SERIOUS) == [], path
