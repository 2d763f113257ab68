"""The one look of every command that takes a while: where it is drawn, and what a look holds.

Always true: all of it goes to standard error, so that `--json` leaves standard output to programs; without a terminal
nothing is drawn, and a line now and then is said.
"""

from hermes_rl.terminal.look import Look, counts, picture, score_text, sparkline
from hermes_rl.terminal.screen import LINE_EVERY, REFRESH, Drawing, console, drawing, drawn_on, say, short

__all__ = [
    "LINE_EVERY",
    "REFRESH",
    "Drawing",
    "Look",
    "console",
    "counts",
    "drawing",
    "drawn_on",
    "picture",
    "say",
    "score_text",
    "short",
    "sparkline",
]
