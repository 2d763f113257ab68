"""Thinking that a model wrote into its answer, between `<think>` and `</think>`, apart from what it said."""

OPEN, CLOSE = "<think>", "</think>"


def split_thinking(text: str) -> tuple[str | None, str]:
    """(the thinking or None, the rest). Thinking that was never closed leaves nothing said.

    Some templates put `<think>` into the prompt, so a text may begin inside it and only close it.
    """
    start = text.lstrip()
    if not start.startswith(OPEN):
        before, closed, rest = text.partition(CLOSE)
        return (before.strip(), rest.lstrip()) if closed and OPEN not in before else (None, text)
    thought, _, rest = start.removeprefix(OPEN).partition(CLOSE)
    return thought.strip(), rest.lstrip()
