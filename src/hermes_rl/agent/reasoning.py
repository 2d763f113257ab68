"""Separates the reasoning that a model wrote between `<think>` and `</think>` from the rest of its answer.

For text from a chat endpoint. inference/tokens/reasoning.py is for messages that a chat template renders to tokens.
"""

OPEN, CLOSE = "<think>", "</think>"


def split_reasoning(text: str) -> tuple[str | None, str]:
    """(the reasoning or None, the rest). Reasoning that is never closed leaves no rest.

    Some templates put `<think>` into the prompt, so a text may start inside it and only close it.
    """
    start = text.lstrip()
    if not start.startswith(OPEN):
        before, closed, rest = text.partition(CLOSE)
        return (before.strip(), rest.lstrip()) if closed and OPEN not in before else (None, text)
    reasoning, _, rest = start.removeprefix(OPEN).partition(CLOSE)
    return reasoning.strip(), rest.lstrip()
