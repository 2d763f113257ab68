"""Normalizes prompts, text or ids, one or many, to a list of id lists."""

from collections.abc import Sequence

from hermes_rl.inference.tokens.chat_format import ChatFormat


def encode_prompts(
    prompt: str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]], chat_format: ChatFormat
) -> tuple[list[list[int]], bool]:
    """The ids of each prompt, and whether it was a single prompt."""
    if isinstance(prompt, str):
        return [chat_format.encode(prompt)], True
    single = [item for item in prompt if isinstance(item, int)]
    many = [item for item in prompt if not isinstance(item, int)]
    if single:
        return [single], True
    return [chat_format.encode(item) if isinstance(item, str) else list(item) for item in many], False
