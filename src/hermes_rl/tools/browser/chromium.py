"""One Chromium, and the contexts of rollouts in it.

A browser that died is noticed when the next rollout asks for a context, and that rollout gets a fresh one. Chromium
is told none of our environment variables, where keys are; it ends with this process, however that ends.
"""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from hermes_rl.errors import ConfigError, ToolHostError
from hermes_rl.tools.browser.settings import BrowserSettings
from hermes_rl.tools.browser.tab import Tab

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
START_TIMEOUT, CLOSE_TIMEOUT = 60.0, 10.0
# What a program needs to find its files and its screen.
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "XDG_RUNTIME_DIR")


class Chromium:
    def __init__(self, settings: BrowserSettings) -> None:
        _need_playwright()
        self.settings = settings
        self.executable = found_executable(settings.executable)
        self.started = 0
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None
        self._starting = asyncio.Lock()

    async def __aenter__(self) -> Self:
        try:
            await self._living()
        except ToolHostError as error:
            raise ConfigError(f"the browser toolset cannot work here: {error}") from None
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    @asynccontextmanager
    async def tab(self) -> AsyncIterator[Tab]:
        """A context of its own: no cookie, storage or cache is shared with another rollout's."""
        browser, context = await self._new_context()
        try:
            yield await Tab.opened(browser, context, self.settings)
        finally:
            await _closed(context.close())

    async def _new_context(self) -> "tuple[Browser, BrowserContext]":
        from playwright.async_api import Error

        width, height = self.settings.viewport
        for attempt in (1, 2):
            browser = await self._living()
            try:
                async with asyncio.timeout(START_TIMEOUT):
                    # A fixed place and time, so that a page shows the same on every machine.
                    context = await browser.new_context(
                        viewport={"width": width, "height": height},
                        accept_downloads=False,
                        locale="en-US",
                        timezone_id="UTC",
                    )
                return browser, context
            except (Error, TimeoutError) as error:
                # It may have died a moment ago, with the news still on its way.
                if attempt == 2:
                    raise ToolHostError("browser_start", f"Chromium opens no page: {_short(error)}") from None
                await self._stop(browser)
        raise AssertionError("unreachable")

    async def _living(self) -> "Browser":
        async with self._starting:
            if self._browser is None or not self._browser.is_connected():
                await self._end()
                self._browser = await self._start()
            return self._browser

    async def _start(self) -> "Browser":
        from playwright.async_api import Error, async_playwright

        sandbox = self.settings.chromium_sandbox
        try:
            async with asyncio.timeout(START_TIMEOUT):
                self._playwright = await async_playwright().start()
                browser = await self._playwright.chromium.launch(
                    executable_path=self.executable,
                    headless=self.settings.headless,
                    args=self.settings.arguments(),
                    chromium_sandbox=os.geteuid() != 0 if sandbox is None else sandbox,
                    env={name: os.environ[name] for name in PASSED_ON if name in os.environ},
                )
        except (Error, OSError, TimeoutError) as error:
            await self._end()
            raise ToolHostError("browser_start", f"{self.executable} does not start: {_short(error)}") from None
        except BaseException:
            await self._end()
            raise
        self.started += 1
        return browser

    async def _stop(self, browser: "Browser | None" = None) -> None:
        """Close the browser, or only if it is still this one."""
        async with self._starting:
            if browser is None or self._browser is browser:
                await self._end()

    async def _end(self) -> None:
        playwright, browser, self._playwright, self._browser = self._playwright, self._browser, None, None
        if browser is not None:
            await _closed(browser.close())
        if playwright is not None:
            await _closed(playwright.stop())


def found_executable(named: str | None) -> str:
    """The Chromium to start; ConfigError that says what to install when there is none."""
    if named is not None:
        path = shutil.which(Path(named).expanduser())
        if path is None:
            raise ConfigError(f"tool_settings.browser.executable: {named} is no program on this machine")
        return path
    for name in NAMES:
        if path := shutil.which(name):
            return path
    raise ConfigError(
        f"the browser toolset needs Chromium and found none of {', '.join(NAMES)}; install it (on Debian: "
        "apt-get install chromium) or set tool_settings.browser.executable"
    )


async def _closed(closing: Awaitable[None]) -> None:
    """What is being closed may be dead already."""
    with suppress(Exception):
        async with asyncio.timeout(CLOSE_TIMEOUT):
            await closing


def _need_playwright() -> None:
    try:
        import playwright.async_api  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"the browser toolset needs the browser extra ({error}): pip install 'hermes-rl[browser]'"
        ) from None


def _short(error: BaseException) -> str:
    return str(error)[:1000] or type(error).__name__
