import copy
import json
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from hermes_rl.core.errors import ConfigError, EnvironmentCodeError
from hermes_rl.core.messages import Message
from hermes_rl.inference.tokens.chat_format import FormatSettings, Reply, Turn
from hermes_rl.inference.tokens.template_format import TemplateFormat
from tests.support.chat_models import FAMILIES, chat_model

# A busy machine is no failure.
UNHURRIED = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])

PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "ls", "description": "Lists.", "parameters": PARAMETERS}}]
HERMES_CALL = '<tool_call>\n{"name": "ls", "arguments": {"path": "x"}}\n</tool_call>'
DEEPSEEK_CALL = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>ls\n"
    '```json\n{"path": "x"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
)
# A call, and plain words, as a model of the family samples them and its template writes them.
CALLS = {
    "chatml": HERMES_CALL,
    "qwen3": HERMES_CALL,
    "llama3": '{"name": "ls", "parameters": {"path": "x"}}',
    "mistral": '[TOOL_CALLS] [{"name": "ls", "arguments": {"path": "x"}, "id": "abcdefghi"}]',
    "deepseek": DEEPSEEK_CALL,
    "deepseek_r1": f"Hm.\n</think>\n\n{DEEPSEEK_CALL}",
    "glm": "\n<think></think>\n<tool_call>ls\n<arg_key>path</arg_key>\n<arg_value>x</arg_value>\n</tool_call>",
}
WORDS = dict.fromkeys(FAMILIES, "It is done ✓") | {
    "mistral": " It is done ✓",
    "deepseek_r1": "Hm.\n</think>\n\nIt is done ✓",
    "glm": "\n<think></think>\nIt is done ✓",
}
# A prompt that ends in an opened thinking is never written so again, and DeepSeek R1's do.
EXTENDING = [family for family in FAMILIES if family != "deepseek_r1"]
USER: Message = {"role": "user", "content": "Naïve café 😀?"}
NEXT: Message = {"role": "user", "content": "And then? 你好"}
PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
BRIEF: Message = {"role": "system", "content": "Be brief."}
RESULT: Message = {"role": "tool", "tool_call_id": "abcdefghi", "content": "a.txt\nb.txt"}


class Spoken(NamedTuple):
    """A turn and what it was read as."""

    turn: Turn
    reply: Reply

    @property
    def history(self) -> list[Message]:
        return list(self.turn.history)


def format_of(family: str, **changed: Any) -> TemplateFormat:
    model = chat_model(family)
    return TemplateFormat(model.tokenizer, FormatSettings(parser=model.parser, **changed))


def said(text: str) -> Message:
    return {"role": "assistant", "content": text}


def with_template(template: str, /, **changed: Any) -> TemplateFormat:
    """Of the ChatML tokenizer with another template."""
    tokenizer = copy.copy(chat_model("chatml").tokenizer)
    tokenizer.chat_template = template
    return TemplateFormat(tokenizer, FormatSettings(**changed))


def token(family: str, text: str) -> int:
    return int(chat_model(family).tokenizer.convert_tokens_to_ids(text))


def stop(family: str, *, tool: bool = False) -> list[int]:
    return [token(family, "<|observation|>")] if family == "glm" and tool else [chat_model(family).stop_ids[0]]


def speak(
    chat: TemplateFormat, history: list[Message], text: str, ended: list[int], tools: list[dict[str, Any]]
) -> Spoken:
    """The model is given the history and samples this text."""
    prompt = chat.prompt(history, tools)
    sampled = chat.encode(text) + ended
    reply = chat.reply(sampled, prompt, tools)
    message: Message = {"role": "assistant", "content": reply.content}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [{**call.as_dict(), "id": "abcdefghi"} for call in reply.calls]
    return Spoken(Turn(prompt, sampled, [*history, message]), reply)


def followed(
    chat: TemplateFormat, spoken: Spoken, new: list[Message], tools: list[dict[str, Any]]
) -> tuple[str | None, str]:
    """The text of the stream with what follows, and the template's own."""
    following = chat.continuation(spoken.turn, new, tools)
    whole = chat.transcript([*spoken.history, *new], tools)
    if following is None:
        return None, whole
    return chat.decode([*spoken.turn.prompt, *spoken.turn.sampled, *following]), whole


