"""Chooses the chat format of a model: a hand-written renderer if there is one, otherwise its own chat template."""

from typing import Any

from hermes_rl.inference.tokens.chat_format import ChatFormat, FormatSettings
from hermes_rl.inference.tokens.renderer_format import renderer_format
from hermes_rl.inference.tokens.template_format import TemplateFormat


def chat_format(tokenizer: Any, settings: FormatSettings) -> ChatFormat:
    return renderer_format(tokenizer, settings) or TemplateFormat(tokenizer, settings)
