"""Hostile inputs for every tool-call parser, and the results: faults, CPU time, and its growth with the text.

Inputs are the texts of tests/parsers/cases.py with random edits, cuts and joins, random bytes as text, markers repeated
without end, and JSON nested without end. Most are small, some have 64 KB; a ladder of hostile shapes goes up to 1 MB.
The same seed gives the same inputs. A CPU time over the goal is measured again, because the machine may be busy.
"""

import gc
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hermes_rl.parsers import ParsedText, get_parser
from tests.parsers.cases import CASES, FORMATS, TOOLS, Format

LARGE, LARGEST = 64 * 1024, 1024 * 1024
CPU_GOAL_MS, RATIO_GOAL = 50.0, 3.0
LARGE_EVERY = 1_000
# For a text of 1 MB parsed this fast, the ratio would be noise.
NOTHING_MS = 5.0

JSON_PIECES = [
    '{"name": "now", "arguments": ',
    '{"name": "',
    '{"',
    '"',
    "\\",
    '\\"',
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "[],",
    "{},",
]
JSON_PIECES += [
    '{"a":',
    "[[1],2],",
    '{"a":{"b":1}},',
    '"a",',
    "1,",
    "-1e9,",
    "null",
    "NaN",
    "\\ud83d",
    '{"parameters": {}',
    "[{}],",
]
PIECES = [
    *JSON_PIECES,
    "<think>",
    "</think>",
    "\n",
    " ",
    "<",
    ">",
    "```",
    "```json",
    "\x00",
    "\ud83d",
    "é",
    "🙂",
    "\u2028",
]
MARKERS = {
    known.name: sorted({piece for piece in (*known.markup, *known.around, known.close, *known.broken) if piece})
    for known in FORMATS
}
EXTRA = {
    "qwen3_coder": [
        "<function=a>",
        "<parameter=",
        "<parameter=a>",
        "</parameter>",
        "<function=",
        "</function></tool_call>",
    ],
    "glm45": [
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "<tool_call>a",
        "<arg_key>a</arg_key><arg_value>",
    ],
    "mistral_named": ["[CALL_ID]", "[TOOL_CALLS]a{", "[TOOL_CALLS]a{}", "[TOOL_CALLS]a[ARGS]", '[TOOL_CALLS]a{"'],
    "deepseek_v3": [
        "<｜tool▁sep｜>",
        "<｜tool▁call▁begin｜><｜tool▁sep｜>a\n{}",
        "<｜tool▁call▁begin｜>f<｜tool▁sep｜>",
    ],
    "deepseek_v3_1": [
        "<｜tool▁sep｜>",
        "<｜tool▁call▁begin｜>a<｜tool▁sep｜>{}",
        '<｜tool▁call▁begin｜>a<｜tool▁sep｜>{"',
    ],
    "kimi_k2": [
        "<|tool_call_begin|>a<|tool_call_argument_begin|>{}",
        '<|tool_call_begin|>a<|tool_call_argument_begin|>["',
    ],
    "llama3_json": [
        '{"name":"","arguments":1}',
        '{"name":{"arguments":',
        '<|python_tag|>{"',
        '{"name": "a", "arguments": {"',
    ],
    "hermes": ['<tool_call>{"', '<tool_call>["', '<tool_call>{"name": "a"', "<tool_call>\n"],
}
EXTRA["glm47"], EXTRA["llama4_json"] = EXTRA["glm45"], EXTRA["llama3_json"]
SEEDS: dict[str, list[str]] = defaultdict(list)
for case in CASES:
    SEEDS[case.format].append(case.text)


def pieces_of(f: Format) -> list[str]:
    return [*MARKERS[f.name], *EXTRA.get(f.name, ()), *PIECES]


def edited(rng: random.Random, f: Format) -> str:
    text, pieces = rng.choice(SEEDS[f.name]), pieces_of(f)
    for _ in range(rng.randint(1, 6)):
        at, to = sorted((rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)))
        match rng.randrange(6):
            case 0:
                text = text[:at] + text[to:]
            case 1:
                text = text[:to] + text[at:]
            case 2:
                text = text[:at] + rng.choice(pieces) + text[at:]
            case 3:
                text = text[:at] + chr(rng.randrange(1, 0x3000)) + text[at + 1 :]
            case 4:
                text = text[:at] + rng.choice(SEEDS[f.name])[:300] + text[at:]
            case _:
                text = text[:at] + rng.choice(pieces) * rng.randint(1, 20) + text[to:]
    return text


def cut(rng: random.Random, f: Format) -> str:
    text = rng.choice(SEEDS[f.name])
    begin, end = sorted((rng.choice([0, rng.randrange(len(text) + 1)]), rng.randrange(len(text) + 1)))
    return text[begin:end]


def noise(rng: random.Random, f: Format) -> str:
    raw = rng.randbytes(rng.randint(0, 400))
    text = raw.decode(rng.choice(["latin-1", "utf-8", "utf-16-le"]), rng.choice(["replace", "ignore"]))
    return rng.choice(MARKERS[f.name]) + text if rng.random() < 0.5 else text


def joined(rng: random.Random, f: Format) -> str:
    return "".join(rng.choices(pieces_of(f), k=rng.randint(1, 40)))


