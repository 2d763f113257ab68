"""terminal_words: one small thing to do with the terminal, told in one line with a word in it; for training to show on.

Always true: held-out items have words and wordings that no training item has, and the words of the worked examples are
in neither; a score is 1 when the workspace holds exactly what was asked for, so no command is right for two words.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import Field

from hermes_rl import (
    AgentResult,
    APIServerConfig,
    HermesAgentBaseEnv,
    HermesAgentEnvConfig,
    Message,
    Reward,
    SandboxSpec,
    Step,
    ToolContext,
)

# Each is one token of SmolLM2 after a space.
WORDS: Sequence[str] = (
    "apple river stone tiger cloud lemon piano robot silver garden window candle forest bridge pepper rocket butter "
    "ocean violin castle pencil dragon winter marble basket falcon ginger harbor island jacket kitten horse sheep "
    "mouse bread cheese honey sugar wheat corn grape peach cherry tomato carrot onion flower oak pine maple grass "
    "leaf valley mountain lake beach storm snow thunder summer iron steel cotton coal"
).split()
HELD_OUT_WORDS: Sequence[str] = (
    "anchor bamboo copper desert engine feather glacier hammer ivory jungle kettle lantern magnet needle orchard "
    "parrot quartz ribbon saddle temple wolf bear lion eagle owl duck goose rabbit turtle whale shark salmon spider "
    "king queen soldier sailor farmer doctor baker boat train truck tower barn drum flute guitar trumpet crown"
).split()
EXAMPLE_WORDS = ("hello", "moon")

Item = dict[str, str]
State = dict[str, str]
"""What a workspace holds: contents by the names of files; directories have a / behind their names, and no content."""


@dataclass(frozen=True, slots=True)
class Family:
    """Tasks that one command does. `done` gives the workspace after it, by the word and the workspace before."""

    command: str
    wordings: tuple[str, ...]
    held_out: tuple[str, ...]
    done: Callable[[str, State], State]
    has_files: bool = True
    answer: str | None = None
    """The final answer, in a second turn; None if the command is the whole answer."""


FAMILIES = {
    "echo": Family(
        "echo {} > out.txt",
        ("Echo {} into out.txt", "Echo the word {} into out.txt", "Use echo to write {} into out.txt"),
        ("Please echo {} into out.txt", "Echo {} into the file out.txt"),
        lambda word, _: {"out.txt": f"{word}\n"},
        has_files=False,
    ),
    "mkdir": Family(
        "mkdir {}",
        ("Make a directory named {}.", "Please make a directory named {}.", "Create a directory named {}."),
        ("Make a folder named {}.", "Use mkdir to make {}"),
        lambda word, _: {f"{word}/": ""},
        has_files=False,
    ),
    "touch": Family(
        "touch {}",
        ("Touch {}", "Please touch {}", "Use touch to make {}"),
        ("Touch the file {}", "Make the file {} with touch"),
        lambda word, _: {word: ""},
        has_files=False,
    ),
    "rm": Family(
        "rm {}.txt",
        ("Rm {}.txt", "Please rm {}.txt", "Use rm to remove {}.txt"),
        ("Rm the file {}.txt", "Use rm to delete {}.txt"),
        lambda word, before: {name: content for name, content in before.items() if name != f"{word}.txt"},
    ),
    "cp": Family(
        "cp {}.txt new.txt",
        ("Use cp to copy {}.txt to new.txt", "With cp, copy {}.txt to new.txt", "Use cp on {}.txt and new.txt"),
        ("Copy {}.txt to new.txt with cp", "Please use cp to copy {}.txt to new.txt"),
        lambda word, before: {**before, "new.txt": before[f"{word}.txt"]},
    ),
    "mv": Family(
        "mv {}.txt new.txt",
        ("Mv {}.txt to new.txt", "Use mv to move {}.txt to new.txt", "Use mv to make {}.txt new.txt"),
        ("Please mv {}.txt to new.txt", "Use mv to rename {}.txt to new.txt"),
        lambda word, before: {"new.txt" if name == f"{word}.txt" else name: held for name, held in before.items()},
    ),
    "cat": Family(
        "cat {}.txt",
        ("Cat {}.txt", "Please cat {}.txt", "Use cat to read {}.txt"),
        ("Cat the file {}.txt", "Use cat to read the file {}.txt"),
        lambda _, before: before,
        answer="It says {}.",
    ),
}
# Names and contents in turn, each ended by a null byte. What is neither file nor directory has // behind its name.
LIST = """\
cd artifacts && find . -mindepth 1 -exec sh -c 'for at; do
    if [ -L "$at" ]; then kind=//; elif [ -d "$at" ]; then kind=/; elif [ -f "$at" ]; then kind=; else kind=//; fi
    printf "%s\\0" "${at#./}$kind"
    [ -n "$kind" ] || head -c 100 "$at"
    printf "\\0"
done' _ {} +"""


class TerminalWordsConfig(HermesAgentEnvConfig):
    families: list[Literal["echo", "mkdir", "touch", "rm", "cp", "mv", "cat"]] = Field(
        default=["echo"], min_length=1, description="Kinds of tasks; items are drawn from all of them alike."
    )


