"""Completion: the sampled tokens, the stop that ended them, and the text without it.

Always true: it makes no difference whether the sampler honours stop strings: the tokens end with the one that completes
the stop string, and the text ends before it.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from hermes_rl.inference.token_engines import SamplingRequest
from hermes_rl.inference.tokens.chat_format import ChatFormat
from hermes_rl.inference.tokens.sampled import Finish, Sampled


class Completion(NamedTuple):
    """`matched` is the stop string or token that ended it, `before` the text up to a stop string."""

    sampled: Sampled
    matched: str | int | None = None
    before: str | None = None

    @property
    def finish_reason(self) -> str:
        """In OpenAI's terms, where a full context is `length` too."""
        return "stop" if self.sampled.finish is Finish.STOP else "length"

    def text(self, chat_format: ChatFormat) -> str:
        if self.before is not None:
            return self.before
        return chat_format.decode(self.sampled.tokens if self.matched is None else self.sampled.tokens[:-1])

    def readable(self, chat_format: ChatFormat) -> Sequence[int]:
        """The ids to parse a reply from, without a stop that the format does not know."""
        tokens = self.sampled.tokens
        if self.before is None:
            own = self.matched is None or self.matched in chat_format.stop_token_ids
            return tokens if own else tokens[:-1]
        # The last few tokens hold the stop string, and possibly the end of the text before it.
        count = len(tokens)
        while not self.before.startswith(text := chat_format.decode(tokens[:count])):
            count -= 1
        return [*tokens[:count], *chat_format.encode(self.before.removeprefix(text))]


def end_at_stop(sampled: Sampled, request: SamplingRequest, chat_format: ChatFormat) -> Completion:
    """Cut a completion at the first stop string of the request."""
    tokens, stop = sampled.tokens, request.stop

    def holds_stop(count: int) -> bool:
        text = chat_format.decode(tokens[:count])
        return any(string in text for string in stop)

    if not stop or not holds_stop(len(tokens)):
        by_token = sampled.finish is Finish.STOP and tokens and tokens[-1] in request.stop_token_ids
        return Completion(sampled, tokens[-1] if by_token else None)
    count = bisect_left(range(len(tokens)), True, key=holds_stop)
    text = chat_format.decode(tokens[:count])
    position, matched = min((text.find(string), string) for string in stop if string in text)
    cut = Sampled(tokens[:count], sampled.logprobs[:count], sampled.versions[:count], Finish.STOP)
    return Completion(cut, matched, text[:position])
