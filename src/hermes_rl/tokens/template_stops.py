"""The tokens that end a turn of a model whose chat template is all we know of it.

Always true: the first of them is the one the template itself writes there, if it writes any.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hermes_rl.errors import AuthorError
from hermes_rl.messages import Message, ToolCall
from hermes_rl.tokens.chat_template import ChatTemplate
from hermes_rl.tokens.template_traits import PROBE_ID, generation_prompt
from hermes_rl.tokens.tokenizer import decoded


def found_stops(template: ChatTemplate, tokenizer: Any) -> dict[str, int]:
    """The tokens a turn ends with, by their texts: the template's own first, then the model's others."""
    added: dict[str, int] = {
        **{text: tokenizer.convert_tokens_to_ids(text) for text in tokenizer.all_special_tokens},
        **tokenizer.get_added_vocab(),
    }
    stops = _found_in(template.after_answer, added)[:1]
    between = _between_turns(template)
    if not stops:
        # GLM's turns have no end of their own: a model stops with what opens the next one.
        stops = [text for gap in between for text in _found_in(gap, added)[:1]]
    elif template.traits.calls:
        stops += _end_of_calls(template, added)
    opening = generation_prompt(template.render, template.made_up)
    opening += "".join(gap.partition(stops[0])[2] if stops else gap for gap in between)
    found = {text: added[text] for text in stops}
    for extra in _model_stops(tokenizer):
        text = decoded(tokenizer, [extra])
        # A GGUF's eos may be the token that opens a turn.
        if text and text not in opening:
            found.setdefault(text, extra)
    return found


def _between_turns(template: ChatTemplate) -> list[str]:
    """What stands between an answer and the user's or a tool's message behind it."""
    made_up, gaps = template.made_up, []
    for role in ("user", "tool"):
        adapted = template.adapted([{"role": role, "tool_call_id": PROBE_ID, "content": f"{made_up.past}N"}])
        try:
            text = template.render([made_up.user, made_up.said, *adapted], None)
        except AuthorError:
            continue
        gaps.append(text.partition(made_up.turn)[2].partition(f"{made_up.past}N")[0])
    return gaps


def _end_of_calls(template: ChatTemplate, added: Mapping[str, int]) -> list[str]:
    made_up = template.made_up
    call = ToolCall.make(made_up.past, json.dumps({"name": made_up.turn}), PROBE_ID)
    message: Message = {"role": "assistant", "content": "", "tool_calls": [call.as_dict()]}
    try:
        text = template.render(template.adapted([made_up.user, message]), None, generate=False)
    except AuthorError:
        return []
    return _found_in(text.rpartition(made_up.turn)[2], added)[-1:]


def _model_stops(tokenizer: Any) -> list[int]:
    """The tokenizer's end of text, and what the model's folder says generation stops at."""
    stops = [tokenizer.eos_token_id]
    folder = getattr(tokenizer, "name_or_path", "")
    if folder and (said := Path(folder) / "generation_config.json").is_file():
        named = json.loads(said.read_text()).get("eos_token_id")
        stops += named if isinstance(named, list) else [named]
    return [stop for stop in stops if isinstance(stop, int)]


def _found_in(text: str, tokens: Mapping[str, int]) -> list[str]:
    """The tokens that stand in the text, in order."""
    pattern = "|".join(re.escape(token) for token in sorted(tokens, key=len, reverse=True))
    return re.findall(pattern, text) if pattern else []
