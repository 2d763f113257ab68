"""How an inference server is run, as one value, and how it writes conversations."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Any, TypeAlias

from hermes_rl.errors import ConfigError
from hermes_rl.tokens.chat_format import ChatFormat, FormatSettings
from hermes_rl.tokens.formats import chat_format
from hermes_rl.training.coalescing import Window

MEGABYTE = 2**20

# The format of conversations, by the arguments that a request has for the chat template.
Formats: TypeAlias = Callable[[Mapping[str, Any]], ChatFormat]


@dataclass(frozen=True, slots=True)
class InferenceSettings:
    """`model` is the name it goes by. `context_tokens` and `vocabulary` are the model's; None where nobody knows them.

    `hosts` are the names under which a server without a token may be called; None for any. `max_completions` are those
    of one request, `max_body` its size in bytes.
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
    """The formats of one tokenizer, made when they are first asked for; the few used last are kept."""

    most = 8

    def __init__(self, tokenizer: Any, settings: FormatSettings) -> None:
        self._tokenizer = tokenizer
        self._settings = settings
        self._made: OrderedDict[str, ChatFormat] = OrderedDict()
        # A template of a caller's own would run on our loop, for as long as it likes.
        self._not_theirs = frozenset(signature(tokenizer.apply_chat_template).parameters)
        self({})

    def __call__(self, template: Mapping[str, Any]) -> ChatFormat:
        """The format with these arguments for the template; ConfigError when they are not for a caller to set."""
        if refused := sorted(self._not_theirs & template.keys()):
            raise ConfigError(f"chat_template_kwargs: {', '.join(refused)} is not for a request to set")
        key = repr(sorted(template.items()))
        made = self._made.get(key)
        if made is None:
            arguments = {**self._settings.template, **template}
            made = self._made[key] = chat_format(self._tokenizer, replace(self._settings, template=arguments))
            if len(self._made) > self.most:
                self._made.popitem(last=False)
        self._made.move_to_end(key)
        return made
