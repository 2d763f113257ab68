"""The browser toolset with a real Chromium, on a site of a few pages served by the test."""

import asyncio
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hermes_rl.agent.loop import HermesAgentLoop
from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError, FailureSource, ToolHostError
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.inference.server_manager import ServerManager
from hermes_rl.sandbox.backends.local import LocalBackend
from hermes_rl.sandbox.pool import SandboxPool
from hermes_rl.tools.browser import chromium as chromium_module
from hermes_rl.tools.browser.tab import Tab
from hermes_rl.tools.host import ToolHost
from hermes_rl.tools.registry import open_toolsets
from hermes_rl.tools.session import ToolSession
from hermes_rl.tools.toolset import OpenToolset
from tests.support.browser_site import PIXEL, Site, explorer, ref_in
from tests.support.scripted_model import ScriptedModel

pytestmark = pytest.mark.asyncio(loop_scope="session")


@asynccontextmanager
async def hosting(**settings: Any) -> AsyncIterator[ToolHost]:
    """By default with access to the site on loopback."""
    given = {"allow_private": "allowed_hosts" not in settings, **settings}
    async with open_toolsets(["browser"], {"browser": given}) as toolsets, hosting_open(toolsets) as host:
        yield host


@asynccontextmanager
async def hosting_open(toolsets: dict[str, OpenToolset]) -> AsyncIterator[ToolHost]:
    host = ToolHost({}, SandboxPool(LocalBackend()), calls_in_flight=16, terminal_timeout=5, toolsets=toolsets)
    try:
        with host.running():
            yield host
    finally:
        await host.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[dict[str, OpenToolset]]:
    """One Chromium for the whole session, as an environment has one for all its rollouts."""
    async with open_toolsets(["browser"], {"browser": {"timeout": 5, "allow_private": True}}) as toolsets:
        yield toolsets


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def site() -> AsyncIterator[Site]:
    async with Site().served() as site:
        yield site


@pytest_asyncio.fixture(loop_scope="session")
async def host(browser: dict[str, OpenToolset]) -> AsyncIterator[ToolHost]:
    async with hosting_open(browser) as host:
        yield host


class Visitor:
    """One rollout's calls, read as the model would."""

    def __init__(self, session: ToolSession, site: Site) -> None:
        self.session, self.site = session, site

    async def __call__(self, name: str, **arguments: Any) -> dict[str, Any]:
        outcome = await self.session.call(f"browser_{name}", arguments)
        answer: dict[str, Any] = fast_json.loads(outcome.text)
        return answer

    async def visit(self, path: str) -> dict[str, Any]:
        return await self("navigate", url=self.site.url + path)

    async def sees(self) -> str:
        return str((await self("snapshot"))["snapshot"])

    async def ref(self, what: str) -> str:
        """The ref of the element whose line holds this text."""
        return ref_in(await self.sees(), what)


@pytest.fixture
def visitor(host: ToolHost, site: Site) -> Visitor:
    return Visitor(host.session("rollout"), site)


async def test_navigating_tells_the_title_and_status(visitor: Visitor) -> None:
    assert await visitor.visit("/") == {"url": f"{visitor.site.url}/", "title": "Home", "status": 200}


async def test_a_page_that_is_missing_is_shown_with_its_status(visitor: Visitor) -> None:
    assert (await visitor.visit("/missing"))["status"] == 404
    assert "no such page" in await visitor.sees()


async def test_a_snapshot_shows_text_and_controls_with_refs(visitor: Visitor) -> None:
    await visitor.visit("/form")
    seen = await visitor("snapshot")
    assert seen["title"] == "Form"
    for role in ('textbox "Name"', 'combobox "Colour"', 'checkbox "I agree"', 'button "Send"'):
        assert re.search(rf"{role} \[ref=e\d+\]", seen["snapshot"]), role


async def test_a_link_is_followed_by_a_click(visitor: Visitor) -> None:
    await visitor.visit("/")
    arrived = await visitor("click", ref=await visitor.ref("To the form"))
    assert arrived == {"url": f"{visitor.site.url}/form", "title": "Form"}


@pytest.mark.parametrize("written", ["{}", "@{}", "[ref={}]", "ref={}"])
async def test_a_ref_may_be_written_as_models_write_it(visitor: Visitor, written: str) -> None:
    await visitor.visit("/")
    ref = await visitor.ref("To the form")
    assert (await visitor("click", ref=written.format(ref)))["title"] == "Form"


