"""A rich console that prints text as it is: no markup, no emoji codes, control characters in a visible form.

Only the styles of `Text` objects reach the terminal as escape sequences.
"""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType  # noqa: TID251 (the one place)
from rich.segment import Segment
from rich.text import Span, Text

from hermes_rl.console.output import visible


class EscapingConsole(Console):
    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, highlight=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        return super().render(_escaped(renderable) if isinstance(renderable, Text) else renderable, options)


def styled(*parts: str | tuple[str, str]) -> Text:
    """Text in parts; a tuple is text and its style, such as `("failed", "red")`."""
    return Text.assemble(*(visible(part) if isinstance(part, str) else (visible(part[0]), part[1]) for part in parts))


def _escaped(text: Text) -> Text:
    """The same text and styles with control characters visible."""
    if visible(text.plain) == text.plain:
        return text
    letters = text.divide(range(1, len(text.plain)))
    for letter in letters:
        letter.plain = visible(letter.plain)
        letter.spans = [Span(0, len(letter), span.style) for span in letter.spans]
    return text.blank_copy().join(letters)