# --- prompts ---


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_holds_the_templates_text(family: str) -> None:
    chat = format_of(family)
    assert chat.decode(chat.prompt([USER], TOOLS)) == chat.transcript([USER], TOOLS)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_special_token_is_added_to_what_the_template_writes(family: str) -> None:
    tokenizer, chat = chat_model(family).tokenizer, format_of(family)
    written = tokenizer.apply_chat_template([USER], add_generation_prompt=True, tokenize=False)
    assert chat.decode(chat.prompt([USER], [])) == written


@pytest.mark.parametrize("family", FAMILIES)
def test_every_template_is_told_of_the_tools(family: str) -> None:
    assert '"ls"' in format_of(family).transcript([USER], TOOLS)


@pytest.mark.parametrize("family", FAMILIES)
def test_with_the_tool_prompt_off_no_tool_reaches_the_prompt(family: str) -> None:
    assert '"ls"' not in format_of(family, tool_prompt=False).transcript([USER], TOOLS)


def test_a_default_system_message_stands_when_nobody_gives_another() -> None:
    assert "named Smol" in format_of("chatml").transcript([USER], [])


def test_the_tools_are_added_to_the_system_message_that_is_there() -> None:
    text = format_of("chatml").transcript([BRIEF, USER], TOOLS)
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools")


def test_without_a_system_role_the_tools_stand_in_the_first_message() -> None:
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    text = with_template(refusing + PLAIN).transcript([USER], TOOLS)
    assert text.startswith("<|im_start|>user\n# Tools") and USER["content"] in text


def test_calls_are_written_as_text_where_the_template_drops_them() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "ls", "arguments": '{"path":"x"}'}}
    said: Message = {"role": "assistant", "content": "Let me look.", "tool_calls": [call]}
    assert f"assistant\nLet me look.\n{HERMES_CALL}<|im_end|>" in format_of("chatml").transcript([USER, said], TOOLS)


@pytest.mark.parametrize("tool_prompt", [True, False])
def test_results_are_wrapped_where_the_template_does_not(tool_prompt: bool) -> None:
    chat = format_of("chatml", tool_prompt=tool_prompt)
    text = chat.transcript([USER, {"role": "assistant", "content": HERMES_CALL}, RESULT], TOOLS)
    assert "<|im_start|>tool\n<tool_response>\na.txt\nb.txt\n</tool_response><|im_end|>" in text


def test_results_that_are_wrapped_already_stay_as_they_are() -> None:
    wrapped: Message = {"role": "tool", "content": "<tool_response>\n417\n</tool_response>"}
    text = format_of("chatml", tool_prompt=False).transcript([USER, {"role": "assistant", "content": ""}, wrapped], [])
    assert text.count("<tool_response>") == 1


def test_without_a_tool_role_results_are_one_message_of_the_user() -> None:
    refusing = "{% for m in messages if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endfor %}"
    text = with_template(refusing + PLAIN).transcript([USER, said("Look."), RESULT, RESULT], [])
    assert text.count("<|im_start|>user") == 2 and text.count("<tool_response>") == 2


def test_a_message_says_all_it_says_where_the_template_would_drop_words_beside_a_call() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "ls", "arguments": '{"path":"x"}'}}
    message: Message = {"role": "assistant", "content": "Let me look.", "tool_calls": [call]}
    text = format_of("llama3").transcript([USER, message], TOOLS)
    assert f"Let me look.\n{CALLS['llama3']}<|eot_id|>" in text


def test_two_calls_are_written_as_text_where_the_template_refuses_them() -> None:
    calls = [
        {"id": f"call_{place}", "type": "function", "function": {"name": "ls", "arguments": '{"path":"x"}'}}
        for place in range(2)
    ]
    message: Message = {"role": "assistant", "content": "", "tool_calls": calls}
    assert f"{CALLS['llama3']}; {CALLS['llama3']}<|eot_id|>" in format_of("llama3").transcript([USER, message], TOOLS)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("arguments", ['{"path": [1, {"a": null}]}', "[1]", "{broken", ""])
def test_no_arguments_of_a_model_make_a_prompt_fail(family: str, arguments: str) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "ls", "arguments": arguments}}
    message: Message = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert "ls" in format_of(family, tool_prompt=False).transcript([USER, message, RESULT], TOOLS)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_text_of_a_call_nobody_could_read_stays_in_the_prompt(family: str) -> None:
    good = {"id": "call_1", "type": "function", "function": {"name": "ls", "arguments": '{"path":"x"}'}}
    unread = {"id": "call_2", "type": "function", "function": {"name": "", "arguments": "{not json"}}
    message: Message = {"role": "assistant", "content": "", "tool_calls": [good, unread]}
    told = [RESULT, {**RESULT, "tool_call_id": "call_2"}]
    assert "{not json" in format_of(family).transcript([USER, message, *told], TOOLS)


