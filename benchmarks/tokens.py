"""Rendering and recording beside tokenising the whole conversation again for each turn, on the same conversations.

No engine: what a model would sample is encoded beforehand, about 68 tokens a turn; a tool's result has about 80.
Ours is all that an exact rollout pays for: prompts, replies, streams, the ledger with the engine's echo of each prompt,
and the invariant's check at the end. The other side renders the chat template and tokenises it for each turn, and does
nothing else. Seconds are of CPU; the sides alternate and repeat, and the figures are medians.

Whether the cost is linear is asked of the turns: their CPU by the tokens they added. The opening, 1,200 tokens, most of
them tool schemas, is rendered once and costs less a token, so that with it a short rollout looks cheaper than it is;
`ratio_with_the_opening` has that figure too.

Both formats have SmolLM2's tokenizer of 49,000 words: `template` with the model's own template, which knows no tools,
`renderer` with Qwen3's renderer and the tokens it needs.
"""

import argparse
import gc
import json
import os
import random
import sys
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ |= {"TOKENIZERS_PARALLELISM": "false", "TRANSFORMERS_VERBOSITY": "error"}

import orjson  # noqa: E402

from hermes_rl.console.run_command import tune_gc  # noqa: E402
from hermes_rl.core.messages import Message  # noqa: E402
from hermes_rl.core.trajectory import Sampling  # noqa: E402
from hermes_rl.inference.tokens.chat_format import ChatFormat, FormatSettings, Tools  # noqa: E402
from hermes_rl.inference.tokens.factory import chat_format  # noqa: E402
from hermes_rl.inference.tokens.recorder import Recorder, assistant_message  # noqa: E402
from hermes_rl.inference.tokens.sampled import EngineAnswer, Finish, Sampled  # noqa: E402
from hermes_rl.inference.tokens.token_check import Checked, WireLog  # noqa: E402
from hermes_rl.inference.tokens.tokenizer import load_tokenizer  # noqa: E402
from hermes_rl.parsers import get_parser  # noqa: E402
from hermes_rl.tools.registry import get_toolset  # noqa: E402

TURNS = (8, 32, 128)
RATIO_GOAL, SHARE_GOAL = 1.5, 0.03
TOKENS_PER_SECOND = 50
SAMPLING = Sampling(temperature=1.0)
OPENING: list[Message] = [
    {"role": "system", "content": "You are an agent with a terminal. Work step by step, and say when you are done."},
    {"role": "user", "content": "Find out why the tests in /workspace/project fail, and mend what is broken."},
]
TAGS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
WORDS = (
    "the test of parser fails because its input has an empty line before first header so we read file again look for "
    "function that splits text into parts and check whether count is right when nothing was given maybe error comes "
    "from cache which keeps old values after a change let me see what happens with another path or shorter list"
).split()


@dataclass(frozen=True, slots=True)
class Exchange:
    """One turn: what is sampled, as ids and as text, and what the tool answers."""

    sampled: Sampled
    text: str
    result: str


@dataclass(frozen=True, slots=True)
class Side:
    """A format, and the tokenizer and opening with which the whole conversation gives the same text."""

    format: ChatFormat
    tokenizer: Any
    opening: list[Message]
    template_tools: Tools | None
    thinks: bool
    answer: Callable[[str], str]


@dataclass(slots=True)
class Spent:
    """Seconds of CPU for one rollout, by part. `opening` is the first prompt, the only one rendered as a whole."""

    opening: float = 0.0
    ask: float = 0.0
    note: float = 0.0
    hear: float = 0.0
    check: float = 0.0
    note_without_echo: float = 0.0
    """Not a part: the same notes where the engine does not say what it was given."""

    @property
    def turns(self) -> float:
        return self.ask + self.note + self.hear + self.check

    @property
    def total(self) -> float:
        return self.opening + self.turns


@dataclass(slots=True)
class Size:
    """The conversation of one format with so many turns, and each round's measurements of it."""

    script: list[Exchange]
    tokens: int = 0
    opening_tokens: int = 0
    whole: bool = True
    """Every rollout held, in one sequence: nothing was rendered anew."""
    spent: list[Spent] = field(default_factory=list)
    retokenised: list[float] = field(default_factory=list)
    retokenised_tokens: int = 0

    def seconds(self, part: str = "total") -> float:
        return float(median(getattr(spent, part) for spent in self.spent))

    @property
    def generation_seconds(self) -> float:
        return sum(len(exchange.sampled.tokens) for exchange in self.script) / TOKENS_PER_SECOND


class Held(NamedTuple):
    """What a rollout keeps until it ends, and what goes on from there."""

    recorder: Recorder
    ledger: WireLog
    checked: Checked


