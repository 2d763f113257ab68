"""One rollout's browser: the current page, its actions and its console.

Calls run one at a time, in order, each within a deadline. Problems of the page (not loading, a covered button, hanging)
are reported to the model; a crashed browser or page raises ToolHostError in this call and all later ones.
"""

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from hermes_rl.core.errors import ToolHostError
from hermes_rl.tools.browser.proxy import FilteringProxy
from hermes_rl.tools.browser.settings import BrowserSettings
from hermes_rl.tools.tool import ToolUseError

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, Request, WebError

# An impossible click, such as on a covered button, is reported long before a page load would time out.
ACTION_TIMEOUT = 10.0
LOAD_WAIT = 5.0
# Scripts react to a click with a delay: 50 ms was enough on pages that set location in a handler.
SETTLE = 0.2
# Playwright's deadlines come first; this is for calls without one, such as on a page with a script that never returns.
GRACE = 5.0
RESPONSE_WAIT = 2.0
MAX_SNAPSHOT_CHARS = 20_000
MAX_CONSOLE_MESSAGES, MAX_CONSOLE_CHARS = 100, 500
MAX_PAGES = 8
MAX_IMAGES = 50
MAX_MESSAGE_CHARS = 600
REF = re.compile(r"\[?(?:ref=)?@?(?P<ref>(?:f\d+)?e\d+)\]?")
LIST_IMAGES = """limit => [...document.images].slice(0, limit).map(image => ({
    url: image.currentSrc.slice(0, 500), alt: image.alt.slice(0, 200),
    width: image.naturalWidth, height: image.naturalHeight}))"""
WHERE_SCROLLED = """() => { const page = document.scrollingElement || document.documentElement;
    return {position: Math.round(page.scrollTop), height: page.scrollHeight, window: innerHeight}; }"""
OPENS_A_TAB = "element => element.closest('a[href][target=_blank]') !== null"
OPTIONS = "element => element.tagName === 'SELECT' ? [...element.options].map(option => option.label) : null"


