"""Which chat format a model gets: a hand-written renderer where there is one, else its own template, checked."""

from typing import Any

from hermes_rl.tokens.chat_format import ChatFormat, FormatSettings
from hermes_rl.tokens.renderer_format import renderer_for
from hermes_rl.tokens.template_format import TemplateFormat


def chat_format(tokenizer: Any, settings: FormatSettings) -> ChatFormat:
    return renderer_for(tokenizer, settings) or TemplateFormat(tokenizer, settings)