async def test_a_form_is_filled_in_and_sent(visitor: Visitor) -> None:
    await visitor.visit("/form")
    seen = await visitor.sees()
    await visitor("type", ref=ref_in(seen, "textbox"), text="Ada ünï")
    await visitor("type", ref=ref_in(seen, "combobox"), text="green")
    await visitor("click", ref=ref_in(seen, "checkbox"))
    await visitor("click", ref=ref_in(seen, "button"))
    assert "Got name=Ada ünï, colour=green, agreed=on" in await visitor.sees()


async def test_typing_with_submit_sends_the_form(visitor: Visitor) -> None:
    await visitor.visit("/form")
    arrived = await visitor("type", ref=await visitor.ref("textbox"), text="Ada", submit=True)
    assert arrived["title"] == "Greeting"


async def test_a_key_goes_to_what_has_the_focus(visitor: Visitor) -> None:
    await visitor.visit("/form")
    await visitor("click", ref=await visitor.ref("textbox"))
    await visitor("press", key="x")
    assert (await visitor("press", key="Enter"))["url"].endswith("name=x&colour=red")


async def test_an_option_that_is_not_there_is_answered_with_those_that_are(visitor: Visitor) -> None:
    await visitor.visit("/form")
    answer = await visitor("type", ref=await visitor.ref("combobox"), text="blue")
    assert "no option 'blue'; it has: red, green" in answer["error"]


async def test_what_cannot_be_typed_into_is_told(visitor: Visitor) -> None:
    await visitor.visit("/form")
    assert "not an <input>" in (await visitor("type", ref=await visitor.ref("button"), text="x"))["error"]


async def test_an_unknown_key_is_told(visitor: Visitor) -> None:
    await visitor.visit("/form")
    assert 'Unknown key: "Nonsense"' in (await visitor("press", key="Nonsense"))["error"]


async def test_going_back_shows_the_page_before(visitor: Visitor) -> None:
    await visitor.visit("/")
    await visitor.visit("/form")
    assert (await visitor("back"))["title"] == "Home"


async def test_there_is_nothing_before_the_first_page(visitor: Visitor) -> None:
    await visitor.visit("/")
    assert (await visitor("back"))["error"] == "there is no page to go back to"
    assert "Welcome" in await visitor.sees()


async def test_a_page_that_opens_in_a_new_tab_is_followed_and_back_returns(visitor: Visitor) -> None:
    await visitor.visit("/")
    assert (await visitor("click", ref=await visitor.ref("New tab")))["title"] == "Tab"
    assert (await visitor("back"))["title"] == "Home"


async def test_a_tab_that_closes_itself_gives_the_page_behind_it(visitor: Visitor) -> None:
    await visitor.visit("/")
    await visitor("click", ref=await visitor.ref("New tab"))
    await visitor("click", ref=await visitor.ref("Close me"))
    assert "Welcome" in await visitor.sees()


async def test_a_page_that_opens_twenty_others_does_not_fill_the_machine(visitor: Visitor) -> None:
    await visitor.visit("/many")
    await visitor("click", ref=await visitor.ref("Open twenty"))
    await asyncio.sleep(1)
    tab: Tab = visitor.session._resources["browser"]
    assert len(tab._context.pages) <= 8
    assert (await visitor.visit("/"))["title"] == "Home"


async def test_content_made_by_scripts_is_seen_and_clicked(visitor: Visitor) -> None:
    await visitor.visit("/script")
    await visitor("click", ref=await visitor.ref("Make"))
    assert "made by script" in await visitor.sees()
    assert "error" not in await visitor("click", ref=await visitor.ref("Made button"))


async def test_a_click_whose_script_navigates_tells_the_new_page(visitor: Visitor) -> None:
    await visitor.visit("/moving")
    assert (await visitor("click", ref=await visitor.ref("Go home")))["title"] == "Home"


async def test_elements_of_a_frame_have_refs_too(visitor: Visitor) -> None:
    await visitor.visit("/frame")
    await visitor("click", ref=await visitor.ref("Inner"))
    assert (await visitor("snapshot"))["title"] == "1"