def test_ids_are_made_short_for_templates_that_refuse_long_ones() -> None:
    call = {"id": "call_0123456789", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
    message: Message = {"role": "assistant", "content": "", "tool_calls": [call]}
    result: Message = {"role": "tool", "tool_call_id": "call_0123456789", "content": "x"}
    text = format_of("mistral").transcript([USER, message, result], TOOLS)
    written = text.partition('"id": "')[2][:9]
    assert f'"call_id": "{written}"' in text


def test_half_a_surrogate_pair_in_a_message_is_no_failure() -> None:
    chat = format_of("chatml")
    assert "a�b" in chat.decode(chat.prompt([{"role": "user", "content": "a\ud800b"}], []))


def test_parts_of_text_are_joined() -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    assert "one two" in format_of("chatml").transcript([{"role": "user", "content": parts}], [])


def test_a_conversation_the_template_refuses_is_the_authors_fault_and_says_why() -> None:
    with pytest.raises(EnvironmentCodeError, match="only user, assistant and tool roles are known"):
        format_of("mistral").prompt([USER, said("Yes."), {"role": "narrator", "content": "Later."}], [])


def test_a_tokenizer_without_a_template_is_refused() -> None:
    tokenizer = copy.copy(chat_model("chatml").tokenizer)
    tokenizer.chat_template = None
    with pytest.raises(ConfigError, match="no chat template"):
        TemplateFormat(tokenizer, FormatSettings())


def test_arguments_of_the_template_are_handed_on() -> None:
    text = format_of("qwen3", template={"enable_thinking": False}).transcript([USER], [])
    assert text.endswith("<think>\n\n</think>\n\n")


# --- stops ---


@pytest.mark.parametrize("family", FAMILIES)
def test_the_stops_are_the_familys(family: str, tmp_path: Path) -> None:
    folder = chat_model(family).save(tmp_path)
    chat = TemplateFormat(AutoTokenizer.from_pretrained(folder), FormatSettings(parser=chat_model(family).parser))
    assert set(chat.stop_token_ids) == set(chat_model(family).stop_ids)


@pytest.mark.parametrize("family", FAMILIES)
def test_without_the_models_folder_the_stops_come_from_the_template(family: str) -> None:
    assert chat_model(family).stop_ids[0] in format_of(family).stop_token_ids


def test_an_end_of_text_that_opens_turns_is_no_stop() -> None:
    tokenizer = copy.deepcopy(chat_model("chatml").tokenizer)
    tokenizer.eos_token = "<|im_start|>"
    assert TemplateFormat(tokenizer, FormatSettings()).stop_token_ids == (token("chatml", "<|im_end|>"),)


# --- continuations ---


@pytest.mark.parametrize("family", EXTENDING)
def test_after_words_the_stream_is_what_the_template_writes(family: str) -> None:
    chat = format_of(family)
    stream, whole = followed(chat, speak(chat, [USER], WORDS[family], stop(family), []), [NEXT], [])
    assert stream == whole


@pytest.mark.parametrize("family", EXTENDING)
def test_after_a_call_the_stream_is_what_the_template_writes(family: str) -> None:
    chat = format_of(family)
    stream, whole = followed(chat, speak(chat, [USER], CALLS[family], stop(family, tool=True), TOOLS), [RESULT], TOOLS)
    assert stream == whole


@pytest.mark.parametrize("family", EXTENDING)
def test_a_turn_that_was_cut_short_gets_its_end_from_the_template(family: str) -> None:
    chat = format_of(family)
    stream, whole = followed(chat, speak(chat, [USER], WORDS[family], [], []), [NEXT], [])
    assert stream == whole


@pytest.mark.parametrize("family", EXTENDING)
@pytest.mark.parametrize("ended", [True, False])
def test_the_end_of_a_turn_stands_once(family: str, ended: bool) -> None:
    chat, end = format_of(family), stop(family)
    turn = speak(chat, [USER], WORDS[family], end if ended else [], []).turn
    following = chat.continuation(turn, [NEXT], [])
    assert following is not None
    pairs = set(pairwise([*turn.sampled, *following]))
    assert (end[0], end[0]) not in pairs and any(one == end[0] for one, _ in pairs)


@pytest.mark.parametrize("family", EXTENDING)
def test_what_was_sampled_is_never_written_anew(family: str) -> None:
    chat = format_of(family)
    # Spaces that a template would trim, and tokens that nobody's tokenizer makes of that text.
    odd = [one for letter in "  done  " for one in chat.encode(letter)]
    prompt = chat.prompt([USER], [])
    sampled = [*odd, *stop(family)]
    turn = Turn(prompt, sampled, [USER, said(chat.reply(sampled, prompt, []).content)])
    assert chat.continuation(turn, [NEXT], []) is not None


@pytest.mark.parametrize("family", EXTENDING)
def test_several_results_follow_several_calls(family: str) -> None:
    chat = format_of(family)
    calls = [
        {"id": f"abcdefgh{place}", "type": "function", "function": {"name": "ls", "arguments": '{"path":"x"}'}}
        for place in range(3)
    ]
    history: list[Message] = [USER, {"role": "assistant", "content": "", "tool_calls": calls}]
    results = [{**RESULT, "tool_call_id": call["id"], "content": f"r{place}"} for place, call in enumerate(calls)]
    turn = Turn(chat.prompt([USER], TOOLS), [*chat.encode("x"), *stop(family, tool=True)], history)
    following = chat.continuation(turn, results, TOOLS)
    assert following is not None
    assert chat.transcript([*history, *results], TOOLS).endswith(chat.decode(following))


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_follows_when_no_message_does(family: str) -> None:
    chat = format_of(family)
    assert chat.continuation(speak(chat, [USER], WORDS[family], stop(family), []).turn, [], []) is None


@pytest.mark.parametrize("family", FAMILIES)
def test_a_message_of_the_assistants_does_not_extend(family: str) -> None:
    chat = format_of(family)
    turn = speak(chat, [USER], WORDS[family], stop(family), []).turn
    assert chat.continuation(turn, [NEXT, said("No."), NEXT], []) is None


def test_a_role_the_template_refuses_does_not_extend() -> None:
    chat = format_of("mistral")
    turn = speak(chat, [USER], WORDS["mistral"], stop("mistral"), []).turn
    assert chat.continuation(turn, [{"role": "narrator", "content": "Later."}], []) is None


def test_a_turn_that_ended_with_another_stop_than_the_template_writes_does_not_extend() -> None:
    chat = format_of("glm")
    turn = speak(chat, [USER], CALLS["glm"], [token("glm", "<|user|>")], TOOLS).turn
    assert chat.continuation(turn, [RESULT], TOOLS) is None


def test_a_message_that_opens_with_no_stop_does_not_extend_a_format_without_ends() -> None:
    chat = format_of("glm")
    turn = speak(chat, [USER], WORDS["glm"], stop("glm"), []).turn
    assert chat.continuation(turn, [BRIEF, NEXT], []) is None


def test_a_prompt_that_opened_thinking_does_not_extend_where_the_past_drops_it() -> None:
    chat = format_of("deepseek_r1")
    turn = speak(chat, [USER], WORDS["deepseek_r1"], stop("deepseek_r1"), []).turn
    assert chat.continuation(turn, [NEXT], []) is None


def test_a_prefilled_empty_thinking_does_not_extend_where_the_past_drops_it() -> None:
    chat = format_of("qwen3", template={"enable_thinking": False})
    turn = speak(chat, [USER], WORDS["qwen3"], stop("qwen3"), []).turn
    assert chat.continuation(turn, [NEXT], []) is None


def test_tools_that_move_to_the_last_question_do_not_extend() -> None:
    chat = format_of("mistral")
    turn = speak(chat, [USER], WORDS["mistral"], stop("mistral"), TOOLS).turn
    assert chat.continuation(turn, [NEXT], TOOLS) is None


def test_a_system_message_that_moves_to_the_last_question_does_not_extend() -> None:
    chat = format_of("mistral")
    turn = speak(chat, [BRIEF, USER], WORDS["mistral"], stop("mistral"), []).turn
    assert chat.continuation(turn, [NEXT], []) is None


def test_a_long_history_that_the_template_cuts_does_not_extend() -> None:
    chat = with_template("{% set messages = messages[-6:] %}" + PLAIN)
    history = [USER, said("One."), NEXT, said("Two."), NEXT]
    turn = speak(chat, history, "Three.", stop("chatml"), []).turn
    assert chat.continuation(turn, [NEXT], []) is None


def test_a_message_that_changes_the_beginning_does_not_extend_where_others_do() -> None:
    chat = with_template("{% if 'louder' in messages[-1].content %}LOUD {% endif %}" + PLAIN)
    turn = speak(chat, [USER], "Done.", stop("chatml"), []).turn
    assert chat.continuation(turn, [NEXT], []) is not None
    assert chat.continuation(turn, [{"role": "user", "content": "louder"}], []) is None


def test_a_message_behind_which_the_past_is_told_again_does_not_extend() -> None:
    chat = with_template(PLAIN + "{% if 'remind' in messages[-1].content %}{{ messages[0].content }}{% endif %}")
    turn = speak(chat, [BRIEF, USER], "Done.", stop("chatml"), []).turn
    assert chat.continuation(turn, [NEXT], []) is not None
    assert chat.continuation(turn, [{"role": "user", "content": "remind me"}], []) is None


def test_a_template_that_writes_the_date_extends_on_the_next_day() -> None:
    today = {"name": "Monday"}
    chat = with_template("{{ today.name }}" + PLAIN, template={"today": today})
    turn = speak(chat, [USER], "Done.", stop("chatml"), []).turn
    on_monday = chat.continuation(turn, [NEXT], [])
    today["name"] = "Tuesday"
    assert chat.continuation(turn, [NEXT], []) == on_monday is not None


# --- thinking ---

THINKING = {"qwen3": "<think>\nSix times seven.\n</think>\n\n", "glm": "\n<think>Six times seven.</think>"}
STRIPPING = (*THINKING, "deepseek")


def thoughtful(family: str, text: str) -> str:
    return THINKING.get(family, "<think>Six times seven.</think>") + text


@pytest.mark.parametrize("family", THINKING)
def test_thinking_is_split_off_where_the_template_writes_it_itself(family: str) -> None:
    chat = format_of(family)
    reply = speak(chat, [USER], thoughtful(family, "42"), stop(family), []).reply
    assert (reply.reasoning, reply.content) == ("Six times seven.", "42")


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in THINKING])
def test_thinking_stays_in_the_text_where_the_template_has_no_place_for_it(family: str) -> None:
    chat = format_of(family)
    text = "<think>Six times seven.</think>\n\n42"
    reply = speak(chat, [USER], text, stop(family), []).reply
    assert (reply.reasoning, reply.content) == (None, text)


