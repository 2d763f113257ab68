"""Texts that our parsers parse differently from vLLM 0.32, and why. The table in docs/parsers.md is made from this.

`python -m tests.parsers.differences` prints that table. Each entry counts the cases of tests/parsers/cases.py that
differ, so a test fails when a difference appears or disappears.
"""

from collections.abc import Iterator
from dataclasses import dataclass

HERMES_LIKE = ("hermes", "qwen", "longcat")
LLAMA = ("llama3_json", "llama4_json")
GLM = ("glm45", "glm47")
DEEPSEEK = ("deepseek_v3", "deepseek_v3_1")


@dataclass(frozen=True, slots=True)
class Difference:
    """A class of input, the formats where it matters with the number of such cases, and both readings."""

    kind: str
    counts: dict[str, int]
    title: str
    vllm: str
    ours: str
    why: str


def each(formats: tuple[str, ...], count: int) -> dict[str, int]:
    return dict.fromkeys(formats, count)


DIFFERENCES = (
    Difference(
        "broken_neighbour",
        {**each((*HERMES_LIKE, "mistral", *LLAMA), 16)},
        "a broken call between two good ones",
        "no call at all",
        "the two good calls, and the broken one is reported",
        "the good calls are kept, and the model learns what was wrong",
    ),
    Difference(
        "broken_neighbour",
        {"mistral_named": 16, "deepseek_v3": 14, "deepseek_v3_1": 16, "kimi_k2": 11},
        "a broken call between two good ones",
        "a third call with arguments that are not JSON, without a name, or with the next call's arguments",
        "the two good calls, and the broken one is reported",
        "a call that the model did not make must not run",
    ),
    Difference(
        "broken_neighbour",
        {"qwen3_coder": 4, "glm45": 3, "glm47": 11},
        "a broken call between two good ones",
        "a third call without the argument that was cut off, or with a tag in its name",
        "the two good calls, and the broken one is reported",
        "a command without its argument may do something else",
    ),
    Difference(
        "only_broken",
        {"mistral_named": 10, "deepseek_v3": 5, "deepseek_v3_1": 8, "kimi_k2": 8},
        "a broken call alone",
        "a call with arguments that are not JSON, or without a name",
        "no call; the broken one is reported",
        "as above",
    ),
    Difference(
        "only_broken",
        {"qwen3_coder": 2, "glm45": 2, "glm47": 9},
        "a broken call alone",
        "a call without the argument that was cut off, or with a tag in its name",
        "no call; the broken one is reported",
        "as above",
    ),
    Difference(
        "cut_short",
        {"hermes": 5, "qwen": 8, "longcat": 9, "mistral": 5, "llama3_json": 9, "llama4_json": 13},
        "the text ends in the middle of the last call",
        "no call, not even those that were complete",
        "the complete calls, and the last one is reported as broken",
        "the complete calls are kept",
    ),
    Difference(
        "cut_short",
        {"mistral_named": 14, "kimi_k2": 14},
        "the text ends in the middle of the last call",
        "the last call with half of its JSON",
        "the last one is reported as broken",
        "it was never finished",
    ),
    Difference(
        "cut_short",
        {"qwen3_coder": 14, **each(GLM, 14)},
        "the text ends in the middle of the last call",
        "the last call without the argument it was in",
        "the last one is reported as broken",
        "a file would be written without its content",
    ),
    Difference(
        "cut_before_the_end",
        {"mistral": 8},
        "only the `]` of the list is missing",
        "no call",
        "all calls",
        "each object is complete",
    ),
    Difference(
        "cut_before_the_end",
        each(GLM, 8),
        "only the last `</tool_call>` is missing",
        "the call",
        "the last one is reported as broken",
        "more arguments could have followed",
    ),
    Difference(
        "markup_in_value",
        {"hermes": 7, "qwen": 7, "longcat": 10, "mistral": 8},
        "the format's own markers inside a string",
        "no call",
        "the string as written",
        "an agent may write a file that contains tool calls",
    ),
    Difference(
        "markup_in_value",
        {"mistral_named": 12, "deepseek_v3_1": 7, "kimi_k2": 5},
        "the format's own markers inside a string",
        "the call with half of its JSON, or with a piece of the text as its name",
        "the string as written",
        "as above",
    ),
    Difference(
        "markup_in_value",
        {"qwen3_coder": 2, **each(GLM, 4)},
        "the format's own markers inside a value",
        "the call without that argument",
        "the value as written, up to the tag that closes it",
        "as above",
    ),
    Difference(
        "thinking",
        each(
            (
                *HERMES_LIKE,
                "mistral_named",
                *LLAMA,
                "qwen3_coder",
                *DEEPSEEK,
                "kimi_k2",
                *GLM,
            ),
            6,
        ),
        "a call inside `<think>…</think>` before the real one",
        "both calls, unless a configured reasoning parser removed the reasoning",
        "the real one; the reasoning stays in the content",
        "a call in reasoning is not meant to run, whatever the server's configuration",
    ),
    Difference(
        "thinking",
        {"mistral": 6},
        "a call inside `<think>…</think>` before the real one",
        "the call in the reasoning, and not the real one",
        "the real one; the reasoning stays in the content",
        "as above",
    ),
    Difference(
        "null_arguments",
        each((*HERMES_LIKE, *LLAMA), 2),
        "the arguments are `null`",
        "arguments `null`",
        "arguments `{}`",
        "a tool takes an object; mistral's parser in vLLM does the same",
    ),
    Difference(
        "no_arguments_key",
        each(HERMES_LIKE, 1),
        "an object with a name and no arguments",
        "no call",
        "the call with arguments `{}`",
        "models omit empty arguments",
    ),
    Difference(
        "string_arguments",
        each((*HERMES_LIKE, *LLAMA), 2),
        "the arguments are JSON inside a string",
        "a string inside a string",
        "the JSON that the model wrote",
        "models do this, as the OpenAI API does; mistral's parser in vLLM does the same",
    ),
    Difference(
        "array_arguments",
        {"mistral_named": 1},
        "the arguments are an array",
        "one call whose name is both calls' text",
        "both calls; argument validation rejects the array",
        "the model gets an error message",
    ),
    Difference(
        "empty_arguments",
        each(DEEPSEEK, 1),
        "nothing where the arguments should be",
        "an empty string, which is not JSON",
        "arguments `{}`",
        "a tool without parameters can be called; kimi_k2's parser in vLLM does the same",
    ),
    Difference(
        "not_a_number",
        each((*HERMES_LIKE, "mistral", *LLAMA), 1),
        "`NaN` in the arguments",
        "arguments with `NaN`, which is not JSON",
        "reported as broken",
        "a later JSON parser would fail on it",
    ),
    Difference(
        "half_a_pair",
        each((*HERMES_LIKE, "mistral", *LLAMA), 1),
        "a lone surrogate as an escape",
        "a string that cannot be encoded",
        "U+FFFD in its place",
        "one odd character must not cost a rollout",
    ),
    Difference(
        "wrong_types",
        {"mistral_named": 1, "kimi_k2": 1},
        "JSON values whose type differs from the schema's",
        "changed to the schema's type",
        "as the model wrote them",
        "JSON has types; argument validation reports the error, so the model can learn them",
    ),
    Difference(
        "long_number",
        {"qwen3_coder": 1, **each(GLM, 1)},
        "an integer over 2⁵³ where the schema says `number`",
        "the nearest float",
        "the number",
        "ids can be such numbers",
    ),
    Difference(
        "next_call_opened_before_this_is_closed",
        {**each(HERMES_LIKE, 1), **each(GLM, 1)},
        "the next call begins before this one is closed",
        "no call",
        "both calls",
        "both are complete",
    ),
    Difference(
        "parameter_not_closed",
        {"qwen3_coder": 1},
        "the last `</parameter>` is missing",
        "the call without that parameter",
        "the call with it",
        "`</function>` ends it",
    ),
    Difference(
        "value_not_closed",
        each(GLM, 1),
        "the last `</arg_value>` is missing",
        "the call without that argument",
        "the call with it",
        "`</tool_call>` ends it",
    ),
    Difference(
        "function_not_closed",
        {"qwen3_coder": 2},
        "`</function>` is missing",
        "the next call is lost; at the end of the text the call counts",
        "the next call counts; at the end of the text the call is reported as broken",
        "`</tool_call>` ends the call; at the end of the text more parameters could have followed",
    ),
    Difference(
        "section_missing",
        each((*DEEPSEEK, "kimi_k2"), 2),
        "calls without the marker that begins all calls",
        "no call",
        "the calls",
        "otherwise the agent would end with unparsed calls as its answer",
    ),
    Difference(
        "pretty",
        each(DEEPSEEK, 14),
        "arguments on several lines",
        "no call",
        "the calls",
        "a pattern without DOTALL loses them silently",
    ),
    Difference(
        "other_type",
        {"deepseek_v3": 1},
        "a type other than `function`",
        "no call",
        "the call",
        "there is no other type",
    ),
    Difference(
        "no_fence",
        {"deepseek_v3": 1},
        "no code fence around the arguments",
        "no call",
        "the call",
        "the call is unambiguous",
    ),
    Difference(
        "no_index",
        {"kimi_k2": 1},
        "an id without `:0`",
        "no call",
        "the call, with a generated id",
        "the call is unambiguous",
    ),
    Difference(
        "colon_in_name",
        {"kimi_k2": 1},
        "a tool with a colon in its name",
        "the name up to the colon",
        "the whole name",
        "it is the tool's name",
    ),
    Difference(
        "unknown_tool",
        each(GLM, 6),
        "a tool that was not offered",
        "no call",
        "the call; the agent loop answers that there is no such tool",
        "the model gets an error message",
    ),
    Difference(
        "answer_beside_a_call",
        each(LLAMA, 2),
        "other braces next to a call",
        "no call",
        "the call; the rest is content",
        "agents write code and JSON in ordinary text",
    ),
    Difference(
        "two_lists",
        {"mistral": 1},
        "two lists of calls",
        "those of the first",
        "all",
        "the model made them",
    ),
    Difference(
        "brace_too_many",
        {"mistral": 1},
        "one brace too many between two calls",
        "no call",
        "both calls",
        "both are complete",
    ),
    Difference(
        "no_name",
        {"mistral": 1, "mistral_named": 1},
        "a call without a name",
        "a call of the tool `` ``",
        "reported as broken",
        "there is no such tool",
    ),
    Difference(
        "name_only",
        {"mistral_named": 1},
        "a name and then nothing",
        "the call with arguments `{}`",
        "reported as broken",
        "the name itself may be truncated",
    ),
)


def table() -> Iterator[str]:
    yield "| input | formats | vLLM 0.32 | here | why |"
    yield "|---|---|---|---|---|"
    for difference in DIFFERENCES:
        formats = ", ".join(difference.counts)
        yield f"| {difference.title} | {formats} | {difference.vllm} | {difference.ours} | {difference.why} |"


if __name__ == "__main__":
    print("\n".join(table()))
