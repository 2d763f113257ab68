"""One Chromium process and its per-rollout contexts.

A dead browser is replaced when the next rollout asks for a context. Chromium gets only a few environment variables,
none that may hold keys, reaches the network only through our proxy, and ends with this process.
"""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from hermes_rl.console.live_display import warn
from hermes_rl.core.errors import ConfigError, ToolHostError
from hermes_rl.tools.browser.proxy import FilteringProxy
from hermes_rl.tools.browser.settings import BrowserSettings
from hermes_rl.tools.browser.tab import Tab

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
START_TIMEOUT, CLOSE_TIMEOUT = 60.0, 10.0
PASSED_VARIABLES = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
    "XDG_RUNTIME_DIR",
)


class Chromium:
    def __init__(self, settings: BrowserSettings) -> None:
        _require_playwright()
        self.settings = settings
        self.executable = find_executable(settings.executable)
        self.proxy = FilteringProxy(settings.policy())
        self.start_count = 0
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None
        self._starting = asyncio.Lock()
        self._opened = AsyncExitStack()

    async def __aenter__(self) -> Self:
        if not self._sandboxed:
            why = "it cannot start as root" if self.settings.chromium_sandbox is None else "by chromium_sandbox"
            warn(
                f"Chromium's own sandbox is off ({why}): a page that exploits Chromium has the rights of this process. "
                "Run as another user to visit pages that you do not trust"
            )
        async with AsyncExitStack() as opening:
            await opening.enter_async_context(self.proxy)
            try:
                await self._running_browser()
            except ToolHostError as error:
                raise ConfigError(f"the browser toolset is not available here: {error}") from None
            self._opened = opening.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()
        await self._opened.aclose()

    @property
    def _sandboxed(self) -> bool:
        chosen = self.settings.chromium_sandbox
        return os.geteuid() != 0 if chosen is None else chosen

    @asynccontextmanager
    async def tab(self) -> AsyncIterator[Tab]:
        """A private context: no cookies, storage or cache are shared between rollouts."""
        browser, context = await self._new_context()
        try:
            yield await Tab.open(browser, context, self.settings, self.proxy)
        finally:
            await _close_quietly(context.close())

    async def _new_context(self) -> "tuple[Browser, BrowserContext]":
        from playwright.async_api import Error

        width, height = self.settings.viewport
        for attempt in (1, 2):
            browser = await self._running_browser()
            try:
                async with asyncio.timeout(START_TIMEOUT):
                    # Fixed locale and time zone, so that pages look the same on every machine.
                    context = await browser.new_context(
                        viewport={"width": width, "height": height},
                        accept_downloads=False,
                        locale="en-US",
                        timezone_id="UTC",
                    )
                return browser, context
            except (Error, TimeoutError) as error:
                # It may have died without being reported yet.
                if attempt == 2:
                    raise ToolHostError("browser_start", f"Chromium cannot open a page: {_shorten(error)}") from None
                await self._stop(browser)
        raise AssertionError("unreachable")

    async def _running_browser(self) -> "Browser":
        async with self._starting:
            if self._browser is None or not self._browser.is_connected():
                await self._close_all()
                self._browser = await self._start()
            return self._browser

    async def _start(self) -> "Browser":
        from playwright.async_api import Error, async_playwright

        try:
            async with asyncio.timeout(START_TIMEOUT):
                self._playwright = await async_playwright().start()
                browser = await self._playwright.chromium.launch(
                    executable_path=self.executable,
                    headless=self.settings.headless,
                    args=self.settings.arguments(self.proxy.url),
                    chromium_sandbox=self._sandboxed,
                    env={name: os.environ[name] for name in PASSED_VARIABLES if name in os.environ},
                )
        except (Error, OSError, TimeoutError) as error:
            await self._close_all()
            raise ToolHostError("browser_start", f"{self.executable} does not start: {_shorten(error)}") from None
        except BaseException:
            await self._close_all()
            raise
        self.start_count += 1
        return browser

    async def _stop(self, browser: "Browser | None" = None) -> None:
        """Close the browser; with an argument, only if that one is still current."""
        async with self._starting:
            if browser is None or self._browser is browser:
                await self._close_all()

    async def _close_all(self) -> None:
        playwright, browser, self._playwright, self._browser = self._playwright, self._browser, None, None
        if browser is not None:
            await _close_quietly(browser.close())
        if playwright is not None:
            await _close_quietly(playwright.stop())


def find_executable(configured: str | None) -> str:
    """The Chromium executable; ConfigError with what to install when there is none."""
    if configured is not None:
        path = shutil.which(Path(configured).expanduser())
        if path is None:
            raise ConfigError(f"tool_settings.browser.executable: {configured} is not a program on this machine")
        return path
    for name in NAMES:
        if path := shutil.which(name):
            return path
    raise ConfigError(
        f"the browser toolset needs Chromium and found none of {', '.join(NAMES)}; install it (on Debian: "
        "apt-get install chromium) or set tool_settings.browser.executable"
    )


async def _close_quietly(closing: Awaitable[None]) -> None:
    """Close something that may already be dead."""
    with suppress(Exception):
        async with asyncio.timeout(CLOSE_TIMEOUT):
            await closing


def _require_playwright() -> None:
    try:
        import playwright.async_api  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"the browser toolset needs the browser extra ({error}): pip install 'hermes-rl[browser]'"
        ) from None


def _shorten(error: BaseException) -> str:
    return str(error)[:1000] or type(error).__name__