async def test_a_click_waits_for_a_page_that_takes_a_second(visitor: Visitor) -> None:
    await visitor.visit("/moving")
    assert (await visitor("click", ref=await visitor.ref("Late page")))["title"] == "Late"


async def test_a_ref_whose_element_is_gone_asks_for_a_new_snapshot(visitor: Visitor) -> None:
    await visitor.visit("/moving")
    ref = await visitor.ref("Remove me")
    await visitor("click", ref=ref)
    assert (await visitor("click", ref=ref))["error"] == f"{ref} is not on the page (any more); take a new snapshot"


async def test_a_ref_of_the_page_before_does_not_hit_an_element_of_this_one(visitor: Visitor) -> None:
    await visitor.visit("/")
    ref = await visitor.ref("To the form")
    await visitor.visit("/cave")
    assert "take a new snapshot" in (await visitor("click", ref=ref))["error"]


@pytest.mark.parametrize("ref", ["", "e", "button", "e1e2; drop", "css=button"])
async def test_what_is_no_ref_is_told(visitor: Visitor, ref: str) -> None:
    assert "is not a ref; give one from browser_snapshot" in (await visitor("click", ref=ref))["error"]


async def test_an_element_that_is_covered_cannot_be_clicked_and_the_model_is_told_why(visitor: Visitor) -> None:
    await visitor.visit("/covered")
    assert "intercepts pointer events" in (await visitor("click", ref=await visitor.ref("Under")))["error"]


async def test_scrolling_moves_the_page_and_loads_more(visitor: Visitor) -> None:
    await visitor.visit("/long")
    assert "more" not in await visitor.sees()
    down = await visitor("scroll", direction="down")
    assert down["position"] > 300 and not down["at_end"]
    assert "paragraph" in await visitor.sees() and "more" in await visitor.sees()
    assert (await visitor("scroll", direction="up"))["position"] == 0


async def test_scrolling_ends_at_the_end(visitor: Visitor) -> None:
    await visitor.visit("/long")
    assert any([(await visitor("scroll", direction="down"))["at_end"] for _ in range(9)])


async def test_a_long_snapshot_comes_in_parts_that_together_are_all_of_it(visitor: Visitor) -> None:
    await visitor.visit("/huge")
    first = await visitor("snapshot")
    parts = [(await visitor("snapshot", part=part))["snapshot"] for part in range(1, first["parts"] + 1)]
    assert len(parts) > 2 and all(len(part) <= 20_000 for part in parts)
    seen = re.findall(r"paragraph number (\d+) of many", "\n".join(parts))
    assert seen == [str(number) for number in range(2000)]
    assert "there is no part 99" in (await visitor("snapshot", part=99))["error"]


async def test_console_messages_and_script_errors_are_kept(visitor: Visitor) -> None:
    await visitor.visit("/script")
    # Chromium reports them after the page is there.
    async with asyncio.timeout(30):
        while len(messages := (await visitor("console"))["messages"]) < 3:
            await asyncio.sleep(0.05)
    assert {"type": "log", "text": "page ready"} in messages
    assert {"type": "warning", "text": "careful"} in messages
    assert any(one["type"] == "exception" and "broken on purpose" in one["text"] for one in messages)


async def test_images_are_listed_with_their_description_and_size(visitor: Visitor) -> None:
    await visitor.visit("/images")
    assert (await visitor("get_images"))["images"] == [
        {"url": PIXEL, "alt": "a dot", "width": 1, "height": 1},
        {"url": f"{visitor.site.url}/missing.png", "alt": "not there", "width": 0, "height": 0},
    ]


@pytest.mark.parametrize(
    "url", ["", "example.com", "file:///etc/passwd", "javascript:alert(1)", "chrome://crash", "http://["]
)
async def test_only_web_addresses_can_be_visited(visitor: Visitor, url: str) -> None:
    assert "is not the address of a web page" in (await visitor("navigate", url=url))["error"]


async def test_a_host_that_does_not_answer_is_told_and_the_browser_goes_on(visitor: Visitor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}/"
    expected = f"{url} could not be loaded: 127.0.0.1: Connection refused"
    assert (await visitor("navigate", url=url))["error"] == expected
    assert (await visitor.visit("/"))["title"] == "Home"


