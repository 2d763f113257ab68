"""The viewer's pages in a real Chromium: shown, read by keyboard and by a screen reader, and harmless."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.viewer.pages import GROUPS, Theme, Visit, chromium, served, visiting, write_everything

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.parts]

AXE = Path(__file__).parents[2] / "front/node_modules/axe-core/axe.min.js"
SERIOUS = """axe.run(document, {resultTypes: ["violations"]}).then((found) => found.violations
    .filter((one) => one.impact === "serious" || one.impact === "critical")
    .map((one) => one.id + ": " + one.nodes.slice(0, 3).map((node) => node.html).join(" ")))"""

# Each page, and something that only it shows.
PAGES = {
    "/": "words.jsonl",
    "/s/{words}": "Stop reasons",
    "/s/run-r1": "Learning curve",
    "/overlay?runs=run-r1,run-r2": "reward/mean",
    "/s/{words}/groups": "question 0",
    "/s/{words}/groups/1": "Better and worse rollouts",
    "/s/{words}/groups/4": "window.ran",
    "/s/{words}/rollouts": "question 0",
    "/s/{words}/rollouts?q=orange&min_score=0.1": "1 rollout",
    "/s/{words}/rollouts/1-1": "an apple",
    "/s/{words}/rollouts/1-1?view=timeline": "Duration",
    "/s/{words}/rollouts/1-1?view=tokens": "sampled of",
    "/s/{words}/rollouts/1-1?view=record": "neighbours",
    "/s/{words}/rollouts/2-0": "sandbox/died",
    "/s/{words}/rollouts/4-0": "RLO",
    "/s/{first}": "95% interval",
    "/compare?a={first}&b={second}": "second minus first",
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as browser:
        yield browser


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def address(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    folder = tmp_path_factory.mktemp("records")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HERMES_HOME", str(tmp_path_factory.mktemp("home")))
        write_everything(folder)
        async with served(folder) as address:
            yield address


@pytest_asyncio.fixture(loop_scope="session")
async def visit(browser: Browser, address: str) -> AsyncIterator[Visit]:
    async with visiting(browser, address) as visit:
        yield visit


@pytest.fixture(scope="module")
def axe() -> str:
    if not AXE.exists():
        pytest.skip("axe-core is not installed; run scripts/front")
    return AXE.read_text()


@pytest.mark.parametrize(("path", "shown"), PAGES.items())
async def test_a_page_is_shown_and_nothing_goes_wrong_on_it(visit: Visit, path: str, shown: str) -> None:
    page = await visit.to(path)
    await expect(page.locator("main")).to_contain_text(shown)
    assert visit.wrong == []


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_no_page_has_a_serious_fault_of_accessibility(
    browser: Browser, address: str, theme: Theme, axe: str
) -> None:
    async with visiting(browser, address, theme) as visit:
        for path in PAGES:
            page = await visit.to(path)
            await page.evaluate(axe)
            assert await page.evaluate(SERIOUS) == [], path


async def test_a_comparison_of_finished_evaluations_is_of_all_of_them(visit: Visit) -> None:
    page = await visit.to("/compare?a={first}&b={second}")
    await expect(page.get_by_role("region", name="Difference", exact=True)).to_be_visible()
    assert await page.get_by_text("Still being read").count() == 0


async def test_a_hostile_rollout_runs_nothing(visit: Visit) -> None:
    page = await visit.to("/s/{words}/rollouts/4-0")
    await page.keyboard.press("e")
    await expect(page.locator("main .folded.result .foreign")).to_contain_text("onerror")
    assert await page.evaluate("window.ran") is None
    assert await page.locator("main script, main img, main a[href^=javascript]").count() == 0
    assert visit.wrong == []


async def test_what_is_hidden_in_a_text_is_marked(visit: Visit) -> None:
    page = await visit.to("/s/{words}/rollouts/4-0")
    marks = await page.locator("main .message .odd").all_inner_texts()
    assert {"RLO", "PDF", "ESC[31m", "NUL BEL"} <= set(marks)
    assert "\u202e" not in await page.inner_text("body")
    assert "\u202e" not in await page.title()


async def test_a_text_of_5_mb_is_read_by_parts(visit: Visit) -> None:
    page = await visit.to("/s/{words}/rollouts/5-0")
    await expect(page.locator(".longer")).to_contain_text("1 – 20,000 of 5,000,008 characters")
    await page.get_by_role("button", name="Next part").click()
    await expect(page.locator(".longer")).to_contain_text("20,001 – 220,000")


async def test_a_list_holds_one_page_of_rows(visit: Visit) -> None:
    page = await visit.to("/s/{words}/groups")
    await expect(page.locator("tbody tr")).to_have_count(50)
    await page.get_by_role("button", name="Next").click()
    await expect(page.locator("tbody tr")).to_have_count(GROUPS - 50)
    await page.get_by_role("button", name="Previous").click()
    await expect(page.locator("tbody tr")).to_have_count(50)


async def test_a_filter_is_kept_by_the_address(visit: Visit) -> None:
    page = await visit.to("/s/{words}/rollouts")
    await page.get_by_label("Search").fill("orange")
    await page.get_by_label("Stop reason").select_option("max_turns")
    await expect(page.locator("tbody tr")).to_have_count(1)
    await expect(page).to_have_url(re.compile("q=orange"))
    await expect(page).to_have_url(re.compile("stop_reason=max_turns"))
    await page.reload()
    await expect(page.get_by_label("Search")).to_have_value("orange")
    await expect(page.locator("tbody tr")).to_have_count(1)


async def test_a_message_has_a_link_of_its_own(visit: Visit) -> None:
    page = await visit.to("/s/{words}/rollouts/1-1")
    await page.get_by_label("Link to message 2").click()
    await page.reload()
    await expect(page.locator("#m2")).to_have_class("message role-tool error marked")


async def test_rows_are_walked_and_opened_by_keys(visit: Visit) -> None:
    page = await visit.to("/s/{words}/groups")
    for key in ("j", "j", "j", "k", "Enter"):
        await page.keyboard.press(key)
    await expect(page.locator("main h1")).to_have_text("question 1")
    await page.keyboard.press("u")
    await expect(page).to_have_url(f"{visit.url}/s/{visit.ids['words']}/groups")


async def test_a_slash_goes_to_the_search(visit: Visit) -> None:
    page = await visit.to("/s/{words}")
    await page.keyboard.press("/")
    await expect(page.get_by_label("Search")).to_be_focused()


async def test_two_keys_go_to_a_page(visit: Visit) -> None:
    page = await visit.to("/s/{words}")
    await page.keyboard.press("g")
    await page.keyboard.press("r")
    await expect(page).to_have_url(f"{visit.url}/s/{visit.ids['words']}/rollouts")


async def test_keys_are_explained_and_can_be_switched_off(visit: Visit) -> None:
    page = await visit.to("/s/{words}")
    await page.keyboard.press("?")
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("Next or previous row")
    await dialog.get_by_label("Enable single-key shortcuts").uncheck()
    await page.keyboard.press("Escape")
    await expect(dialog).to_be_hidden()
    await page.keyboard.press("/")
    assert page.url == f"{visit.url}/s/{visit.ids['words']}"


async def test_a_curve_is_smoothed_as_far_as_the_slider_says(visit: Visit) -> None:
    page = await visit.to("/s/run-r1")
    raw = await page.locator(".line:not(.small) .curve").get_attribute("d")
    slider = page.get_by_label("smoothing")
    await slider.fill("15")
    await expect(page.get_by_text("mean of 15 steps")).to_be_visible()
    assert await page.locator(".line:not(.small) .curve").get_attribute("d") != raw
    await expect(page).to_have_url(re.compile("smooth=15"))


async def test_runs_are_chosen_for_one_chart(visit: Visit) -> None:
    page = await visit.to("/")
    for name in ("Select words r1", "Select words r2"):
        await page.get_by_label(name).check()
    await page.get_by_role("button", name="Overlay selected").click()
    await expect(page.locator(".overlay .curve:not(.raw)")).to_have_count(2)
    await page.get_by_label("Show words r2").uncheck()
    await expect(page.locator(".overlay .curve:not(.raw)")).to_have_count(1)


async def test_the_logs_of_a_run_are_shown(visit: Visit) -> None:
    page = await visit.to("/s/run-r1/logs")
    await expect(page.get_by_role("log")).to_contain_text("step 60 done")
    assert visit.wrong == []


async def test_a_next_command_is_copied(visit: Visit) -> None:
    page = await visit.to("/s/{words}")
    await page.get_by_role("button", name=re.compile("Copy: hermes-rl rescore")).click()
    await expect(page.get_by_text("Copied")).to_be_visible()
    assert (await page.evaluate("navigator.clipboard.readText()")).startswith("hermes-rl rescore ")


async def test_two_tools_that_differ_by_a_space_are_told_apart(visit: Visit) -> None:
    page = await visit.to("/s/{words}")
    await expect(page.get_by_role("link", name='" terminal"')).to_be_visible()
    await expect(page.get_by_role("link", name="terminal", exact=True)).to_be_visible()


async def test_no_label_of_a_card_leaves_it(visit: Visit) -> None:
    page = await visit.to("/s/{words}/groups/2")
    wide = "cards => cards.filter((card) => card.scrollWidth > card.clientWidth).length"
    assert await page.locator(".card").evaluate_all(wide) == 0


async def test_states_and_rewards_are_shown_after_their_turn(visit: Visit) -> None:
    page = await visit.to("/s/{words}/rollouts/1-0")
    await expect(page.locator("#m1")).to_contain_text("State after turn 1changed: left")
    await expect(page.locator("#m1")).to_contain_text("step reward −0.100: wrong")
    side = page.get_by_role("complementary")
    await expect(side).to_contain_text("too long")
    await expect(side).to_contain_text("buyer")
    await expect(side).to_contain_text("advantage −0.500")


async def test_the_theme_is_switched_and_kept(visit: Visit) -> None:
    page = await visit.to("/")
    light = await page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    await page.keyboard.press("t")
    await page.reload()
    await visit.settled()
    assert await page.locator("html").get_attribute("data-theme") == "dark"
    assert await page.evaluate("getComputedStyle(document.documentElement).backgroundColor") != light


async def test_a_rollout_is_copied_as_its_line(visit: Visit) -> None:
    page = await visit.to("/s/{words}/rollouts/1-1")
    await page.keyboard.press("y")
    await expect(page.get_by_text("Copied")).to_be_visible()
    copied = json.loads(await page.evaluate("navigator.clipboard.readText()"))
    assert copied["messages"][1]["content"] == "an apple"


async def test_without_the_token_the_page_says_what_to_open(browser: Browser, address: str) -> None:
    context = await browser.new_context()
    try:
        page = await context.new_page()
        await page.goto(address.partition("?")[0])
        await expect(page.get_by_role("alert")).to_contain_text("open the address that `hermes-rl view` printed")
    finally:
        await context.close()