class TerminalWordsEnv(HermesAgentBaseEnv):
    """Make, write, copy, move, remove or read a file or directory; scored by what the workspace then holds."""

    name = "terminal_words"
    env_config_cls = TerminalWordsConfig
    default_toolsets = ("terminal",)

    @classmethod
    def config_init(cls) -> tuple[HermesAgentEnvConfig, list[APIServerConfig]]:
        config = cls.env_config_cls(
            system_prompt="You have a tool named terminal. It runs a shell command.",
            tool_prompt=False,
            max_agent_turns=2,
            max_token_length=40,
            terminal_timeout=10,
            group_size=8,
            batch_size=16,
            total_steps=10,
            eval_size=100,
            eval_samples=2,
        )
        return config, []

    def train_items(self) -> list[Item]:
        return list(self._items(WORDS, "wordings"))

    def eval_items(self) -> list[Item]:
        return list(self._items(HELD_OUT_WORDS, "held_out"))

    def _items(self, words: Sequence[str], kind: Literal["wordings", "held_out"]) -> Iterator[Item]:
        """Every word in every wording, in an order whose beginning has all families and wordings alike."""
        families = {name: getattr(FAMILIES[name], kind) for name in self.config.families}
        for first in range(max(map(len, families.values()))):
            for place, word in enumerate(words):
                for name, wordings in families.items():
                    yield {"family": name, "word": word, "wording": wordings[(first + place) % len(wordings)]}

    def format_prompt(self, item: Item) -> str:
        return item["wording"].format(item["word"])

    def initial_messages(self, item: Item) -> list[Message]:
        *system, prompt = super().initial_messages(item)
        return [*system, *(said for word in EXAMPLE_WORDS for said in example({**item, "word": word})), prompt]

    def turn_limit(self, item: Item) -> int:
        return min(1 if FAMILIES[item["family"]].answer is None else 2, int(self.config.max_agent_turns))

    def sandbox_spec(self, item: Item) -> SandboxSpec:
        return replace(super().sandbox_spec(item), files=files_of(item))

    async def compute_reward(self, item: Item, result: AgentResult, ctx: ToolContext) -> Reward:
        # Calls, not uses: a program whose only turn is over does not report the result of its call.
        score = float(bool(result.tool_calls) and answered(item, result) and left_as_asked(item, ctx))
        return Reward(score, {item["family"]: score})

    def oracle(self, item: Item) -> list[Step]:
        return solution(item)

    def cheats(self, item: Item) -> dict[str, list[Step]]:
        family, word = item["family"], item["word"]
        others = [other for other in (*WORDS, *HELD_OUT_WORDS) if other != word]
        all_words = "; ".join(command_for(family, one) for one in (word, *others))
        all_files: Step = ("terminal", {"command": command_for(family, "*")})
        cheats: dict[str, list[Step]] = {
            "a worked example": solution({**item, "word": EXAMPLE_WORDS[0]}),
            "all words": [("terminal", {"command": all_words})],
            "all files": [all_files],
        }
        if FAMILIES[family].answer:
            cheats["an answer unread"] = solution(item)[1:]
            cheats["all numbers"] = [all_files, "".join(files_of(item).values())]
        return cheats


def command_for(family: str, word: str) -> str:
    return FAMILIES[family].command.format(word)


def solution(item: Item) -> list[Step]:
    answer = FAMILIES[item["family"]].answer
    call = ("terminal", {"command": command_for(item["family"], item["word"])})
    return [call] if answer is None else [call, answer.format(number_of(item["word"]))]


def example(item: Item) -> Iterator[Message]:
    """A task with the whole of a right answer, in the text that the parser `hermes` reads."""
    _, *answers = solution(item)
    call = {"name": "terminal", "arguments": {"command": command_for(item["family"], item["word"])}}
    yield {"role": "user", "content": item["wording"].format(item["word"])}
    yield {"role": "assistant", "content": f"<tool_call>\n{json.dumps(call)}\n</tool_call>"}
    for answer in answers:
        shown = {"output": f"{number_of(item['word'])}\n", "exit_code": 0, "error": None}
        yield {"role": "tool", "content": json.dumps(shown, separators=(",", ":"))}
        yield {"role": "assistant", "content": str(answer)}


def number_of(word: str) -> int:
    """What the word's file holds; more than any exit code, which the tool tells too."""
    return 300 + int.from_bytes(hashlib.sha256(word.encode()).digest()[:4]) % 700


def files_of(item: Item) -> State:
    """What the workspace holds before: the files of the word and of two others, or nothing."""
    if not FAMILIES[item["family"]].has_files:
        return {}
    words = WORDS if item["word"] in WORDS else HELD_OUT_WORDS
    place = words.index(item["word"])
    return {f"{word}.txt": f"{number_of(word)}\n" for word in (words[place - 2], words[place - 1], words[place])}


def answered(item: Item, result: AgentResult) -> bool:
    """Whether the one number in the answer, where one is asked for, is that of the file, and came out of the tool."""
    if FAMILIES[item["family"]].answer is None:
        return True
    number = str(number_of(item["word"]))
    read = any(number in use.result for use in result.tool_uses)
    return read and re.findall(r"\d+", result.final_response) == [number]


def left_as_asked(item: Item, ctx: ToolContext) -> bool:
    """Whether the workspace holds exactly what it should, as another sandbox sees it."""
    wanted = FAMILIES[item["family"]].done(item["word"], files_of(item))
    listed = ctx.verify(LIST, files={}, artifacts=["."], timeout=30).stdout.split("\0")
    return sorted(zip(listed[::2], listed[1::2], strict=False)) == sorted(wanted.items())


if __name__ == "__main__":
    TerminalWordsEnv.cli()