async def test_a_page_that_loads_too_slowly_is_told(visitor: Visitor) -> None:
    assert "Timeout 5000ms exceeded" in (await visitor.visit("/slow"))["error"]
    assert (await visitor.visit("/"))["title"] == "Home"


async def test_a_link_to_a_page_that_loads_too_slowly_leaves_the_browser_usable(visitor: Visitor) -> None:
    await visitor.visit("/moving")
    answer = await visitor("click", ref=await visitor.ref("Slow page"))
    assert answer["error"] == "the page that this leads to did not load within 5 s"
    assert "Go home" in await visitor.sees()


async def test_a_page_whose_script_never_returns_is_closed_and_the_browser_goes_on(visitor: Visitor) -> None:
    await visitor.visit("/hang")
    answer = await visitor("click", ref=await visitor.ref("Hang"))
    assert answer["error"] == "the page did not respond and was closed; navigate to another"
    assert (await visitor.visit("/"))["title"] == "Home"


async def test_calls_of_one_turn_are_carried_out_in_their_order(visitor: Visitor) -> None:
    first, second, snapshot = await asyncio.gather(visitor.visit("/form"), visitor.visit("/cave"), visitor("snapshot"))
    assert [first["title"], second["title"], snapshot["title"]] == ["Form", "Cave", "Cave"]


async def test_two_rollouts_share_no_cookies(host: ToolHost, site: Site) -> None:
    one, other = Visitor(host.session("one"), site), Visitor(host.session("other"), site)
    await one.visit("/cookie")
    assert (await one.visit("/cookie"))["title"] == "Visit 2"
    assert (await other.visit("/cookie"))["title"] == "Visit 1"


async def test_a_rollout_finds_nothing_of_an_earlier_one_of_the_same_name(host: ToolHost, site: Site) -> None:
    await Visitor(host.session("one"), site).visit("/cookie")
    await host.close_session("one")
    again = Visitor(host.session("one"), site)
    assert (await again("snapshot"))["url"] == "about:blank"
    assert (await again.visit("/cookie"))["title"] == "Visit 1"


async def test_a_closed_session_leaves_no_context(host: ToolHost, site: Site) -> None:
    running = host.toolsets["browser"].service._browser
    before = len(running.contexts)
    await Visitor(host.session("one"), site).visit("/")
    assert len(running.contexts) == before + 1
    await host.close_session("one")
    assert len(running.contexts) == before


async def test_eight_rollouts_browse_at_once(host: ToolHost, site: Site) -> None:
    async def rollout(number: int) -> str:
        visitor = Visitor(host.session(f"many-{number}"), site)
        await visitor.visit("/form")
        await visitor("type", ref=await visitor.ref("textbox"), text=f"n{number}", submit=True)
        return await visitor.sees()

    seen = await asyncio.gather(*(rollout(number) for number in range(8)))
    assert all(f"name=n{number}," in text for number, text in enumerate(seen))


async def test_hosts_that_are_not_allowed_are_refused_by_name(site: Site) -> None:
    async with hosting(allowed_hosts=["127.0.0.1", "*.example.com"]) as host:
        visitor = Visitor(host.session("rollout"), site)
        answer = await visitor("navigate", url=site.url.replace("127.0.0.1", "localhost"))
        assert answer["error"] == "localhost may not be visited; allowed: 127.0.0.1, *.example.com"
        assert (await visitor.visit("/"))["status"] == 200


async def test_a_redirect_does_not_lead_to_a_host_that_is_not_allowed(site: Site) -> None:
    async with hosting(allowed_hosts=["127.0.0.1"]) as host:
        visitor = Visitor(host.session("rollout"), site)
        assert "localhost may not be visited" in (await visitor.visit("/elsewhere"))["error"]
        await visitor.visit("/")
        assert "could not be loaded" in (await visitor("click", ref=await visitor.ref("Elsewhere")))["error"]
        assert (await visitor("back"))["title"] == "Home"


async def test_without_a_list_the_same_redirect_is_followed(visitor: Visitor) -> None:
    assert (await visitor.visit("/elsewhere"))["title"] == "Home"


@dataclass
class Victim:
    """A service on another loopback address that no page may reach: the paths asked for, and datagrams."""

    address: str = ""
    paths: set[str] = field(default_factory=set)
    datagrams: list[bytes] = field(default_factory=list)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Chromium also opens connections that it then does not use.
        if words := (await reader.readline()).decode().split():
            self.paths.add(words[1])
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, victim: Victim) -> None:
        self._victim = victim

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self._victim.datagrams.append(data)