class Tab:
    def __init__(
        self, browser: "Browser", context: "BrowserContext", settings: BrowserSettings, proxy: FilteringProxy
    ) -> None:
        self.console: deque[dict[str, str]] = deque(maxlen=MAX_CONSOLE_MESSAGES)
        self._browser, self._context, self._settings, self._proxy = browser, context, settings, proxy
        self._failed_host = ""
        self._page: Page | None = None
        self._tab_opened = asyncio.Event()
        self._crashed = False
        self._lock = asyncio.Lock()

    @classmethod
    async def open(
        cls, browser: "Browser", context: "BrowserContext", settings: BrowserSettings, proxy: FilteringProxy
    ) -> "Tab":
        tab = cls(browser, context, settings, proxy)
        context.set_default_timeout(min(ACTION_TIMEOUT, settings.timeout) * 1000)
        context.set_default_navigation_timeout(settings.timeout * 1000)
        context.on("page", tab._on_page)
        context.on("console", tab._on_console)
        context.on("weberror", tab._on_web_error)
        context.on("requestfailed", tab._on_request_failed)
        async with tab._acting_page():
            return tab

    async def navigate(self, url: str) -> dict[str, Any]:
        self._check(url)
        async with self._acting_page() as page:
            response = await self._goto(page, url)
            await _wait_for_load(page)
            return {**await _location(page), "status": response.status if response else None}

    async def snapshot(self, part: int) -> dict[str, Any]:
        async with self._acting_page() as page:
            parts = _split(await page.aria_snapshot(mode="ai"), MAX_SNAPSHOT_CHARS)
            if part > len(parts):
                raise ToolUseError(f"the snapshot has {len(parts)} parts; there is no part {part}")
            result = {**await _location(page), "snapshot": parts[part - 1]}
            return result if len(parts) == 1 else {**result, "part": part, "parts": len(parts)}

    async def click(self, ref: str) -> dict[str, Any]:
        async with self._acting_page() as page:
            element = await _find_element(page, ref)
            # First check that it can be clicked, which is fast; the click itself waits for the navigation.
            await element.click(trial=True)
            opens = await element.evaluate(OPENS_A_TAB)
            self._tab_opened.clear()
            await element.click(timeout=self._settings.timeout * 1000)
            if opens:
                await self._wait_for_new_tab()
            return await self._state_after_action()

    async def type(self, ref: str, text: str, submit: bool) -> dict[str, Any]:
        async with self._acting_page() as page:
            element = await _find_element(page, ref)
            options = await element.evaluate(OPTIONS)
            if options is None:
                await element.fill(text)
            elif text in options:
                await element.select_option(label=text)
            else:
                raise ToolUseError(f"{ref} has no option {text!r}; it has: {', '.join(options)[:MAX_MESSAGE_CHARS]}")
            if submit:
                await element.press("Enter", timeout=self._settings.timeout * 1000)
            return await self._state_after_action()

    async def scroll(self, direction: Literal["up", "down"]) -> dict[str, Any]:
        async with self._acting_page() as page:
            width, height = self._settings.viewport
            await page.mouse.move(width / 2, height / 2)
            # With the wheel, so that a scrollable list moves when the page itself cannot.
            await page.mouse.wheel(0, height * (0.8 if direction == "down" else -0.8))
            await asyncio.sleep(SETTLE)
            seen = await page.evaluate(WHERE_SCROLLED)
            return {**seen, "at_end": seen["position"] + seen["window"] >= seen["height"] - 1}

    async def back(self) -> dict[str, Any]:
        async with self._acting_page() as page:
            before = page.url
            await page.go_back(wait_until="domcontentloaded")
            if page.url in (before, "about:blank"):
                if len(self._context.pages) == 1:
                    if page.url != before:
                        await page.go_forward(wait_until="domcontentloaded")
                    raise ToolUseError("there is no page to go back to")
                # The page opened in its own tab: closing it returns to the previous one.
                await page.close()
                self._page = None
            return await self._state_after_action()

    async def press(self, key: str) -> dict[str, Any]:
        async with self._acting_page() as page:
            await page.keyboard.press(key)
            return await self._state_after_action()

    async def images(self) -> list[dict[str, Any]]:
        async with self._acting_page() as page:
            found: list[dict[str, Any]] = await page.evaluate(LIST_IMAGES, MAX_IMAGES)
            return found

    @asynccontextmanager
    async def _acting_page(self) -> "AsyncIterator[Page]":
        """Exclusive access to the current page; failures become ToolUseError or ToolHostError."""
        from playwright.async_api import Error

        async with self._lock:
            self._check_alive()
            try:
                async with asyncio.timeout(self._settings.timeout + GRACE):
                    yield await self._current()
                self._check_alive()
            except (Error, TimeoutError) as error:
                raise await self._translate_error(error) from None

    async def _translate_error(self, error: Exception) -> Exception:
        """The error for a failed call: ToolUseError for the page's fault, ToolHostError for the browser's."""
        message = str(error)
        if "closed" in message or "crashed" in message:
            # The disconnect event can arrive after the call has failed.
            await asyncio.sleep(SETTLE)
        self._check_alive()
        page = self._page
        if page is not None and page.is_closed():
            return ToolUseError("the page closed itself; take a snapshot to see where you are now")
        if "has been closed" in message:
            return ToolHostError("browser_closed", f"the browser broke off: {message[:MAX_MESSAGE_CHARS]}")
        if page is not None and type(error).__name__ == "TimeoutError" and not await _responds(page):
            self._page = None
            await _close_page(page)
            return ToolUseError("the page did not respond and was closed; navigate to another")
        text = re.sub(r"^(Page|Locator|Keyboard|Mouse)\.\w+: ", "", message)
        if not text or "waiting for scheduled navigations" in text:
            return ToolUseError(f"the page that this leads to did not load within {self._settings.timeout:g} s")
        # The call log explains a timeout (something covers the button) but no other error.
        return ToolUseError(text[:MAX_MESSAGE_CHARS] if text.startswith("Timeout") else text.partition("\n")[0])

    def _check_alive(self) -> None:
        if not self._browser.is_connected():
            raise ToolHostError("browser_closed", "Chromium ended while this rollout was using it")
        if self._crashed:
            raise ToolHostError("page_crashed", "the page crashed in Chromium")

    async def _current(self) -> "Page":
        """The newest open page; a new one when there is none."""
        if self._page is None or self._page.is_closed():
            pages = self._context.pages
            self._page = pages[-1] if pages else await self._context.new_page()
        return self._page

    async def _state_after_action(self) -> dict[str, Any]:
        """URL and title after an action, possibly in a new tab."""
        await asyncio.sleep(SETTLE)
        page = await self._current()
        await _wait_for_load(page)
        return await _location(page)

    async def _wait_for_new_tab(self) -> None:
        """Wait for the tab that a link opens: on a busy machine this may take longer than SETTLE."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LOAD_WAIT):
                await self._tab_opened.wait()

    async def _goto(self, page: "Page", url: str) -> Any:
        from playwright.async_api import Error

        for attempt in (1, 2):
            self._failed_host = ""
            try:
                return await page.goto(url, wait_until="domcontentloaded")
            except Error as error:
                message = str(error)
                if "net::ERR" in message:
                    await _wait_for_error_page(page)
                    # The last host of the redirects, and what the proxy knows about it.
                    if problem := self._proxy.problem(self._failed_host):
                        raise ToolUseError(f"{url[:200]} could not be loaded: {self._failed_host}: {problem}") from None
                # A script of the page was navigating at the same time.
                if attempt == 2 or "interrupted by another navigation" not in message:
                    raise
                await asyncio.sleep(SETTLE)
        raise AssertionError("unreachable")

    def _check(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            host = parts.hostname
        except ValueError:
            parts, host = urlsplit(""), None
        if parts.scheme not in ("http", "https") or not host:
            raise ToolUseError(f"{url[:200]} is not the address of a web page; give one with http:// or https://")
        self._proxy.policy.check_host(host)

    async def _on_page(self, page: "Page") -> None:
        page.on("crash", self._on_crash)
        if len(self._context.pages) > MAX_PAGES:
            await _close_page(page)
        else:
            self._page = page
            self._tab_opened.set()

    def _on_crash(self, _: "Page") -> None:
        self._crashed = True

    def _on_request_failed(self, request: "Request") -> None:
        if request.is_navigation_request():
            self._failed_host = urlsplit(request.url).hostname or ""

    def _on_console(self, message: "ConsoleMessage") -> None:
        self.console.append({"type": message.type, "text": message.text[:MAX_CONSOLE_CHARS]})

    def _on_web_error(self, error: "WebError") -> None:
        self.console.append({"type": "exception", "text": str(error.error)[:MAX_CONSOLE_CHARS]})


async def _find_element(page: "Page", ref: str) -> "Locator":
    """The element with this ref in the latest snapshot."""
    found = REF.fullmatch(ref.strip())
    if found is None:
        raise ToolUseError(f"{ref[:100]!r} is not a ref; give one from browser_snapshot, like e12")
    element = page.get_by_ref(found["ref"])
    if await element.count() == 0:
        raise ToolUseError(f"{found['ref']} is not on the page (any more); take a new snapshot")
    return element


async def _wait_for_error_page(page: "Page") -> None:
    """Wait for Chromium's error page, which would abort the next navigation if it came later."""
    with suppress(TimeoutError):
        async with asyncio.timeout(SETTLE * 5):
            while not page.url.startswith("chrome-error:"):  # noqa: ASYNC110 (Playwright has no reliable event)
                await asyncio.sleep(SETTLE / 10)