def test_a_reply_to_a_prompt_that_opened_thinking_begins_in_it() -> None:
    tokenizer = copy.copy(chat_model("qwen3").tokenizer)
    tokenizer.chat_template += "{% if add_generation_prompt %}{{ '<think>\\n' }}{% endif %}"
    chat = TemplateFormat(tokenizer, FormatSettings(parser="qwen"))
    reply = speak(chat, [USER], "Six times", stop("qwen3"), []).reply
    assert (reply.reasoning, reply.content) == ("Six times", "")


def test_a_call_in_thinking_that_the_prompt_opened_is_no_call() -> None:
    chat = format_of("deepseek_r1")
    reply = speak(chat, [USER], DEEPSEEK_CALL, stop("deepseek_r1"), TOOLS).reply
    assert not reply.calls and reply.content == DEEPSEEK_CALL


@pytest.mark.parametrize("family", THINKING)
def test_thinking_in_a_tool_cycle_extends(family: str) -> None:
    chat = format_of(family)
    text = thoughtful(family, CALLS[family].removeprefix("\n<think></think>"))
    stream, whole = followed(chat, speak(chat, [USER], text, stop(family, tool=True), TOOLS), [RESULT], TOOLS)
    assert stream == whole


@pytest.mark.parametrize("family", STRIPPING)
def test_thinking_that_the_template_strips_does_not_extend(family: str) -> None:
    chat = format_of(family)
    turn = speak(chat, [USER], thoughtful(family, "42"), stop(family), []).turn
    assert chat.continuation(turn, [NEXT], []) is None


