"""Where a person sees how it goes: a console on standard error, with a picture that is drawn anew, or plain lines.

Always true: what is drawn is what was told last, whole; time goes on in it even when nothing is told.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from hermes_rl.terminal.look import Look, picture

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

LINE_EVERY = 10.0
REFRESH = 0.5
SHOWN = 300
_DRAWN_ON: ContextVar["Console | None"] = ContextVar("drawn_on", default=None)


def console() -> "Console":
    """Where to print: above what is drawn live, if something is."""
    from rich.console import Console

    return _DRAWN_ON.get() or Console(stderr=True, highlight=False)


@contextmanager
def drawn_on(screen: "Console") -> Iterator[None]:
    """Within this block something is drawn live there; whoever wrote past that console would tear it."""
    before = _DRAWN_ON.set(screen)
    try:
        yield
    finally:
        _DRAWN_ON.reset(before)


class Drawing:
    """What is drawn now. A look is made by whoever knows, on their own thread; drawing only reads it."""

    def __init__(self, look: Look) -> None:
        self.look = look

    def __rich__(self) -> "RenderableType":
        return picture(self.look)


@contextmanager
def drawing(screen: "Console", look: Look) -> Iterator[Drawing]:
    """Draw a look until the end of the block; set `look` to change it. The last one stays on the screen."""
    from rich.live import Live

    shown = Drawing(look)
    with drawn_on(screen), Live(shown, console=screen, refresh_per_second=1 / REFRESH):
        yield shown


def say(line: str) -> None:
    """A line where there is no terminal."""
    sys.stderr.write(" ".join(line.splitlines()).rstrip() + "\n")
    sys.stderr.flush()


def short(text: str) -> str:
    """Text of others on one line, as it may be printed by rich."""
    line = " ".join(text.split())
    return (line if len(line) <= SHOWN else line[:SHOWN] + "…").replace("[", r"\[")