def exchanges(side: Side, turns: int) -> list[Exchange]:
    source = random.Random(turns)
    made = []
    for turn in range(turns):
        said = " ".join(source.choices(WORDS, k=26))
        before = f"<think>\n{said}\n</think>\n\n" if side.thinks else f"{said}\n"
        command = f"sed -n {turn},{turn + 40}p {source.choice(WORDS)}/{source.choice(WORDS)}.py"
        call = json.dumps({"name": "terminal", "arguments": {"command": command}})
        text = f"{before}<tool_call>\n{call}\n</tool_call>"
        ids = (*side.format.encode(text), side.format.stop_token_ids[0])
        logprobs = tuple(-source.random() for _ in ids)
        sampled = Sampled(ids, logprobs, (turn,) * len(ids), Finish.STOP)
        result = json.dumps({"output": " ".join(source.choices(WORDS, k=44)), "exit_code": 0, "error": None})
        made.append(Exchange(sampled, text, result))
    return made


def recorded(side: Side, script: Sequence[Exchange], tools: Tools) -> tuple[Spent, Held]:
    recorder, ledger, without_echo = Recorder(side.format), WireLog(), WireLog()
    spent, clock = Spent(), time.process_time
    messages = list(OPENING)
    for turn, exchange in enumerate(script):
        began = clock()
        ask = recorder.prepare(messages, tools)
        asked = clock() - began
        # As an engine sends it: numbers of their own.
        answer = EngineAnswer((exchange.sampled,), tuple(orjson.loads(orjson.dumps(ask.ids))))
        began = clock()
        without_echo.note(ask.ids, answer._replace(prompt=None))
        spent.note_without_echo += clock() - began
        began = clock()
        ledger.note(ask.ids, answer)
        noted = clock()
        [reply] = recorder.record(ask, answer.completions, SAMPLING)
        heard = clock()
        if turn:
            spent.ask += asked
        else:
            spent.opening = asked
        spent.note += noted - began
        spent.hear += heard - noted
        messages.append(assistant_message(reply))
        messages.append({"role": "tool", "tool_call_id": reply.calls[0].id, "content": exchange.result})
    began = clock()
    checked = ledger.check(recorder.sequences(), side.format)
    spent.check = clock() - began
    return spent, Held(recorder, ledger, checked)


def retokenised(side: Side, script: Sequence[Exchange]) -> tuple[float, int]:
    """Seconds for the prompts of all turns, each from the beginning, and the length of the last."""
    messages = list(side.opening)
    began, length = time.process_time(), 0
    for exchange in script:
        prompt = side.tokenizer.apply_chat_template(
            messages, tools=side.template_tools, add_generation_prompt=True, tokenize=True, return_dict=False
        )
        length = len(prompt)
        messages.append({"role": "assistant", "content": exchange.text})
        messages.append({"role": "tool", "content": side.answer(exchange.result)})
    return time.process_time() - began, length


def sides(folder: str, tools: Tools) -> dict[str, Side]:
    from tests.support.chat_models import QWEN3

    plain, tagged = load_tokenizer(folder), load_tokenizer(folder)
    tagged.add_tokens(TAGS)
    # SmolLM2 gives the end of text for words it does not know, and the renderer then takes it for missing.
    tagged.unk_token = None
    tagged.chat_template = QWEN3
    system, user = OPENING
    taught = {**system, "content": f"{system['content']}\n\n{get_parser('hermes').tool_format.tools_text(tools)}"}
    return {
        "template": Side(
            chat_format(plain, FormatSettings(parser="hermes", renderer="template")),
            plain,
            [taught, user],
            template_tools=None,
            thinks=False,
            answer=get_parser("hermes").tool_format.result_text,
        ),
        "renderer": Side(
            chat_format(tagged, FormatSettings(parser="qwen", renderer="qwen3")),
            tagged,
            OPENING,
            template_tools=tools,
            thinks=True,
            answer=str,
        ),
    }


