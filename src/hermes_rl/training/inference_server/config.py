"""Settings of the inference server, and its chat formats."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Any, TypeAlias

from hermes_rl.core.errors import ConfigError
from hermes_rl.inference.tokens.chat_format import ChatFormat, FormatSettings
from hermes_rl.inference.tokens.factory import chat_format
from hermes_rl.training.request_batching import Window

MEGABYTE = 2**20

# Maps the chat template arguments of a request to a chat format.
Formats: TypeAlias = Callable[[Mapping[str, Any]], ChatFormat]


@dataclass(frozen=True, slots=True)
class InferenceSettings:
    """`model` is the served name. `context_tokens` and `vocabulary` are the model's; None if unknown.

    `hosts` are the allowed Host names of a server without a token; None for any. `max_completions` is per request,
    `max_body` in bytes.
    """

    model: str
    context_tokens: int | None = None
    vocabulary: int | None = None
    token: str | None = None
    hosts: frozenset[str] | None = None
    max_completions: int = 256
    max_body: int = 32 * MEGABYTE
    window: Window = field(default_factory=Window)


class ChatFormats:
    """The chat formats of one tokenizer, in an LRU cache."""

    max_cached = 8

    def __init__(self, tokenizer: Any, settings: FormatSettings) -> None:
        self._tokenizer = tokenizer
        self._settings = settings
        self._cache: OrderedDict[str, ChatFormat] = OrderedDict()
        # A template from a request would run on our event loop for an unbounded time.
        self._reserved = frozenset(signature(tokenizer.apply_chat_template).parameters)
        self({})

    def __call__(self, template: Mapping[str, Any]) -> ChatFormat:
        """The format with these template arguments; raises ConfigError for arguments that a request may not set."""
        if refused := sorted(self._reserved & template.keys()):
            raise ConfigError(f"chat_template_kwargs: a request cannot set {', '.join(refused)}")
        key = repr(sorted(template.items()))
        cached = self._cache.get(key)
        if cached is None:
            arguments = {**self._settings.template, **template}
            cached = self._cache[key] = chat_format(self._tokenizer, replace(self._settings, template=arguments))
            if len(self._cache) > self.max_cached:
                self._cache.popitem(last=False)
        self._cache.move_to_end(key)
        return cached