@pytest.mark.parametrize("family", THINKING)
def test_thinking_of_an_earlier_turn_that_the_template_strips_does_not_extend(family: str) -> None:
    chat = format_of(family)
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
    thought: Message = {"role": "assistant", "content": "", "reasoning_content": "Look.", "tool_calls": [call]}
    turn = speak(chat, [USER, thought, RESULT], WORDS[family], stop(family), TOOLS).turn
    assert chat.continuation(turn, [NEXT], TOOLS) is None


@pytest.mark.parametrize("family", THINKING)
def test_thinking_that_was_stripped_before_does_not_hinder(family: str) -> None:
    chat = format_of(family)
    history = [USER, {**said("42"), "reasoning_content": "Six times seven."}, NEXT]
    stream, whole = followed(chat, speak(chat, history, WORDS[family], stop(family), []), [USER], [])
    assert stream == whole


@pytest.mark.parametrize("family", [*STRIPPING, "deepseek_r1"])
def test_kept_thinking_extends(family: str) -> None:
    chat = format_of(family, keep_reasoning=True)
    text = WORDS[family] if family == "deepseek_r1" else thoughtful(family, "\n42" if family == "glm" else "42")
    stream, whole = followed(chat, speak(chat, [USER], text, stop(family), []), [NEXT], [])
    assert stream == whole


