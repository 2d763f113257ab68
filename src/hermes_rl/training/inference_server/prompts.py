"""Prompts as bodies hold them, text or ids, one or many: always a list of lists of ids from here on."""

from collections.abc import Sequence

from hermes_rl.tokens.chat_format import ChatFormat


def encoded_prompts(
    prompt: str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]], chat_format: ChatFormat
) -> tuple[list[list[int]], bool]:
    """The ids of each prompt, and whether it was one alone."""
    if isinstance(prompt, str):
        return [chat_format.encode(prompt)], True
    alone = [one for one in prompt if isinstance(one, int)]
    many = [one for one in prompt if not isinstance(one, int)]
    if alone:
        return [alone], True
    return [chat_format.encode(one) if isinstance(one, str) else list(one) for one in many], False