def measure(side: Side, sizes: Mapping[int, Size], tools: Tools) -> None:
    """One round over the sizes, the short ones more than once, and beside each the other side."""
    for turns, size in sizes.items():
        for _ in range(min(max(sizes) // turns, 4)):
            spent, held = recorded(side, size.script, tools)
            size.spent.append(spent)
            size.whole = size.whole and len(held.checked.sequences) == 1 and not held.checked.breaches
            for sequence in held.checked.sequences:
                size.tokens, size.opening_tokens = len(sequence.tokens), sequence.mask.index(1)
        seconds, size.retokenised_tokens = retokenised(side, size.script)
        size.retokenised.append(seconds)


def bytes_held(side: Side, script: Sequence[Exchange], tools: Tools) -> tuple[int, int]:
    """What a rollout holds at its end, and what is left of that when only its sequences are."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    # From an engine every number is a new object.
    fresh = [replace(one, sampled=_parsed_again(one.sampled)) for one in script]
    _, held = recorded(side, fresh, tools)
    checked = held.checked
    del fresh
    gc.collect()
    at_end = tracemalloc.get_traced_memory()[0] - before
    del held
    gc.collect()
    sequences = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert checked.sequences
    return at_end, sequences


def _parsed_again(sampled: Sampled) -> Sampled:
    tokens, logprobs, versions = orjson.loads(orjson.dumps(sampled[:3]))
    return Sampled(tuple(tokens), tuple(logprobs), tuple(versions), sampled.finish)


def figures_of(side: Side, sizes: Mapping[int, Size], tools: Tools) -> dict[str, Any]:
    return {str(turns): _figures(size, *bytes_held(side, size.script, tools)) for turns, size in sizes.items()}


def _figures(size: Size, at_end: int, sequences: int) -> dict[str, Any]:
    total, turns = size.seconds(), size.seconds("turns")
    parts = ("opening", "ask", "note", "hear", "check")
    return {
        "tokens": size.tokens,
        "opening_tokens": size.opening_tokens,
        "cpu_ms": round(total * 1e3, 2),
        "cpu_ms_by_part": {part: round(size.seconds(part) * 1e3, 2) for part in parts},
        "cpu_us_per_token": round(total * 1e6 / size.tokens, 2),
        "cpu_us_per_token_of_the_turns": round(turns * 1e6 / (size.tokens - size.opening_tokens), 2),
        "share_of_the_check": round(size.seconds("check") / total, 3),
        "echo_ms": round((size.seconds("note") - size.seconds("note_without_echo")) * 1e3, 2),
        "share_of_generation": round(total / size.generation_seconds, 5),
        "retokenised_ms": round(median(size.retokenised) * 1e3, 1),
        "retokenised_tokens": size.retokenised_tokens,
        "retokenised_share_of_generation": round(median(size.retokenised) / size.generation_seconds, 5),
        "retokenised_to_ours": round(median(size.retokenised) / total, 1),
        "bytes_at_the_end": at_end,
        "bytes_of_the_sequences": sequences,
    }


def ratio(figures: Mapping[str, Any], figure: str) -> float:
    """The figure at the most turns by that at the fewest."""
    return float(round(figures[str(max(TURNS))][figure] / figures[str(min(TURNS))][figure], 2))


def goals_of(name: str, figures: Mapping[str, Any], sizes: Mapping[int, Size]) -> dict[str, Any]:
    growth = ratio(figures, "cpu_us_per_token_of_the_turns")
    share = figures[str(max(sizes))]["share_of_generation"]
    whole = all(size.whole for size in sizes.values())
    return {
        f"{name}_cpu_per_token_128_to_8_turns": {"goal": RATIO_GOAL, "measured": growth, "met": growth <= RATIO_GOAL},
        f"{name}_share_of_generation_at_128_turns": {"goal": SHARE_GOAL, "measured": share, "met": share < SHARE_GOAL},
        f"{name}_one_sequence_that_holds": {"goal": True, "measured": whole, "met": whole},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rounds, in under a minute")
    parser.add_argument("--model", help="a folder with SmolLM2's tokenizer (default: made by scripts/hf_model.py)")
    arguments = parser.parse_args()
    if arguments.model is None:
        from scripts.hf_model import model_folder

        arguments.model = str(model_folder("smollm2"))
    tune_gc()
    tools = [tool.schema for name in ("terminal", "file") for tool in get_toolset(name).tools]
    known = sides(arguments.model, tools)
    measured = {name: {turns: Size(exchanges(side, turns)) for turns in TURNS} for name, side in known.items()}
    rounds = 2 if arguments.quick else 7
    for done in range(rounds):
        for name, side in known.items():
            measure(side, measured[name], tools)
            last = {turns: round(size.spent[-1].total * 1e3, 1) for turns, size in measured[name].items()}
            print(f"round {done + 1} of {rounds}, {name}: CPU ms by turns {last}", flush=True)
    figures = {name: figures_of(side, measured[name], tools) for name, side in known.items()}
    for by_turns in figures.values():
        by_turns["ratio_with_the_opening"] = ratio(by_turns, "cpu_us_per_token")
    goals = {goal: met for name in known for goal, met in goals_of(name, figures[name], measured[name]).items()}
    print(json.dumps({"benchmark": "tokens", "figures": figures, "goals": goals}))
    return 0 if all(goal["met"] for goal in goals.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
