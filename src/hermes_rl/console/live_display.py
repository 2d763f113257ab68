"""A console on standard error with a live panel, or plain lines without a terminal.

The last panel set is redrawn twice a second, so its elapsed time advances without updates.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from hermes_rl.console.output import visible
from hermes_rl.console.panel import Panel, render_panel
from hermes_rl.core.redaction import redact_urls

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hermes_rl.console.escaping_console import EscapingConsole

LINE_EVERY = 10.0
REFRESH = 0.5
SHOWN = 300
_LIVE_CONSOLE: ContextVar["EscapingConsole | None"] = ContextVar("live_console", default=None)


def console() -> "EscapingConsole":
    """The console to print to; prints above the live panel if there is one."""
    from hermes_rl.console.escaping_console import EscapingConsole

    return _LIVE_CONSOLE.get() or EscapingConsole(stderr=True)


@contextmanager
def live_console(screen: "EscapingConsole") -> Iterator[None]:
    """Make `console()` return this console, because writing past it would break the live panel."""
    before = _LIVE_CONSOLE.set(screen)
    try:
        yield
    finally:
        _LIVE_CONSOLE.reset(before)


class LiveDisplay:
    """Holds the current panel. Panels are built on the caller's thread; drawing only reads them."""

    def __init__(self, panel: Panel) -> None:
        self.panel = panel

    def __rich__(self) -> "RenderableType":
        return render_panel(self.panel)


@contextmanager
def live_panel(screen: "EscapingConsole", panel: Panel) -> Iterator[LiveDisplay]:
    """Draw a panel until the end of the block; set `panel` to change it. The last one stays on screen."""
    from rich.live import Live

    display = LiveDisplay(panel)
    with live_console(screen), Live(display, console=screen, refresh_per_second=1 / REFRESH):
        yield display


def write_line(line: str) -> None:
    """Print a line to standard error, above the live panel if there is one."""
    sys.stderr.write(visible(redact_urls(" ".join(line.splitlines()).rstrip())) + "\n")  # noqa: TID251 (escaped)
    sys.stderr.flush()


def warn(problem: str) -> None:
    """Print a warning to standard error, on one line."""
    write_line(f"warning: {problem}")


def shorten(text: str) -> str:
    """Text on one line, truncated."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN else line[:SHOWN] + "…"
