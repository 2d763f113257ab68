import copy
import json
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from hermes_rl.core.errors import ConfigError, EnvironmentCodeError
from hermes_rl.core.messages import Message
from hermes_rl.inference.tokens.chat_format import FormatSettings, Turn
from hermes_rl.inference.tokens.recorder import assistant_message
from hermes_rl.inference.tokens.renderer_format import RendererFormat, renderer_format
from tests.support.chat_models import FAMILIES, chat_model

RENDERED = tuple(family for family in FAMILIES if chat_model(family).renderer)
# R1's template drops the thinking of every past turn, so nothing of it ever extends.
EXTENDING = tuple(family for family in RENDERED if family != "deepseek_r1")
SYSTEM: Message = {"role": "system", "content": "Be brief."}
QUESTION: Message = {"role": "user", "content": "What is 1 + 2?"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add_numbers",
            "description": "Add two numbers.",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}},
        },
    }
]
THOUGHTS = {
    "qwen3": "<think>\n{}\n</think>\n\n",
    "llama3": "",
    "deepseek": "",
    "deepseek_r1": "{}\n</think>\n\n",
    "glm": "\n<think>{}</think>\n",
}
STOPS = {
    "qwen3": "<|im_end|>",
    "llama3": "<|eot_id|>",
    "deepseek": "<｜end▁of▁sentence｜>",
    "deepseek_r1": "<｜end▁of▁sentence｜>",
    "glm": "<|user|>",
}
DEEPSEEK_CALL = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add_numbers\n```json\n"
    '{"a":  1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>'
)
CALLS = {
    "qwen3": '<tool_call>\n{"name": "add_numbers", "arguments": {"a":  1}}\n</tool_call><|im_end|>',
    "llama3": '{"name": "add_numbers", "parameters": {"a":  1}}<|eot_id|>',
    "deepseek": DEEPSEEK_CALL,
    "deepseek_r1": DEEPSEEK_CALL,
    "glm": "<tool_call>add_numbers\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call><|observation|>",
}


def made(family: str, **changes: Any) -> RendererFormat:
    model = chat_model(family)
    return RendererFormat(model.tokenizer, FormatSettings(**({"renderer": model.renderer} | changes)))


def answer(family: str, text: str, stop: str | None = None) -> str:
    return THOUGHTS[family].format("Easy.") + text + (STOPS[family] if stop is None else stop)


def call(family: str) -> str:
    return THOUGHTS[family].format("I add.") + CALLS[family]


class Conversation:
    """A conversation and its ids; `extended` says whether the last messages went on from what was sampled."""

    def __init__(self, chat_format: RendererFormat, *messages: Message, tools: Sequence[Any] = TOOLS) -> None:
        self.format = chat_format
        self.tools = tools
        self.messages = list(messages)
        self.ids = chat_format.prompt(self.messages, tools)
        self.extended = True

    def hears(self, text: str) -> None:
        self.sampled = self.format.encode(text)
        reply = self.format.reply(self.sampled, self.ids, self.tools)
        self.messages.append(assistant_message(reply))

    def goes_on(self, *new: Message) -> None:
        turn = Turn(self.ids, self.sampled, list(self.messages))
        following = self.format.continuation(turn, list(new), self.tools)
        self.messages += new
        self.extended = following is not None
        self.ids = (
            self.format.prompt(self.messages, self.tools) if following is None else self.ids + self.sampled + following
        )

    def result(self, text: str) -> Message:
        return {"role": "tool", "tool_call_id": self.messages[-1]["tool_calls"][0]["id"], "content": text}

    @property
    def text(self) -> str:
        return self.format.decode(self.ids)

    @property
    def transcript(self) -> str:
        return self.format.transcript(self.messages, self.tools)


def after_a_call(family: str, **changes: Any) -> Conversation:
    talk = Conversation(made(family, **changes), SYSTEM, QUESTION)
    talk.hears(call(family))
    return talk


def after_an_answer(family: str, stop: str | None = None, **changes: Any) -> Conversation:
    talk = Conversation(made(family, **changes), SYSTEM, QUESTION)
    talk.hears(answer(family, "It is 3.", stop))
    return talk


# --- going on ---


@pytest.mark.parametrize("family", EXTENDING)
def test_tool_results_extend_to_the_text_of_a_whole_render(family: str) -> None:
    talk = after_a_call(family)
    talk.goes_on(talk.result("3 é 😀"))
    talk.hears(call(family))
    talk.goes_on(talk.result("{}"))
    assert talk.extended
    assert talk.text == talk.transcript


@pytest.mark.parametrize("family", ["llama3", "deepseek"])
def test_a_new_question_extends_where_nobody_thought(family: str) -> None:
    talk = after_an_answer(family)
    talk.goes_on({"role": "user", "content": "And 2 + 2?"})
    assert talk.extended and talk.text == talk.transcript


@pytest.mark.parametrize("family", ["qwen3", "deepseek_r1", "glm"])
def test_a_new_question_ends_the_stream_where_the_template_drops_thinking(family: str) -> None:
    talk = after_an_answer(family)
    talk.goes_on({"role": "user", "content": "And 2 + 2?"})
    assert not talk.extended


@pytest.mark.parametrize("family", ["qwen3", "glm"])
def test_kept_thinking_extends_over_a_new_question(family: str) -> None:
    talk = after_an_answer(family, keep_reasoning=True)
    talk.goes_on({"role": "user", "content": "And 2 + 2?"})
    assert talk.extended and talk.text == talk.transcript and "Easy." in talk.text


@pytest.mark.parametrize("family", EXTENDING)
def test_a_whole_render_with_kept_thinking_is_the_beginning_of_later_ones(family: str) -> None:
    talk = after_a_call(family, keep_reasoning=True)
    talk.goes_on(talk.result("3"))
    begun = talk.transcript
    talk.hears(answer(family, "It is 3."))
    talk.goes_on({"role": "user", "content": "And 2 + 2?"})
    talk.hears(answer(family, "It is 4."))
    talk.goes_on({"role": "user", "content": "Thanks."})
    assert talk.transcript.startswith(begun) and talk.text == talk.transcript


@pytest.mark.parametrize(
    "messages",
    [[{"role": "assistant", "content": "Hello."}, QUESTION], [QUESTION, {"role": "assistant", "content": ""}]],
)
def test_a_conversation_in_an_odd_order_is_written_as_the_template_does(messages: list[Message]) -> None:
    assert made("qwen3", keep_reasoning=True).prompt(messages, ()) == made("qwen3").prompt(messages, ())


def test_thinking_is_not_kept_where_the_prompt_opens_it_and_the_past_has_no_opening() -> None:
    talk = after_an_answer("deepseek_r1", keep_reasoning=True)
    talk.goes_on({"role": "user", "content": "And 2 + 2?"})
    assert not talk.extended


def test_thinking_against_the_settings_ends_the_stream_too() -> None:
    talk = Conversation(made("qwen3", template={"enable_thinking": False}), QUESTION)
    talk.hears(answer("qwen3", "It is 3."))
    talk.goes_on({"role": "user", "content": "And 2 + 2?"})
    assert not talk.extended


def test_an_empty_thought_that_the_prompt_wrote_stays_in_the_stream() -> None:
    talk = Conversation(made("qwen3", template={"enable_thinking": False}), QUESTION)
    talk.hears("It is 3.<|im_end|>")
    talk.goes_on({"role": "user", "content": "And 2 + 2?"})
    assert talk.extended and talk.text == talk.transcript


@pytest.mark.parametrize("family", EXTENDING)
def test_no_end_token_is_doubled(family: str) -> None:
    talk = after_a_call(family)
    end = talk.sampled[-1]
    talk.goes_on(talk.result("3"))
    at = len(talk.ids) - talk.ids[::-1].index(talk.sampled[-2])
    assert talk.ids[at] == end and talk.ids[at + 1] != end


@pytest.mark.parametrize("family", ["llama3", "deepseek"])
def test_a_cut_turn_is_closed_as_the_template_closes_it(family: str) -> None:
    talk = after_an_answer(family, stop="")
    talk.goes_on({"role": "user", "content": "Go on."})
    assert talk.extended and talk.text == talk.transcript


@pytest.mark.parametrize(("family", "close"), [("qwen3", "<|im_end|>\n<|im_start|>user"), ("glm", "<|user|>")])
def test_a_cut_turn_with_kept_thinking_is_closed_once(family: str, close: str) -> None:
    talk = after_an_answer(family, stop="", keep_reasoning=True)
    talk.goes_on({"role": "user", "content": "Go on."})
    assert talk.extended and f"It is 3.{close}\nGo on." in talk.text


@pytest.mark.parametrize(
    ("family", "stop"),
    [("qwen3", "<|endoftext|>"), ("llama3", "<|end_of_text|>"), ("glm", "<|endoftext|>"), ("glm", "<|observation|>")],
)
def test_a_stop_token_that_the_template_does_not_write_there_ends_the_stream(family: str, stop: str) -> None:
    talk = after_an_answer(family, stop=stop, keep_reasoning=True)
    talk.goes_on({"role": "user", "content": "And 2 + 2?"})
    assert not talk.extended


def test_tokens_after_a_stop_token_end_the_stream() -> None:
    talk = after_an_answer("llama3", stop="<|eot_id|> and more")
    talk.goes_on({"role": "user", "content": "And 2 + 2?"})
    assert not talk.extended


@pytest.mark.parametrize("family", RENDERED)
def test_what_an_assistant_said_is_never_written_into_a_stream(family: str) -> None:
    talk = after_a_call(family)
    talk.goes_on(talk.result("3"), {"role": "assistant", "content": "It is 3."}, QUESTION)
    assert not talk.extended


@pytest.mark.parametrize("family", EXTENDING)
def test_the_part_of_the_past_that_is_read_does_not_grow(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    talk = after_a_call(family)
    read = []
    bridge = talk.format._renderer.bridge_to_next_turn

    def counted(prompt: list[int], *rest: Any, **named: Any) -> Any:
        read.append(len(prompt))
        return bridge(prompt, *rest, **named)

    monkeypatch.setattr(talk.format._renderer, "bridge_to_next_turn", counted)
    for _ in range(4):
        talk.goes_on(talk.result("3"))
        talk.hears(call(family))
    assert read[1] == read[2] == read[3]


WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="<>{}[]｜▁"), max_size=40).map(
    str.strip
)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(EXTENDING),
    st.booleans(),
    # An empty answer keeps the space that was sampled for it, which GLM's template does not write.
    st.lists(st.tuples(st.booleans(), WORDS.filter(bool), WORDS), max_size=5),
)
def test_any_conversation_that_extends_has_the_text_of_a_whole_render(
    family: str, keep: bool, turns: list[tuple[bool, str, str]]
) -> None:
    talk = Conversation(made(family, keep_reasoning=keep), SYSTEM, QUESTION)
    for calls, said, told in turns:
        if calls:
            talk.hears(call(family))
            talk.goes_on(talk.result(told))
        else:
            talk.hears(answer(family, said))
            talk.goes_on({"role": "user", "content": told})
        assert talk.text == talk.transcript


# --- reading ---


@pytest.mark.parametrize("family", RENDERED)
def test_a_sampled_call_is_read(family: str) -> None:
    talk = after_a_call(family)
    [made_call] = talk.messages[-1]["tool_calls"]
    assert made_call["function"]["name"] == "add_numbers"
    assert json.loads(made_call["function"]["arguments"]) == {"a": 1}


@pytest.mark.parametrize("family", ["qwen3", "llama3", "deepseek"])
def test_arguments_written_as_json_are_the_models_own_text(family: str) -> None:
    assert after_a_call(family).messages[-1]["tool_calls"][0]["function"]["arguments"] == '{"a":  1}'


@pytest.mark.parametrize("family", ["qwen3", "deepseek_r1", "glm"])
def test_thinking_is_told_apart(family: str) -> None:
    said = after_an_answer(family).messages[-1]
    assert (said["content"], said["reasoning_content"]) == ("It is 3.", "Easy.")


@pytest.mark.parametrize("family", RENDERED)
def test_a_call_typed_into_a_message_is_not_the_models(family: str) -> None:
    talk = Conversation(made(family), {"role": "user", "content": f"Repeat: {CALLS[family]}"})
    talk.hears(answer(family, "No."))
    assert talk.messages[-1]["content"] == "No." and "tool_calls" not in talk.messages[-1]


@pytest.mark.parametrize(
    ("family", "marker"), [("qwen3", "<tool_call>"), ("deepseek", "<｜tool▁call▁begin｜>"), ("glm", "<tool_call>")]
)
def test_a_marker_spelled_in_ordinary_tokens_is_text(family: str, marker: str) -> None:
    chat_format = made(family)
    before, after = call(family).split(marker)
    spelled = [token for part in (before, marker[:3], marker[3:], after) for token in chat_format.encode(part)]
    assert chat_format.decode(spelled) == call(family)
    reply = chat_format.reply(spelled, chat_format.prompt([QUESTION], TOOLS), TOOLS)
    assert not reply.calls and marker in reply.content


def test_a_reply_without_a_readable_call_holds_the_whole_text_but_the_thinking() -> None:
    chat_format = made("qwen3")
    text = 'Well.\n<tool_call>\n{"name": "add_numbers", \n</tool_call> so'
    ids = chat_format.encode(f"<think>\nWell.\n</think>\n\n{text}<|im_end|>")
    reply = chat_format.reply(ids, chat_format.prompt([QUESTION], TOOLS), TOOLS)
    assert (reply.content, reply.reasoning) == (text, "Well.")
    assert [call.reason for call in reply.broken] == ["invalid json"]


def test_thinking_that_a_broken_call_ends_is_not_part_of_the_text() -> None:
    chat_format = made("qwen3")
    ids = chat_format.encode("<think>\nWell.\n<tool_call>\n{\n</tool_call><|im_end|>")
    reply = chat_format.reply(ids, chat_format.prompt([QUESTION], TOOLS), TOOLS)
    assert (reply.content, reply.reasoning) == ("<tool_call>\n{\n</tool_call>", "Well.")


def test_a_broken_call_stands_beside_one_that_can_be_read() -> None:
    chat_format = made("qwen3")
    ids = chat_format.encode("<tool_call>\n{\n</tool_call>\n" + CALLS["qwen3"])
    reply = chat_format.reply(ids, chat_format.prompt([QUESTION], TOOLS), TOOLS)
    assert [call.name for call in reply.calls] == ["add_numbers"] and [call.text for call in reply.broken] == ["{"]


def test_text_after_a_marker_with_no_call_is_kept() -> None:
    chat_format = made("deepseek")
    ids = chat_format.encode("Well. <｜tool▁calls▁begin｜>never mind<｜end▁of▁sentence｜>")
    reply = chat_format.reply(ids, chat_format.prompt([QUESTION], TOOLS), TOOLS)
    assert reply.content == "Well. <｜tool▁calls▁begin｜>never mind"


@pytest.mark.parametrize("family", ["qwen3", "llama3", "deepseek", "glm"])
def test_a_turn_cut_inside_a_call_has_none(family: str) -> None:
    chat_format = made(family)
    ids = chat_format.encode(call(family))[:-4]
    reply = chat_format.reply(ids, chat_format.prompt([QUESTION], TOOLS), TOOLS)
    assert not reply.calls and "add_numbers" in reply.content


@pytest.mark.parametrize("family", ["qwen3", "glm"])
def test_thinking_that_was_cut_leaves_nothing_said(family: str) -> None:
    chat_format = made(family)
    ids = chat_format.encode("<think>\nIt is a long")
    reply = chat_format.reply(ids, chat_format.prompt([QUESTION], TOOLS), TOOLS)
    assert (reply.content, reply.reasoning) == ("", "It is a long")


def test_a_tool_that_glm_was_not_given_is_a_broken_call() -> None:
    chat_format = made("glm")
    ids = chat_format.encode(call("glm").replace("add_numbers", "fly"))
    reply = chat_format.reply(ids, chat_format.prompt([QUESTION], TOOLS), TOOLS)
    assert [call.reason for call in reply.broken] == ["unknown tool"]


def test_json_is_no_call_when_no_tools_were_offered() -> None:
    chat_format = made("llama3")
    ids = chat_format.encode('{"name": "Ada", "born": 1815}<|eot_id|>')
    reply = chat_format.reply(ids, chat_format.prompt([QUESTION], ()), ())
    assert reply == ('{"name": "Ada", "born": 1815}', None, (), ())


@pytest.mark.parametrize(
    "inside",
    [
        '{"name": 5, "arguments": {}}',
        '{"name": ["add_numbers"], "arguments": {}}',
        f'{{"name": "add_numbers", "arguments": {"9" * 5000}}}',
        "[" * 20000,
        '{"a": ' * 20000,
        "null",
    ],
    ids=["number", "list", "digits", "deep list", "deep object", "null"],
)
def test_a_call_that_is_odd_json_is_broken(inside: str) -> None:
    chat_format = made("qwen3")
    ids = chat_format.encode(f"<tool_call>\n{inside}\n</tool_call><|im_end|>")
    reply = chat_format.reply(ids, chat_format.prompt([QUESTION], TOOLS), TOOLS)
    assert not reply.calls and reply.broken


@pytest.mark.parametrize(
    ("arguments", "read"),
    [
        ("null", "{}"),
        ("[1]", "[1]"),
        ('"a: 1"', "a: 1"),
        ('{"b": "}{"}', '{"b": "}{"}'),
        ('{"a": 1}, "x": {}', '{"a": 1}'),
    ],
)
def test_arguments_of_any_kind_become_text(arguments: str, read: str) -> None:
    chat_format = made("qwen3")
    ids = chat_format.encode(f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call><|im_end|>')
    [one] = chat_format.reply(ids, chat_format.prompt([QUESTION], TOOLS), TOOLS).calls
    assert one.arguments == read


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(RENDERED), st.data())
def test_no_ids_make_reading_raise(family: str, data: st.DataObject) -> None:
    chat_format = made(family)
    size = len(chat_model(family).tokenizer)
    # Special tokens stand last; an engine's table of tokens is often longer than the tokenizer's.
    token = st.one_of(st.integers(0, size + 50), st.integers(size - 30, size - 1))
    ids = data.draw(st.lists(token, max_size=40))
    prompt = chat_format.prompt([QUESTION], TOOLS)
    reply = chat_format.reply(ids, prompt, TOOLS)
    chat_format.continuation(Turn(prompt, ids, [QUESTION, assistant_message(reply)]), [QUESTION], TOOLS)


# --- writing ---


@pytest.mark.parametrize("family", RENDERED)
def test_a_prompt_shows_the_tools(family: str) -> None:
    assert "add_numbers" in made(family).transcript([QUESTION], TOOLS)


@pytest.mark.parametrize("family", RENDERED)
def test_a_prompt_without_a_tool_prompt_shows_none(family: str) -> None:
    chat_format = made(family, tool_prompt=False)
    assert chat_format.prompt([QUESTION], TOOLS) == chat_format.prompt([QUESTION], ())


@pytest.mark.parametrize("family", RENDERED)
def test_calls_are_read_without_a_tool_prompt_too(family: str) -> None:
    assert after_a_call(family, tool_prompt=False).messages[-1]["tool_calls"]


def test_tools_stand_at_the_end_of_the_system_message_where_the_renderer_has_no_place_for_them() -> None:
    text = made("deepseek").transcript([SYSTEM, QUESTION], TOOLS)
    assert text.index("Be brief.") < text.index("add_numbers") < text.index("What is 1 + 2?")


@pytest.mark.parametrize("family", RENDERED)
def test_content_in_parts_and_content_that_is_null_are_text(family: str) -> None:
    chat_format = made(family)
    parts = [{"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]}]
    joined = [{"role": "user", "content": "one two"}]
    assert chat_format.prompt(parts, ()) == chat_format.prompt(joined, ())
    nothing = [QUESTION, {"role": "assistant", "content": None}, QUESTION]
    empty = [QUESTION, {"role": "assistant", "content": ""}, QUESTION]
    assert chat_format.prompt(nothing, ()) == chat_format.prompt(empty, ())


def test_an_image_is_refused_rather_than_left_out() -> None:
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}
    with pytest.raises(EnvironmentCodeError, match="not text"):
        made("qwen3").prompt([picture], ())


def test_a_message_that_cannot_be_written_ends_the_stream() -> None:
    talk = after_a_call("qwen3")
    turn = Turn(talk.ids, talk.sampled, talk.messages)
    picture = talk.result("") | {"content": [{"type": "image_url"}]}
    assert talk.format.continuation(turn, [picture], TOOLS) is None


def test_a_conversation_that_the_template_cannot_hold_says_why() -> None:
    with pytest.raises(EnvironmentCodeError, match="first non-system message to be 'user'"):
        made("llama3").prompt([SYSTEM, {"role": "assistant", "content": "Hello."}], TOOLS)


def test_thinking_under_its_other_name_is_written_too() -> None:
    said = {"role": "assistant", "content": "3", "reasoning": "Easy."}
    assert "Easy." in made("qwen3").transcript([QUESTION, said, {"role": "tool", "content": "3"}], ())


@pytest.mark.parametrize("family", RENDERED)
def test_stop_tokens_are_the_familys(family: str) -> None:
    assert set(made(family).stop_token_ids) == set(chat_model(family).stop_ids)


@pytest.mark.parametrize("family", RENDERED)
def test_decoding_writes_special_tokens_out(family: str) -> None:
    chat_format = made(family)
    assert chat_format.decode(chat_format.encode(call(family))) == call(family)


# --- renderers on tokens of their own ---

INKLING = (
    *("message_user", "message_system", "message_model", "message_tool", "end_message", "content_text", "content_xml"),
    *("content_thinking", "content_image", "content_audio_input", "audio_end", "content_model_end_sampling"),
    *("content_invoke_tool_json", "content_invoke_tool_text", "unused_200053", "unused_200054"),
)
VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")


def on_tokens(tokens: Sequence[str], **changes: Any) -> RendererFormat:
    tokenizer = copy.deepcopy(chat_model("qwen3").tokenizer)
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=True) for text in tokens])
    return RendererFormat(tokenizer, FormatSettings(**changes))


def written(chat_format: RendererFormat, said: Message) -> Conversation:
    """A conversation in which the model sampled what the renderer itself writes for this message."""
    talk = Conversation(chat_format, QUESTION)
    whole = chat_format.decode(chat_format._renderer.render_ids([QUESTION, said], tools=TOOLS))
    talk.hears(whole.removeprefix(talk.text).rstrip("\n"))
    return talk


def test_a_result_is_named_after_its_call_where_the_renderer_wants_a_name() -> None:
    chat_format = on_tokens([f"<|{name}|>" for name in INKLING], renderer="inkling")
    one = {"id": "call_1", "type": "function", "function": {"name": "add_numbers", "arguments": '{"a": 1}'}}
    talk = written(chat_format, {"role": "assistant", "content": "", "tool_calls": [one]})
    talk.goes_on(talk.result("3"))
    assert talk.extended and talk.text == talk.transcript


@pytest.mark.parametrize("renderer", ["qwen3.5", "qwen3.6"])
def test_thinking_that_the_prompt_opens_can_be_kept(renderer: str) -> None:
    chat_format = on_tokens(VISION, renderer=renderer, keep_reasoning=True)
    talk = written(chat_format, {"role": "assistant", "content": "It is 3.", "reasoning_content": "Easy."})
    talk.goes_on({"role": "user", "content": "And 2 + 2?"})
    assert talk.extended and talk.text == talk.transcript


def test_keeping_thinking_and_telling_the_template_to_drop_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="preserve_thinking"):
        on_tokens(VISION, renderer="qwen3.6", keep_reasoning=True, template={"preserve_thinking": False})


# --- choosing ---


def test_a_template_setting_reaches_the_renderer() -> None:
    chat_format = made("qwen3", template={"enable_thinking": False})
    assert chat_format.transcript([QUESTION], ()).endswith("<think>\n\n</think>\n\n")


def test_a_setting_that_the_template_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigError, match="date_string"):
        made("qwen3", template={"date_string": "today"})


def test_an_unknown_renderer_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'qwen33'; known: auto, template, .*qwen3, "):
        renderer_format(chat_model("qwen3").tokenizer, FormatSettings(renderer="qwen33"))


def test_a_tokenizer_without_the_renderers_tokens_is_refused() -> None:
    with pytest.raises(ConfigError, match="tool_call"):
        renderer_format(chat_model("chatml").tokenizer, FormatSettings(renderer="qwen3"))


def test_a_model_is_known_by_its_name() -> None:
    tokenizer = copy.deepcopy(chat_model("qwen3").tokenizer)
    tokenizer.name_or_path = "Qwen/Qwen3-8B"
    found = renderer_format(tokenizer, FormatSettings())
    assert found is not None and found.name == "qwen3"


@pytest.mark.parametrize("renderer", ["auto", "template"])
def test_a_model_without_a_renderer_gets_none(renderer: str) -> None:
    assert renderer_format(chat_model("chatml").tokenizer, FormatSettings(renderer=renderer)) is None


def test_a_missing_package_is_named_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "renderers", None)
    with pytest.raises(ConfigError, match=r"pip install 'hermes-rl\[tokens\]'"):
        renderer_format(chat_model("qwen3").tokenizer, FormatSettings())