@pytest.mark.parametrize("family", THINKING)
def test_kept_thinking_is_written_as_the_template_writes_it_where_it_does(family: str) -> None:
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
    thought: Message = {"role": "assistant", "content": "", "reasoning_content": "Look.", "tool_calls": [call]}
    history = [USER, thought, RESULT]
    kept = format_of(family, keep_reasoning=True).transcript(history, TOOLS)
    assert kept == format_of(family).transcript(history, TOOLS)


@pytest.mark.parametrize("family", STRIPPING)
def test_kept_thinking_stays_in_a_prompt_that_is_rendered_anew(family: str) -> None:
    chat = format_of(family, keep_reasoning=True)
    history = speak(chat, [USER], thoughtful(family, "42"), stop(family), []).history
    assert "Six times seven.</think>" in chat.transcript([*history, NEXT], []).replace("\n", "")


@pytest.mark.parametrize("family", THINKING)
def test_thinking_that_was_cut_short_does_not_extend(family: str) -> None:
    chat = format_of(family, keep_reasoning=True)
    turn = speak(chat, [USER], "<think>\nSix times", [], []).turn
    assert chat.continuation(turn, [NEXT], []) is None


# --- replies ---


@pytest.mark.parametrize("family", FAMILIES)
def test_a_reply_does_not_hold_the_stop(family: str) -> None:
    chat = format_of(family)
    assert chat.decode(stop(family)) not in speak(chat, [USER], WORDS[family], stop(family), []).reply.content


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_are_read_from_what_was_sampled(family: str) -> None:
    chat = format_of(family)
    [call] = speak(chat, [USER], CALLS[family], stop(family, tool=True), TOOLS).reply.calls
    assert (call.name, json.loads(call.arguments)) == ("ls", {"path": "x"})


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_are_read_with_the_tool_prompt_off(family: str) -> None:
    chat = format_of(family, tool_prompt=False)
    assert speak(chat, [USER], CALLS[family], stop(family, tool=True), TOOLS).reply.calls


@pytest.mark.parametrize("family", FAMILIES)
def test_without_tools_no_call_is_read(family: str) -> None:
    chat = format_of(family)
    assert not speak(chat, [USER], CALLS[family], stop(family, tool=True), []).reply.calls


def test_with_no_readable_call_the_content_is_the_whole_text() -> None:
    chat = format_of("chatml")
    text = "Look: <tool_call>{not json}</tool_call>"
    reply = speak(chat, [USER], text, stop("chatml"), TOOLS).reply
    assert reply.content == text and reply.broken


def test_a_broken_call_beside_a_good_one_is_told() -> None:
    chat = format_of("chatml")
    reply = speak(chat, [USER], f"{HERMES_CALL}\n<tool_call>{{not json}}</tool_call>", stop("chatml"), TOOLS).reply
    assert (len(reply.calls), len(reply.broken)) == (1, 1)


def test_calls_of_one_reply_have_ids_of_their_own() -> None:
    chat = format_of("mistral")
    one = '{"name": "ls", "arguments": {}, "id": "abcdefghi"}'
    reply = speak(chat, [USER], f"[TOOL_CALLS] [{one}, {one}]", stop("mistral"), TOOLS).reply
    assert len({call.id for call in reply.calls}) == 2