@pytest_asyncio.fixture(loop_scope="session")
async def victim() -> AsyncIterator[Victim]:
    victim = Victim()
    server = await asyncio.start_server(victim.answer, "127.0.0.2", 0)
    host, port = server.sockets[0].getsockname()
    victim.address = f"{host}:{port}"
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: _Datagrams(victim), local_addr=(host, port)
    )
    try:
        yield victim
    finally:
        transport.close()
        server.close()


WAYS = {f"/{way}" for way in ("image", "frame", "fetch", "socket", "events", "beacon", "worker", "service-worker")}


async def test_a_page_reaches_no_private_address_by_any_way_of_the_web(site: Site, victim: Victim) -> None:
    async with hosting(allow_private=["127.0.0.1"]) as host:
        visitor = Visitor(host.session("rollout"), site)
        assert (await visitor.visit(f"/hostile?target={victim.address}"))["title"] == "Hostile"
        await asyncio.sleep(3)
        answer = await visitor.visit(f"/redirect?{victim.address}")
        assert "127.0.0.2 is in a private network" in answer["error"]
    assert (victim.paths, victim.datagrams) == (set(), [])


async def test_a_page_reaches_an_allowed_address_by_every_way_except_webrtc(site: Site, victim: Victim) -> None:
    """The same page with another setting, so that the test above can fail."""
    async with hosting(allow_private=["127.0.0.0/8"]) as host:
        visitor = Visitor(host.session("rollout"), site)
        await visitor.visit(f"/hostile?target={victim.address}")
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and victim.paths < WAYS:
            await asyncio.sleep(0.1)
        await visitor.visit(f"/redirect?{victim.address}")
    assert victim.paths >= WAYS | {"/redirected"}
    assert victim.datagrams == []


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "[::1]", "127.1", "2130706433", "0", "[::ffff:7f00:1]"])
async def test_by_default_loopback_is_not_visited(site: Site, public_host: ToolHost, name: str) -> None:
    visitor = Visitor(public_host.session(name), site)
    error = (await visitor("navigate", url=site.url.replace("127.0.0.1", name)))["error"]
    assert "is in a private network" in error or "is not a plain address" in error


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def public_host() -> AsyncIterator[ToolHost]:
    async with hosting(allow_private=False) as host:
        yield host


