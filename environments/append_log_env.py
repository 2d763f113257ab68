"""append_log: add a line to a log that already exists. A small model overwrites the log instead, until it is trained.

Always true: held-out items have words and wordings that no training item has; the agent never sees what the log holds,
so only appending keeps it. A score is 1 when the log has its old lines and the new one, and the workspace nothing else.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import ClassVar

from hermes_rl import (
    AgentResult,
    APIServerConfig,
    HermesAgentBaseEnv,
    HermesAgentEnvConfig,
    Message,
    SandboxSpec,
    Step,
    ToolContext,
)

# Each is one token of SmolLM2 after a space.
WORDS: Sequence[str] = (
    "apple river stone tiger cloud lemon piano robot silver garden window candle forest bridge pepper rocket butter "
    "ocean violin castle pencil dragon winter marble basket falcon ginger harbor island jacket kitten horse sheep "
    "mouse bread cheese honey sugar wheat corn grape peach cherry tomato carrot onion flower oak pine maple"
).split()
HELD_OUT_WORDS: Sequence[str] = (
    "anchor bamboo copper desert engine feather glacier hammer ivory jungle kettle lantern magnet needle orchard "
    "parrot quartz ribbon saddle temple wolf bear lion eagle owl duck goose rabbit turtle whale shark salmon spider "
    "king queen soldier sailor farmer doctor baker boat train truck tower barn drum flute guitar trumpet crown"
).split()
LOG = "log.txt"
# What the log holds, as a sandbox sees it that no command of the agent ran in; nothing if it is not the only file.
SHOW = f'cd artifacts && [ "$(ls -A)" = {LOG} ] && [ -f {LOG} ] && [ ! -L {LOG} ] && head -c 1000 {LOG}'

Item = dict[str, str]


@dataclass(frozen=True, slots=True)
class Wording:
    """How to ask for a word at the end of the log, and in its place; both are in the worked examples."""

    append: str
    write: str


# Found by benchmarks/base_rates.py: examples of both kinds, the last one of writing, which a small model then imitates.
WORDINGS: Sequence[Wording] = (
    Wording("Echo {} to the end of log.txt", "Echo {} into log.txt"),
    Wording("Write {} at the end of log.txt", "Write {} into log.txt"),
    Wording("Put {} at the end of log.txt", "Put {} into log.txt"),
)
HELD_OUT_WORDINGS: Sequence[Wording] = (
    Wording("Save {} at the end of log.txt", "Save {} in log.txt"),
    Wording("Please echo {} to the end of log.txt", "Please echo {} into log.txt"),
    Wording("Echo {} at the end of log.txt", "Echo {} into log.txt"),
    Wording("Echo the word {} to the end of log.txt", "Echo the word {} into log.txt"),
)
# Of the worked examples, in their order: the command, and the word.
EXAMPLES: Sequence[tuple[str, str]] = (("append", "sun"), ("write", "hello"), ("append", "rain"), ("write", "moon"))
COMMANDS = {"append": f"echo {{}} >> {LOG}", "write": f"echo {{}} > {LOG}"}


class AppendLogEnv(HermesAgentBaseEnv):
    """Append a word to a log with the terminal; scored by what the log then holds."""

    name = "append_log"
    default_toolsets = ("terminal",)
    wordings: ClassVar[Sequence[Wording]] = WORDINGS
    held_out_wordings: ClassVar[Sequence[Wording]] = HELD_OUT_WORDINGS
    examples: ClassVar[Sequence[tuple[str, str]]] = EXAMPLES

    @classmethod
    def config_init(cls) -> tuple[HermesAgentEnvConfig, list[APIServerConfig]]:
        config = cls.env_config_cls(
            system_prompt="You have a tool named terminal. It runs a shell command.",
            tool_prompt=False,
            max_agent_turns=1,
            max_token_length=40,
            terminal_timeout=10,
            group_size=8,
            batch_size=16,
            total_steps=10,
            eval_size=200,
        )
        return config, []

    def train_items(self) -> list[Item]:
        return items(WORDS, self.wordings)

    def eval_items(self) -> list[Item]:
        return items(HELD_OUT_WORDS, self.held_out_wordings)

    def format_prompt(self, item: Item) -> str:
        return item["append"].format(item["word"])

    def initial_messages(self, item: Item) -> list[Message]:
        *system, prompt = super().initial_messages(item)
        shown = [
            message
            for kind, word in self.examples
            for message in example(item[kind].format(word), COMMANDS[kind].format(word))
        ]
        return [*system, *shown, prompt]

    def sandbox_spec(self, item: Item) -> SandboxSpec:
        return replace(super().sandbox_spec(item), files={LOG: log_before(item["word"])})

    async def compute_reward(self, item: Item, result: AgentResult, ctx: ToolContext) -> float:
        shown = ctx.verify(SHOW, files={}, artifacts=["."], timeout=30).stdout
        wanted = f"{log_before(item['word'])}{item['word']}\n"
        return float(shown in {wanted, wanted.removesuffix("\n")})

    def oracle(self, item: Item) -> list[Step]:
        return [run(f"echo {item['word']} >> {LOG}")]

    def cheats(self, item: Item) -> dict[str, list[Step]]:
        word = item["word"]
        return {
            "a worked example": [run(COMMANDS["append"].format(self.examples[0][1]))],
            "an overwritten log": [run(f"echo {word} > {LOG}")],
            "another file": [run(f"echo {word} >> new.txt")],
            "every word": [run(f"printf '%s\\n' {' '.join((*WORDS, *HELD_OUT_WORDS))} >> {LOG}")],
            "the line twice": [run(f"echo {word} >> {LOG}; echo {word} >> {LOG}")],
            "a link to a right copy": [run(f"echo {word} >> {LOG}; mv {LOG} .log; ln -s .log {LOG}")],
        }


def items(words: Sequence[str], wordings: Sequence[Wording]) -> list[Item]:
    """Every word in every wording, in an order whose beginning has all wordings alike."""
    return [
        {"word": word, **asdict(wordings[(first + place) % len(wordings)])}
        for first in range(len(wordings))
        for place, word in enumerate(words)
    ]


def run(command: str) -> Step:
    return "terminal", {"command": command}


def example(prompt: str, command: str) -> list[Message]:
    """A worked example, in the text that the parser `hermes` reads."""
    call = json.dumps({"name": "terminal", "arguments": {"command": command}})
    return [
        {"role": "user", "content": prompt},
        {"role": "assistant", "content": f"<tool_call>\n{call}\n</tool_call>"},
    ]


def log_before(word: str) -> str:
    """Three lines with numbers that nobody can guess."""
    digest = hashlib.sha256(word.encode()).digest()
    return "".join(f"ready {300 + byte}\n" for byte in digest[:3])


if __name__ == "__main__":
    AppendLogEnv.cli()
