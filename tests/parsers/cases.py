"""Texts as models write them, valid and broken, for every format. Each is built from the calls it must parse to.

The same seed gives the same texts. tests/parsers runs our parsers on `CASES`, tests/engines runs vLLM's.
"""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

Arguments: TypeAlias = dict[str, Any]
Call: TypeAlias = tuple[str, Any]


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


STRING, INTEGER, NUMBER, BOOLEAN = ({"type": kind} for kind in ("string", "integer", "number", "boolean"))
TOOLS = [
    tool("terminal", command=STRING, timeout=INTEGER, background=BOOLEAN),
    tool("write_file", path=STRING, content=STRING),
    tool(
        "search",
        query=STRING,
        limit=INTEGER,
        threshold=NUMBER,
        exact=BOOLEAN,
        filters={"type": "object"},
        tags={"type": "array", "items": STRING},
        page={"anyOf": [INTEGER, {"type": "null"}]},
    ),
    tool("now"),
]
WORDS = [
    "ls -la /tmp",
    "hello world",
    "rm a.txt",
    "def f(x):",
    "SELECT 1;",
    "a, b",
    "it's",
    "C:\\dir",
    '"quoted"',
    "50%",
]
WORDS += ["#!/bin/sh", "a=b&c=d", "x < y"]
FOREIGN = ["žluťoučký kůň", "日本語のテキスト", "مرحبا", "🙂🚀", "naïve café", "Ελληνικά", "한국어 글", "ß√∞"]
PROSE = [
    "Let me look.",
    "I will run this now.",
    "First the files.\nThen the rest.",
    "Ok, done!",
    "Here you are: see below.",
]


@dataclass(frozen=True, slots=True)
class Format:
    """How a format writes calls. `broken` are single calls that cannot be parsed."""

    name: str
    parser: str
    call: Callable[[str, Any], str]
    pretty: Callable[[str, Any], str]
    around: tuple[str, str] = ("", "")
    between: str = "\n"
    close: str = ""
    broken: tuple[str, ...] = ()
    markup: tuple[str, ...] = ()
    # Whether a call counts only if it is closed, because more arguments could follow.
    must_close: bool = False

    def text(self, *calls: str) -> str:
        return self.around[0] + self.between.join(calls) + self.around[1]


@dataclass(frozen=True, slots=True)
class Case:
    """A text, its calls, and the number of broken calls in it. `kind` names its class of input."""

    format: str
    parser: str
    kind: str
    text: str
    calls: tuple[Call, ...]
    broken: int = 0


def dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def indented(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


def bare(value: Any) -> str:
    return value if isinstance(value, str) else dumped(value)


def tagged_json(name: str, opened: str, closed: str) -> Format:
    return Format(
        name,
        name,
        call=lambda tool, arguments: f"{opened}\n{dumped({'name': tool, 'arguments': arguments})}\n{closed}",
        pretty=lambda tool, arguments: f"{opened}\n{indented({'name': tool, 'arguments': arguments})}\n{closed}",
        close=f"\n{closed}",
        broken=(
            f"{opened}{{not json}}{closed}",
            f'{opened}{{"name": "now", "arguments": {{"x": 1}}{closed}',
            f'{opened}{{"arguments": {{}}}}{closed}',
            f"{opened}{{'name': 'now', 'arguments': {{}}}}{closed}",
            f"{opened}[1, 2]{closed}",
            f"{opened}{closed}",
            f'{opened}{{"name": "now", "arguments": {{"x": "a\nb"}}}}{closed}',
        ),
        markup=(opened, closed, f"{opened}{{}}{closed}"),
    )


def qwen3_parameters(arguments: Arguments) -> str:
    return "".join(f"<parameter={key}>\n{bare(value)}\n</parameter>\n" for key, value in arguments.items())


def glm_arguments(arguments: Arguments, line: str) -> str:
    return "".join(
        f"<arg_key>{key}</arg_key>{line}<arg_value>{bare(value)}</arg_value>{line}" for key, value in arguments.items()
    )


def glm(name: str, line: str) -> Format:
    return Format(
        name,
        name,
        call=lambda tool, arguments: f"<tool_call>{tool}{line}{glm_arguments(arguments, line)}</tool_call>",
        pretty=lambda tool, arguments: f"<tool_call>{tool}\n\n{glm_arguments(arguments, chr(10) * 2)}</tool_call>",
        between=line,
        close="</tool_call>",
        broken=(
            "<tool_call></tool_call>",
            '<tool_call>{"name": "now", "arguments": {}}</tool_call>',
            "<tool_call>let me see</tool_call>",
            "<tool_call>terminal<arg_key>command</tool_call>",
            "<tool_call>terminal<arg_key>command</arg_key></tool_call>",
        ),
        markup=("<tool_call>", "</tool_call>", "<arg_key>x</arg_key>", "</think>"),
        must_close=True,
    )


DS_ALL, DS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
DS, SEP, DSE = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
KIMI_ALL, KIMI_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
KIMI, KIMI_ARGS, KIMIE = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"


def llama(name: str) -> Format:
    return Format(
        name,
        name,
        call=lambda tool, arguments: dumped({"name": tool, "parameters": arguments}),
        pretty=lambda tool, arguments: indented({"name": tool, "arguments": arguments}),
        around=("<|python_tag|>", ""),
        between="; ",
        broken=(
            '{"name": "now", "parameters": {"x": }}',
            '{"name": "now", "parameters": {"x": 1}',
            '{"name": "now", "parameters": {"x": "open}}',
            '{"name": 3, "parameters": {}}',
            '{"name": "now", "parameters": {"x": "a\nb"}}',
        ),
        markup=("<|python_tag|>", '{"name": "now", "parameters": {}}', "; {"),
    )


FORMATS = (
    tagged_json("hermes", "<tool_call>", "</tool_call>"),
    tagged_json("qwen", "<tool_call>", "</tool_call>"),
    tagged_json("longcat", "<longcat_tool_call>", "</longcat_tool_call>"),
    Format(
        "mistral",
        "mistral",
        call=lambda tool, arguments: dumped({"name": tool, "arguments": arguments}),
        pretty=lambda tool, arguments: indented({"name": tool, "arguments": arguments}),
        around=("[TOOL_CALLS] [", "]"),
        between=", ",
        close="]",
        broken=(
            '{"name": "now", "arguments": {"x": }}',
            '{"name": "now", "arguments": {"x": 1}',
            '{"name": "now", "arguments": {"x": "open}}',
            '{"name": "now", "arguments": {"x": "a\nb"}}',
        ),
        markup=("[TOOL_CALLS]", '[TOOL_CALLS] [{"name": "now"}]', "}]"),
    ),
    Format(
        "mistral_named",
        "mistral",
        call=lambda tool, arguments: f"[TOOL_CALLS]{tool}{dumped(arguments)}",
        pretty=lambda tool, arguments: f"[TOOL_CALLS]{tool}[ARGS]{indented(arguments)}",
        between="",
        broken=(
            '[TOOL_CALLS]now{"x": }',
            '[TOOL_CALLS]now{"x": 1',
            '[TOOL_CALLS]now[ARGS]{"x": "open}',
            '[TOOL_CALLS]{"x": }',
        ),
        markup=("[TOOL_CALLS]", "[ARGS]", "[TOOL_CALLS]now{}"),
    ),
    llama("llama3_json"),
    llama("llama4_json"),
    Format(
        "qwen3_coder",
        "qwen3_coder",
        call=lambda tool, arguments: (
            f"<tool_call>\n<function={tool}>\n{qwen3_parameters(arguments)}</function>\n</tool_call>"
        ),
        pretty=lambda tool, arguments: (
            f"<tool_call>\n\n<function={tool}>\n\n{qwen3_parameters(arguments)}\n</function>\n\n</tool_call>"
        ),
        close="\n</tool_call>",
        broken=(
            "<tool_call></tool_call>",
            '<tool_call>{"name": "now", "arguments": {}}</tool_call>',
            "<tool_call><function=></function></tool_call>",
            "<tool_call><function=terminal<parameter=command>\nls\n</parameter></function></tool_call>",
        ),
        markup=("</function>", "<tool_call>", "</tool_call>", "<function=now>", "</think>"),
    ),
    Format(
        "deepseek_v3",
        "deepseek_v3",
        call=lambda tool, arguments: f"{DS}function{SEP}{tool}\n```json\n{dumped(arguments)}\n```{DSE}",
        pretty=lambda tool, arguments: f"{DS}function{SEP}{tool}\n```json\n{indented(arguments)}\n```{DSE}",
        around=(DS_ALL, DS_END),
        close=DS_END,
        broken=(
            f'{DS}function{SEP}now\n```json\n{{"x": }}\n```{DSE}',
            f"{DS}function{SEP}now\n```json\n{{not json}}\n```{DSE}",
            f"{DS}function now {{}}{DSE}",
            f"{DS}function{SEP}\n```json\n{{}}\n```{DSE}",
        ),
        markup=(DS, DSE, DS_END, f"\n```{DSE}", "```"),
    ),
    Format(
        "deepseek_v3_1",
        "deepseek_v3_1",
        call=lambda tool, arguments: f"{DS}{tool}{SEP}{dumped(arguments)}{DSE}",
        pretty=lambda tool, arguments: f"{DS}{tool}{SEP}{indented(arguments)}{DSE}",
        around=(DS_ALL, DS_END),
        between="",
        close=DS_END,
        broken=(
            f'{DS}now{SEP}{{"x": }}{DSE}',
            f"{DS}now{SEP}{{not json}}{DSE}",
            f"{DS}now {{}}{DSE}",
            f"{DS}{SEP}{{}}{DSE}",
        ),
        markup=(DS, DSE, DS_END, f"{DS}now{SEP}{{}}{DSE}"),
    ),
    Format(
        "kimi_k2",
        "kimi_k2",
        call=lambda tool, arguments: f"{KIMI}functions.{tool}:0{KIMI_ARGS}{dumped(arguments)}{KIMIE}",
        pretty=lambda tool, arguments: f"{KIMI}\nfunctions.{tool}:1\n{KIMI_ARGS}\n{indented(arguments)}\n{KIMIE}",
        around=(KIMI_ALL, KIMI_END),
        between="",
        close=KIMI_END,
        broken=(
            f'{KIMI}functions.now:0{KIMI_ARGS}{{"x": }}{KIMIE}',
            f"{KIMI}functions.now:0{KIMI_ARGS}{{not json}}{KIMIE}",
            f"{KIMI}functions.now:0 {{}}{KIMIE}",
            f"{KIMI}{KIMI_ARGS}{{}}{KIMIE}",
        ),
        markup=(KIMI, KIMIE, KIMI_END, KIMI_ARGS),
    ),
    glm("glm45", "\n"),
    glm("glm47", ""),
)
BY_NAME = {known.name: known for known in FORMATS}


def arguments_for(rng: random.Random, name: str, texts: list[str]) -> Arguments:
    """Arguments of that tool that fit its schema."""
    if name == "terminal":
        every: Arguments = {
            "command": rng.choice(texts),
            "timeout": rng.randint(-5, 10**9),
            "background": rng.random() < 0.5,
        }
    elif name == "write_file":
        every = {"path": f"{rng.choice('abc')}.txt", "content": " ".join(rng.choices(texts, k=3))}
    elif name == "search":
        every = {
            "query": rng.choice(texts),
            "limit": rng.randint(0, 50),
            "threshold": rng.randint(1, 999) / 1024,
            "exact": rng.random() < 0.5,
            "filters": {rng.choice("xyz"): rng.choice(texts), "n": [1, {"deep": None}]},
            "tags": rng.sample(texts, k=2),
            "page": rng.choice([None, 3]),
        }
    else:
        return {}
    kept = rng.sample(sorted(every), k=rng.randint(1, len(every)))
    return {key: every[key] for key in every if key in kept}


def any_call(rng: random.Random, texts: list[str] = WORDS) -> Call:
    name = rng.choice(["terminal", "write_file", "search"])
    return name, arguments_for(rng, name, texts)


Made: TypeAlias = tuple[str, list[Call], int]
Maker: TypeAlias = Callable[[Format, random.Random], Made]


def one(f: Format, rng: random.Random) -> Made:
    call = any_call(rng)
    return f.text(f.call(*call)), [call], 0


def several(f: Format, rng: random.Random) -> Made:
    calls = [any_call(rng) for _ in range(rng.randint(2, 6))]
    return f.text(*(f.call(*call) for call in calls)), calls, 0


def words_before(f: Format, rng: random.Random) -> Made:
    call = any_call(rng)
    return f"{rng.choice(PROSE)}\n\n{f.text(f.call(*call))}", [call], 0


def words_around(f: Format, rng: random.Random) -> Made:
    calls = [any_call(rng) for _ in range(rng.randint(1, 3))]
    return f"{rng.choice(PROSE)}{f.text(*(f.call(*call) for call in calls))}\n{rng.choice(PROSE)}", calls, 0


def unicode(f: Format, rng: random.Random) -> Made:
    calls = [any_call(rng, FOREIGN) for _ in range(rng.randint(1, 3))]
    return f.text(*(f.call(*call) for call in calls)), calls, 0


def nested(f: Format, rng: random.Random) -> Made:
    inner: Any = {"leaf": rng.choice(WORDS)}
    for _ in range(rng.randint(2, 30)):
        inner = rng.choice([{"k": inner}, {"a": [inner, 1.5, None]}, {"b": {"c": inner, "d": []}}])
    call = ("search", {"query": "q", "filters": inner})
    return f.text(f.call(*call)), [call], 0


def multi_line(f: Format, rng: random.Random) -> Made:
    text = "\n".join(rng.choices(WORDS, k=4))
    call = ("write_file", {"path": "a.txt", "content": text + rng.choice(["", "\n", "\n\n"])})
    return f.text(f.call(*call)), [call], 0


def pretty(f: Format, rng: random.Random) -> Made:
    calls = [any_call(rng) for _ in range(rng.randint(1, 3))]
    return f.text(*(f.pretty(*call) for call in calls)), calls, 0


def no_arguments(f: Format, rng: random.Random) -> Made:
    calls: list[Call] = [("now", {})] * rng.randint(1, 3)
    return f.text(*(f.call(*call) for call in calls)), calls, 0


def no_call(f: Format, rng: random.Random) -> Made:
    return " ".join(rng.choices(PROSE + FOREIGN, k=rng.randint(1, 6))), [], 0


def broken_neighbour(f: Format, rng: random.Random) -> Made:
    one, other = any_call(rng), any_call(rng)
    return f.text(f.call(*one), rng.choice(f.broken), f.call(*other)), [one, other], 1


def only_broken(f: Format, rng: random.Random) -> Made:
    return f.text(rng.choice(f.broken)), [], 1


def cut_short(f: Format, rng: random.Random) -> Made:
    """The text ends in the middle of the last call."""
    good = [any_call(rng) for _ in range(rng.randint(0, 2))]
    last = f.call("write_file", {"path": "a.txt", "content": "0123456789" * 3})
    text = f.around[0] + f.between.join([*(f.call(*call) for call in good), last])
    return text[: text.rindex("0123456789") + rng.randint(-12, 9)], good, 1


def cut_before_the_end(f: Format, rng: random.Random) -> Made:
    """Only the end of the last call is missing, because a server may treat that as the end of the text."""
    calls = [any_call(rng) for _ in range(rng.randint(1, 2))]
    text = f.text(*(f.call(*call) for call in calls)).removesuffix(f.close)
    return (text, calls[:-1], 1) if f.must_close else (text, calls, 0)


def markup_in_value(f: Format, rng: random.Random) -> Made:
    call = ("write_file", {"path": "notes.md", "content": f"It writes {rng.choice(f.markup)} before it stops."})
    after = any_call(rng)
    return f.text(f.call(*call), f.call(*after)), [call, after], 0


def thinking(f: Format, rng: random.Random) -> Made:
    """A call inside reasoning, followed by a real one."""
    thought, call = (f.text(f.call(*any_call(rng))) for _ in range(2)), any_call(rng)
    return f"<think>Should I write {next(thought)} now?</think>\n{f.text(f.call(*call))}", [call], 0


def unknown_tool(f: Format, rng: random.Random) -> Made:
    call = (rng.choice(["fly", "read_mail", "a.b-c"]), {"to": rng.choice(WORDS)})
    return f.text(f.call(*call)), [call], 0


def unknown_parameter(f: Format, rng: random.Random) -> Made:
    call = ("terminal", {"command": "ls", "colour": rng.choice(["red", "5", "true"])})
    return f.text(f.call(*call)), [call], 0


MAKERS: dict[Maker, int] = {
    one: 16,
    several: 16,
    words_before: 10,
    words_around: 10,
    unicode: 14,
    nested: 12,
    multi_line: 10,
    pretty: 14,
    no_arguments: 4,
    no_call: 8,
    broken_neighbour: 16,
    only_broken: 10,
    cut_short: 14,
    cut_before_the_end: 8,
    markup_in_value: 12,
    thinking: 6,
    unknown_tool: 6,
    unknown_parameter: 6,
}


def cases() -> Iterator[Case]:
    for f in FORMATS:
        for maker, count in MAKERS.items():
            rng = random.Random(f"{f.name} {maker.__name__}")
            for _ in range(count):
                text, calls, broken = maker(f, rng)
                yield Case(f.name, f.parser, maker.__name__, text, tuple(calls), broken)
        for kind, text, calls, broken in SPECIAL[f.name]:
            yield Case(f.name, f.parser, kind, text, tuple(calls), broken)


Special: TypeAlias = list[tuple[str, str, list[Call], int]]


def odd_objects(f: Format, wrap: Callable[[str], str], key: str = "arguments") -> Special:
    """Objects with a name whose arguments are not an object, or have odd contents."""
    good = f.call("terminal", {"command": "ls"})
    listed: Call = ("terminal", {"command": "ls"})

    def both(block: str) -> str:
        return f.text(wrap(block), good)

    return [
        ("null_arguments", both(f'{{"name": "now", "{key}": null}}'), [("now", {}), listed], 0),
        ("null_arguments", f.text(wrap(f'{{"name": "now", "{key}": null}}')), [("now", {})], 0),
        ("array_arguments", both(f'{{"name": "now", "{key}": [1, "a"]}}'), [("now", [1, "a"]), listed], 0),
        (
            "array_arguments",
            f.text(wrap(f'{{"name": "now", "{key}": []}}')),
            [
                ("now", []),
            ],
            0,
        ),
        ("string_arguments", both(f'{{"name": "now", "{key}": "{{\\"x\\": 1}}"}}'), [("now", {"x": 1}), listed], 0),
        ("string_arguments", f.text(wrap(f'{{"name": "now", "{key}": "{{}}"}}')), [("now", {})], 0),
        ("not_a_number", both(f'{{"name": "now", "{key}": {{"x": NaN}}}}'), [listed], 1),
        ("long_number", both(f'{{"name": "now", "{key}": {{"x": {2**80}}}}}'), [("now", {"x": 2**80}), listed], 0),
        (
            "escapes",
            both(f'{{"name": "now", "{key}": {{"x": "\\u00e9\\ud83d\\ude42\\n\\/"}}}}'),
            [("now", {"x": "é🙂\n/"}), listed],
            0,
        ),
        ("half_a_pair", both(f'{{"name": "now", "{key}": {{"x": "\\ud83d"}}}}'), [("now", {"x": "\ufffd"}), listed], 0),
    ]


def tagged_specials(f: Format) -> Special:
    opened, closed = f.markup[:2]
    return [
        *odd_objects(f, lambda block: f"{opened}{block}{closed}"),
        ("no_arguments_key", f'{opened}{{"name": "now"}}{closed}', [("now", {})], 0),
        (
            "next_call_opened_before_this_is_closed",
            f.call("now", {}).removesuffix(closed) + f.call("now", {}),
            [("now", {})] * 2,
            0,
        ),
    ]


def xml_numbers(f: Format) -> Special:
    def call(key: str, text: str) -> str:
        return f.text(f.call("search", {key: text}))

    return [
        ("typed", call("limit", "+5"), [("search", {"limit": 5})], 0),
        ("typed", call("limit", " 7 "), [("search", {"limit": 7})], 0),
        ("typed", call("limit", "many"), [("search", {"limit": "many"})], 0),
        ("typed", call("limit", "2.5"), [("search", {"limit": 2.5})], 0),
        ("typed", call("threshold", "1e-3"), [("search", {"threshold": 0.001})], 0),
        ("typed", call("threshold", ".5"), [("search", {"threshold": 0.5})], 0),
        ("typed", call("threshold", "NaN"), [("search", {"threshold": "NaN"})], 0),
        ("typed", call("exact", "True"), [("search", {"exact": True})], 0),
        ("typed", call("exact", "0"), [("search", {"exact": False})], 0),
        ("typed", call("exact", "yes"), [("search", {"exact": "yes"})], 0),
        ("typed", call("page", "null"), [("search", {"page": None})], 0),
        ("typed", call("page", "4"), [("search", {"page": 4})], 0),
        ("typed", call("filters", "{not json}"), [("search", {"filters": "{not json}"})], 0),
        ("typed", call("tags", '["a", "b"]'), [("search", {"tags": ["a", "b"]})], 0),
        ("typed", call("query", "5"), [("search", {"query": "5"})], 0),
        ("typed", call("query", "null"), [("search", {"query": "null"})], 0),
        ("typed", call("query", '{"a": 1}'), [("search", {"query": '{"a": 1}'})], 0),
        ("long_number", call("threshold", str(2**60 + 1)), [("search", {"threshold": 2**60 + 1})], 0),
        ("long_number", call("limit", str(2**60 + 1)), [("search", {"limit": 2**60 + 1})], 0),
    ]


WRONG_TYPES = {"command": 5, "timeout": "7"}
LS = ("terminal", {"command": "ls"})


def json_arguments(f: Format) -> Special:
    """For formats with bare arguments."""
    return [
        ("wrong_types", f.text(f.call("terminal", WRONG_TYPES)), [("terminal", WRONG_TYPES)], 0),
        ("array_arguments", f.text(f.call("now", [1]), f.call(*LS)), [("now", [1]), LS], 0),
        ("escapes", f.text(f.call("now", {"x": 0}).replace("0}", '"\\u00e9\\n"}')), [("now", {"x": "é\n"})], 0),
    ]


def deepseek(f: Format) -> Special:
    call = f.call(*LS)
    empty = f.call("now", {}).replace("{}", "")
    return [
        *json_arguments(f),
        ("section_missing", call, [LS], 0),
        ("section_missing", f"Now.\n{call}{call}", [LS, LS], 0),
        ("empty_arguments", f.text(empty, call), [("now", {}), LS], 0),
    ]


SPECIAL: dict[str, Special] = {
    **{name: tagged_specials(BY_NAME[name]) for name in ("hermes", "qwen", "longcat")},
    "mistral": [
        *odd_objects(BY_NAME["mistral"], lambda block: block),
        ("one_object", '[TOOL_CALLS] {"name": "now", "arguments": {}}', [("now", {})], 0),
        ("marker_twice", '[TOOL_CALLS][TOOL_CALLS] [{"name": "now", "arguments": {}}]', [("now", {})], 0),
        (
            "two_lists",
            '[TOOL_CALLS] [{"name": "now", "arguments": {}}] [TOOL_CALLS] [{"name": "now", "arguments": {}}]',
            [("now", {})] * 2,
            0,
        ),
        (
            "brace_too_many",
            '[TOOL_CALLS] [{"name": "now", "arguments": {}}}, {"name": "now", "arguments": {}}]',
            [("now", {})] * 2,
            0,
        ),
        ("no_name", '[TOOL_CALLS] [{"arguments": {}}, {"name": "now", "arguments": {}}]', [("now", {})], 1),
        ("empty_list", "[TOOL_CALLS] []", [], 1),
        (
            "wrong_types",
            BY_NAME["mistral"].text(BY_NAME["mistral"].call("terminal", WRONG_TYPES)),
            [("terminal", WRONG_TYPES)],
            0,
        ),
    ],
    "mistral_named": [
        *json_arguments(BY_NAME["mistral_named"]),
        ("words_after_the_object", "[TOOL_CALLS]now{} and then [TOOL_CALLS]now{} done", [("now", {})] * 2, 0),
        ("name_only", "[TOOL_CALLS]now", [], 1),
        ("no_name", '[TOOL_CALLS][ARGS]{"x": 1}', [], 1),
    ],
    **{
        name: [
            *odd_objects(BY_NAME[name], lambda block: block, "parameters"),
            ("no_tag", '{"name": "now", "parameters": {}}', [("now", {})], 0),
            ("no_tag", 'I call {"name": "now", "parameters": {}} for you.', [("now", {})], 0),
            (
                "list",
                '[{"name": "now", "parameters": {}}, {"name": "now", "arguments": {"x": 1}}]',
                [("now", {}), ("now", {"x": 1})],
                0,
            ),
            ("answer_beside_a_call", '{"name": "now", "parameters": {}} gave {"time": 5}', [("now", {})], 0),
            (
                "answer_beside_a_call",
                'In `f() { return {}; }` I see it. {"name": "now", "parameters": {}}',
                [("now", {})],
                0,
            ),
            ("answer_in_json", '{"name": "Ada", "born": 1815}', [], 0),
            ("answer_in_json", '{"result": {"name": "now", "parameters": {}}}', [], 0),
            ("tag_before_code", "<|python_tag|>search.call(query='x')", [], 1),
        ]
        for name in ("llama3_json", "llama4_json")
    },
    "qwen3_coder": [
        *xml_numbers(BY_NAME["qwen3_coder"]),
        ("no_wrapper", "<function=now>\n</function>", [("now", {})], 0),
        ("no_wrapper", "Ok.\n<function=terminal>\n<parameter=command>\nls\n</parameter>\n</function>", [LS], 0),
        (
            "two_in_one",
            "<tool_call>\n<function=now>\n</function>\n<function=now>\n</function>\n</tool_call>",
            [("now", {})] * 2,
            0,
        ),
        (
            "parameter_not_closed",
            "<tool_call>\n<function=terminal>\n<parameter=command>\nls\n</function>\n</tool_call>",
            [LS],
            0,
        ),
        (
            "parameter_not_closed",
            "<tool_call>\n<function=write_file>\n<parameter=path>\na\n<parameter=content>\nb\n</parameter>\n</function>\n</tool_call>",
            [("write_file", {"path": "a", "content": "b"})],
            0,
        ),
        (
            "function_not_closed",
            "<tool_call>\n<function=terminal>\n<parameter=command>\nls\n</parameter>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
            [LS, ("now", {})],
            0,
        ),
        ("function_not_closed", "<tool_call>\n<function=terminal>\n<parameter=command>\nls\n</parameter>\n", [], 1),
        (
            "newlines_in_value",
            "<tool_call>\n<function=terminal>\n<parameter=command>\n\nls\n\n</parameter>\n</function>\n</tool_call>",
            [("terminal", {"command": "\nls\n"})],
            0,
        ),
    ],
    "deepseek_v3": [
        *deepseek(BY_NAME["deepseek_v3"]),
        ("other_type", f"{DS_ALL}{DS}tool{SEP}now\n```json\n{{}}\n```{DSE}{DS_END}", [("now", {})], 0),
        ("no_fence", f"{DS_ALL}{DS}function{SEP}now\n{{}}{DSE}{DS_END}", [("now", {})], 0),
    ],
    "deepseek_v3_1": deepseek(BY_NAME["deepseek_v3_1"]),
    "kimi_k2": [
        *deepseek(BY_NAME["kimi_k2"]),
        ("no_index", f"{KIMI_ALL}{KIMI}functions.now{KIMI_ARGS}{{}}{KIMIE}{KIMI_END}", [("now", {})], 0),
        ("no_prefix", f"{KIMI_ALL}{KIMI}now:3{KIMI_ARGS}{{}}{KIMIE}{KIMI_END}", [("now", {})], 0),
        ("colon_in_name", f"{KIMI_ALL}{KIMI}functions.mcp:now:3{KIMI_ARGS}{{}}{KIMIE}{KIMI_END}", [("mcp:now", {})], 0),
    ],
    **{
        name: [
            *xml_numbers(BY_NAME[name]),
            ("value_not_closed", "<tool_call>terminal<arg_key>command</arg_key><arg_value>ls</tool_call>", [LS], 0),
            (
                "next_call_opened_before_this_is_closed",
                "<tool_call>now\n<tool_call>now</tool_call>",
                [("now", {})] * 2,
                0,
            ),
        ]
        for name in ("glm45", "glm47")
    },
}
CASES = tuple(cases())