async def test_chromium_without_its_own_sandbox_is_warned_of_once(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    others = browsers_of(os.getpid())
    async with hosting() as host:
        for pid in browsers_of(os.getpid()) - others:
            os.kill(pid, 9)
        assert (await Visitor(host.session("next"), site).visit("/"))["title"] == "Home"
    assert capsys.readouterr().err.count("warning: Chromium's own sandbox is off (it cannot start as root)") == 1


def browsers_of(owner: int) -> set[int]:
    """The Chromium programs that descend from a process, without their helpers."""
    parents: dict[int, int] = {}
    main: set[int] = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            arguments = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if b"--remote-debugging-pipe" in arguments and b"--type=" not in arguments:
            main.add(int(entry.name))

    def descends(pid: int) -> bool:
        while pid > 1:
            if pid == owner:
                return True
            pid = parents.get(pid, 0)
        return False

    return {pid for pid in main if descends(pid)}


async def test_a_browser_that_is_killed_leaves_the_rollout_unscored_and_the_next_gets_a_fresh_one(site: Site) -> None:
    others = browsers_of(os.getpid())
    async with hosting() as host:
        visitor = Visitor(host.session("unlucky"), site)
        await visitor.visit("/")
        for pid in browsers_of(os.getpid()) - others:
            os.kill(pid, 9)
        with pytest.raises(ToolHostError) as caught:
            await visitor.visit("/form")
        assert (caught.value.cause, caught.value.failure.whose) == ("browser_closed", FailureSource.TOOL)
        with pytest.raises(ToolHostError):
            await visitor("snapshot")
        assert (await Visitor(host.session("next"), site).visit("/form"))["title"] == "Form"
        assert host.toolsets["browser"].service.start_count == 2


async def test_a_browser_that_is_killed_within_a_call_is_no_fault_of_the_model(site: Site) -> None:
    others = browsers_of(os.getpid())
    async with hosting() as host:
        visitor = Visitor(host.session("unlucky"), site)
        await visitor.visit("/")
        loading = asyncio.create_task(visitor.visit("/slow"))
        await asyncio.sleep(0.3)
        for pid in browsers_of(os.getpid()) - others:
            os.kill(pid, 9)
        with pytest.raises(ToolHostError):
            await loading


async def test_a_page_that_crashes_is_no_fault_of_the_model(host: ToolHost, site: Site) -> None:
    visitor = Visitor(host.session("unlucky"), site)
    await visitor.visit("/")
    tab: Tab = visitor.session._resources["browser"]
    assert tab._page is not None
    devtools = await tab._context.new_cdp_session(tab._page)
    async with tab._page.expect_event("crash"):
        crashing = asyncio.ensure_future(devtools.send("Page.crash"))
    with pytest.raises(ToolHostError) as caught:
        await visitor("snapshot")
    assert caught.value.cause == "page_crashed"
    await host.close_session("unlucky")
    await asyncio.gather(crashing, return_exceptions=True)
    assert (await Visitor(host.session("next"), site).visit("/"))["title"] == "Home"


async def test_closing_the_toolset_ends_chromium() -> None:
    others = browsers_of(os.getpid())
    async with hosting():
        assert len(browsers_of(os.getpid()) - others) == 1
    assert browsers_of(os.getpid()) == others


OWNER = """
import asyncio
from hermes_rl.tools.browser.settings import BrowserSettings
from hermes_rl.tools.browser.chromium import Chromium

async def main():
    async with Chromium(BrowserSettings()):
        print("open", flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_chromium_does_not_outlive_an_environment_that_was_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert await asyncio.to_thread(owner.stdout.readline) == "open\n"
        [browser] = browsers_of(owner.pid)
        owner.kill()
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline and _runs(browser):
        await asyncio.sleep(0.1)
    assert not _runs(browser)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def test_chromium_is_told_no_environment_variable_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "very-secret")
    others = browsers_of(os.getpid())
    async with hosting():
        [pid] = browsers_of(os.getpid()) - others
        assert b"very-secret" not in Path(f"/proc/{pid}/environ").read_bytes()


async def test_a_missing_chromium_is_said_at_start_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chromium_module, "NAMES", ("no-such-chromium",))
    with pytest.raises(ConfigError, match=r"found none of no-such-chromium; install it .*apt-get install chromium"):
        async with hosting():
            pass


async def test_an_executable_that_is_not_there_is_said_at_start() -> None:
    with pytest.raises(ConfigError, match="executable: /no/such/program is not a program"):
        async with hosting(executable="/no/such/program"):
            pass


async def test_a_program_that_is_no_chromium_is_said_at_start() -> None:
    with pytest.raises(ConfigError, match=r"the browser toolset is not available here: .*true does not start"):
        async with hosting(executable="true"):
            pass


async def test_a_missing_extra_is_said_with_the_line_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "playwright.async_api", None)
    with pytest.raises(ConfigError, match=re.escape("pip install 'hermes-rl[browser]'")):
        async with hosting():
            pass


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"allowed_hosts": ["http://x"]}, "without scheme and port"),
        ({"allowed_hosts": ["a, EXCLUDE *"]}, "is not a host"),
        ({"viewport": [10, 10]}, "from 100 to 10000 pixels"),
        ({"timeout": 0}, "greater than 0"),
        ({"colour": "red"}, "colour"),
    ],
)
async def test_wrong_settings_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=f"tool_settings of browser: .*{problem}"):
        async with hosting(**settings):
            pass


# --- an agent that browses ---


async def test_an_agent_clicks_through_the_site_to_what_it_looks_for(host: ToolHost, site: Site) -> None:
    tools = host.toolsets["browser"].tools
    async with (
        ScriptedModel(explorer(site.url)) as model,
        ServerManager([APIServerConfig(base_url=model.base_url, model_name="scripted", max_retries=0)]) as server,
    ):
        loop = HermesAgentLoop(server, [one.schema for one in tools], {one.name for one in tools}, task_id="agent")
        result = await loop.run([{"role": "user", "content": "Find the treasure."}])
    assert (result.final_response, result.tool_errors, result.turns_used) == ("Found it.", [], 10)
