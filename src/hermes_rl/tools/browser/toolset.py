"""The `browser` toolset's tools. Refs come from the latest snapshot and are valid only for its page."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

from pydantic import Field

from hermes_rl.tools.browser.chromium import Chromium
from hermes_rl.tools.browser.settings import BrowserSettings
from hermes_rl.tools.browser.tab import Tab
from hermes_rl.tools.session import ToolSession
from hermes_rl.tools.tool import tool
from hermes_rl.tools.toolset import OpenToolset, Toolset


@tool(sandboxed=False)
async def browser_navigate(session: ToolSession, url: str) -> dict[str, Any]:
    """Open a web page in the browser. See what is on it with browser_snapshot.

    Args:
        url: Address of the page, with http:// or https://.
    """
    return await (await _tab(session)).navigate(url)


@tool(sandboxed=False)
async def browser_snapshot(session: ToolSession, part: Annotated[int, Field(ge=1)] = 1) -> dict[str, Any]:
    """See the page: its text and controls, each with a ref such as e12 for browser_click and browser_type.

    Args:
        part: Which part to see, for a page whose snapshot is said to have several.
    """
    return await (await _tab(session)).snapshot(part)


@tool(sandboxed=False)
async def browser_click(session: ToolSession, ref: str) -> dict[str, Any]:
    """Click an element of the page.

    Args:
        ref: The element's ref in the latest snapshot, such as e12.
    """
    return await (await _tab(session)).click(ref)


@tool(sandboxed=False)
async def browser_type(session: ToolSession, ref: str, text: str, submit: bool = False) -> dict[str, Any]:
    """Fill in a field of the page, in place of what is in it; in a list of options, choose the one with this text.

    Args:
        ref: The field's ref in the latest snapshot, such as e12.
        text: What to fill in.
        submit: Press Enter afterwards.
    """
    return await (await _tab(session)).type(ref, text, submit)


@tool(sandboxed=False)
async def browser_scroll(session: ToolSession, direction: Literal["up", "down"]) -> dict[str, Any]:
    """Scroll the page by most of its visible height, for pages that load more when scrolled.

    Args:
        direction: up or down.
    """
    return await (await _tab(session)).scroll(direction)


@tool(sandboxed=False)
async def browser_back(session: ToolSession) -> dict[str, Any]:
    """Go back to the page before this one."""
    return await (await _tab(session)).back()


@tool(sandboxed=False)
async def browser_press(session: ToolSession, key: str) -> dict[str, Any]:
    """Press a key, in whatever has the focus.

    Args:
        key: Its name, such as Enter, Tab, Escape, ArrowDown, a, or Control+a.
    """
    return await (await _tab(session)).press(key)


@tool(sandboxed=False)
async def browser_get_images(session: ToolSession) -> dict[str, Any]:
    """List the images of the page, each with its address, description and size."""
    return {"images": await (await _tab(session)).images()}


@tool(sandboxed=False)
async def browser_console(session: ToolSession) -> dict[str, Any]:
    """Read what the pages visited wrote to the browser's console, errors of their scripts too; the newest is last."""
    return {"messages": list((await _tab(session)).console)}


@asynccontextmanager
async def open_browser(settings: BrowserSettings) -> AsyncIterator[OpenToolset]:
    async with Chromium(settings) as chromium:
        yield OpenToolset(BROWSER.tools, chromium)


BROWSER = Toolset(
    "browser",
    (
        browser_navigate,
        browser_snapshot,
        browser_click,
        browser_type,
        browser_scroll,
        browser_back,
        browser_press,
        browser_get_images,
        browser_console,
    ),
    BrowserSettings,
    open_browser,
)


async def _tab(session: ToolSession) -> Tab:
    chromium: Chromium = session.service("browser")
    return await session.resource("browser", chromium.tab)