async def _wait_for_load(page: "Page") -> None:
    from playwright.async_api import Error

    # Images may take longer; a page is usable without the last one.
    with suppress(Error):
        await page.wait_for_load_state("load", timeout=LOAD_WAIT * 1000)


async def _responds(page: "Page") -> bool:
    """Whether the page can run a script after loading is stopped; a page in an endless loop cannot."""
    with suppress(Exception):
        async with asyncio.timeout(RESPONSE_WAIT):
            devtools = await page.context.new_cdp_session(page)
            await devtools.send("Page.stopLoading")
            await devtools.detach()
            return bool(await page.evaluate("true"))
    return False


async def _close_page(page: "Page") -> None:
    with suppress(Exception):
        async with asyncio.timeout(GRACE):
            await page.close()


async def _location(page: "Page") -> dict[str, Any]:
    if page.url.startswith("chrome-error:"):
        raise ToolUseError("the page could not be loaded: its host is down, unknown or may not be visited; go back")
    return {"url": page.url, "title": (await page.title())[:200]}


def _split(text: str, size: int) -> list[str]:
    """Split the text between lines into parts of about `size` characters."""
    parts: list[str] = []
    lines: list[str] = []
    length = 0
    for line in text.splitlines():
        if lines and length + len(line) > size:
            parts.append("\n".join(lines))
            lines, length = [], 0
        lines.append(line[:size])
        length += len(lines[-1]) + 1
    return [*parts, "\n".join(lines)]