def repeated(rng: random.Random, f: Format) -> str:
    pieces = pieces_of(f)
    unit = "".join(rng.choices(pieces, k=rng.randint(1, 3)))
    return rng.choice(["", rng.choice(pieces)]) + unit * rng.randint(1, 60) + rng.choice(["", rng.choice(pieces)])


def nested(rng: random.Random, f: Format) -> str:
    depth = rng.randint(1, 300)
    opened, closed = rng.choice([("[", "]"), ('{"a":', "}"), ('[{"name":', "}]"), ('{"arguments": [', "]}")])
    inside = opened * depth + rng.choice(["1", "", '"x']) + closed * rng.choice([depth, depth - 1, 0])
    return f.text(f.call("now", {"x": 0}).replace("0", inside, 1))


def large(rng: random.Random, f: Format) -> str:
    """One of the above, repeated up to 64 KB."""
    text = ""
    while not text:
        text = rng.choice(MAKERS)(rng, f)
    return (text * (LARGE // len(text) + 1))[:LARGE]


MAKERS: tuple[Callable[[random.Random, Format], str], ...] = (
    edited,
    edited,
    edited,
    cut,
    noise,
    joined,
    repeated,
    nested,
)


@dataclass
class Findings:
    """Results of a run: counts, faults, and the slowest input of each size."""

    inputs: int = 0
    large_inputs: int = 0
    characters: int = 0
    calls: int = 0
    broken: int = 0
    faults: list[str] = field(default_factory=list)
    worst_ms: float = 0.0
    worst_input: str = ""
    worst_ratio: float = 0.0
    worst_shape: str = ""
    largest_ms: float = 0.0


def timed(name: str, text: str) -> tuple[float, ParsedText]:
    parser = get_parser(name)
    began = time.thread_time()
    parsed = parser.parse(text, TOOLS)
    return (time.thread_time() - began) * 1000, parsed


def least_ms(name: str, text: str, times: int) -> float:
    gc.collect()
    return min(timed(name, text)[0] for _ in range(times))


def try_one(name: str, text: str, found: Findings) -> None:
    found.inputs += 1
    found.characters += len(text)
    try:
        spent, parsed = timed(name, text)
    except Exception as error:  # noqa: BLE001 (any exception is what we look for)
        found.faults.append(f"{name}: {type(error).__name__}: {error} on {text[:300]!r}")
        return
    found.calls += len(parsed.calls)
    found.broken += len(parsed.broken)
    if not all(call.name and isinstance(call.arguments, str) for call in parsed.calls):
        found.faults.append(f"{name}: a call without a name on {text[:300]!r}")
    if not all(broken.reason for broken in parsed.broken):
        found.faults.append(f"{name}: a broken call without a reason on {text[:300]!r}")
    if spent > found.worst_ms:
        spent = min(spent, least_ms(name, text, 3))
        if spent > found.worst_ms:
            found.worst_ms, found.worst_input = spent, f"{name}: {text[:60]!r} ({len(text)} characters)"


def fuzz(count: int, seed: int, found: Findings, progress: Callable[[int], object] = id) -> None:
    rng = random.Random(seed)
    for number in range(count):
        f = FORMATS[number % len(FORMATS)]
        if number % LARGE_EVERY < len(FORMATS) and number // LARGE_EVERY % 2 == 0:
            text = large(rng, f)
            found.large_inputs += 1
        else:
            text = rng.choice(MAKERS)(rng, f)
        try_one(f.parser, text, found)
        progress(number + 1)


def shapes(f: Format) -> Iterator[tuple[str, str]]:
    """A prefix, and the piece repeated after it."""
    openings = {"", f.around[0], f.call("now", {"x": 0}).split("0")[0], f.call("now", {"x": "0"}).split("0")[0]}
    openings.add(f.call("now", {"x": [0]}).split("0")[0])
    for opening in sorted(openings):
        for unit in dict.fromkeys((*MARKERS[f.name], *EXTRA.get(f.name, ()), *PIECES, f.call("now", {"x": "y"}), "x")):
            yield opening, unit


def climb(found: Findings, every: int = 1) -> None:
    """Each shape at 64 KB and at 1 MB: the time per character must not grow."""
    for f in FORMATS:
        for number, (opening, unit) in enumerate(shapes(f)):
            if number % every:
                continue
            texts = {size: opening + unit * ((size - len(opening)) // len(unit)) for size in (LARGE, LARGEST)}
            try_one(f.parser, texts[LARGE], found)
            longest = least_ms(f.parser, texts[LARGEST], 1)
            if longest <= NOTHING_MS:
                continue
            ratio = _ratio(f.parser, texts, longest)
            found.largest_ms = max(found.largest_ms, longest)
            if ratio > found.worst_ratio:
                found.worst_ratio, found.worst_shape = ratio, f"{f.name}: {opening[:40]!r} then {unit[:40]!r}"


def _ratio(name: str, texts: dict[int, str], longest: float) -> float:
    shortest = least_ms(name, texts[LARGE], 3)
    ratio = (longest / len(texts[LARGEST])) / (shortest / len(texts[LARGE]))
    if ratio < RATIO_GOAL * 0.7:
        return ratio
    return (least_ms(name, texts[LARGEST], 3) / len(texts[LARGEST])) / (
        least_ms(name, texts[LARGE], 5) / len(texts[LARGE])
    )