@pytest.mark.parametrize("family", FAMILIES)
@UNHURRIED
@given(data=st.data())
def test_nothing_a_model_samples_makes_a_reply_raise(family: str, data: st.DataObject) -> None:
    chat = format_of_shared(family)
    tokenizer = chat_model(family).tokenizer
    # Engines can sample ids beyond the vocabulary, where the embedding is padded.
    ids = st.integers(0, len(tokenizer) + 64) | st.sampled_from(sorted(tokenizer.get_added_vocab().values()))
    sampled = data.draw(st.lists(ids, max_size=40))
    reply = chat.reply(sampled, chat.prompt([USER], TOOLS), TOOLS)
    assert isinstance(reply.content, str)


# --- any conversation ---

FORMATS: dict[str, TemplateFormat] = {}
SAYINGS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


def format_of_shared(family: str) -> TemplateFormat:
    return FORMATS.setdefault(family, format_of(family))


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """Turns in any order, each either words or a call with its result, with or without thinking."""
    messages: list[Message] = [{"role": "system", "content": draw(SAYINGS)}] if draw(st.booleans()) else []
    messages.append({"role": "user", "content": draw(SAYINGS)})
    for _ in range(draw(st.integers(0, 4))):
        message = said(draw(SAYINGS))
        if draw(st.booleans()):
            message["reasoning_content"] = draw(SAYINGS)
        if draw(st.booleans()):
            call = {"id": "abcdefghi", "type": "function"}
            message["tool_calls"] = [
                {**call, "function": {"name": "ls", "arguments": json.dumps({"p": draw(SAYINGS)})}}
            ]
            messages += [message, {**RESULT, "content": draw(SAYINGS)}]
        else:
            messages += [message, {"role": "user", "content": draw(SAYINGS)}]
    return messages


@pytest.mark.parametrize("family", FAMILIES)
@UNHURRIED
@given(data=st.data(), history=conversations(), with_tools=st.booleans())
def test_what_follows_is_always_how_the_whole_conversation_ends(
    family: str, data: st.DataObject, history: list[Message], with_tools: bool
) -> None:
    chat, tools = format_of_shared(family), TOOLS if with_tools else []
    text = data.draw(st.sampled_from([WORDS[family], CALLS[family], thoughtful(family, "42")]))
    called = text is CALLS[family] and with_tools
    spoken = speak(chat, history, text, data.draw(st.sampled_from([stop(family, tool=called), []])), tools)
    new = [RESULT] if spoken.reply.calls else [NEXT]
    following = chat.continuation(spoken.turn, new, tools)
    if following is not None:
        whole = chat.transcript([*spoken.history, *new], tools)
        assert whole.endswith(chat.decode(following))
        assert whole.startswith(chat.transcript(history, tools))


# --- what it costs ---


class Counting:
    """A tokenizer that counts the characters it renders and encodes."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.characters = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def apply_chat_template(self, *args: Any, **kwargs: Any) -> str:
        text = str(self._tokenizer.apply_chat_template(*args, **kwargs))
        self.characters += len(text)
        return text

    def encode(self, text: str, **kwargs: Any) -> Any:
        self.characters += len(text)
        return self._tokenizer.encode(text, **kwargs)

    def spent(self) -> int:
        spent, self.characters = self.characters, 0
        return spent


@pytest.mark.parametrize("family", EXTENDING)
def test_a_continuation_costs_the_same_after_a_long_history_as_after_a_short_one(family: str) -> None:
    tokenizer = Counting(chat_model(family).tokenizer)
    chat = TemplateFormat(tokenizer, FormatSettings(parser=chat_model(family).parser))
    history, costs = [USER], []
    stream = chat.prompt(history, TOOLS)
    for _ in range(40):
        sampled = [*chat.encode(CALLS[family]), *stop(family, tool=True)]
        [call] = chat.reply(sampled, stream[-40:], TOOLS).calls
        history += [{"role": "assistant", "content": "", "tool_calls": [{**call.as_dict(), "id": "abcdefghi"}]}]
        tokenizer.spent()
        following = chat.continuation(Turn(stream, sampled, history), [RESULT], TOOLS)
        costs.append(tokenizer.spent())
        assert following is not None
        stream = [*stream, *sampled, *following]
        history += [RESULT]
    # The first turns of a shape are checked against the whole conversation.
    assert costs[-1] == costs[5] < 2000
