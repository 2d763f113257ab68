"""log_numbers: read a log with the terminal, then say the number in it. Logs are of very different length.

Always true: held-out items have words that no training item has. A score is 1 if the number of the log is the only
number of the answer, and the tool printed it.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace

from pydantic import Field

from environments.terminal_words_env import HELD_OUT_WORDS, WORDS
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

Item = dict[str, str]
# Lines of a log: about 15 to 400 tokens.
LENGTHS = (1, 4, 16, 40)
LEARNABLE, HOPELESS, MASTERED = "learnable", "hopeless", "mastered"


class LogNumbersConfig(HermesAgentEnvConfig):
    useless_share: float = Field(
        default=0.0, ge=0, le=1, description="Share of training items that are hopeless or mastered, half of each."
    )


class LogNumbersEnv(HermesAgentBaseEnv):
    """Read a log file with `cat` and answer with its number."""

    name = "log_numbers"
    env_config_cls = LogNumbersConfig
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
            total_steps=40,
            eval_size=100,
            eval_samples=2,
        )
        return config, []

    def train_items(self) -> list[Item]:
        items = [{"word": word, "kind": LEARNABLE} for word in WORDS]
        useless = round(len(items) * self.config.useless_share / 2)
        for place, item in enumerate(items[: 2 * useless]):
            item["kind"] = HOPELESS if place % 2 else MASTERED
        return items

    def eval_items(self) -> list[Item]:
        return [{"word": word, "kind": LEARNABLE} for word in HELD_OUT_WORDS]

    def format_prompt(self, item: Item) -> str:
        return f"Cat {item['word']}.txt"

    def initial_messages(self, item: Item) -> list[Message]:
        *system, prompt = super().initial_messages(item)
        return [*system, *example("moon"), prompt]

    def sandbox_spec(self, item: Item) -> SandboxSpec:
        return replace(super().sandbox_spec(item), files={f"{item['word']}.txt": log(item["word"])})

    async def compute_reward(self, item: Item, result: AgentResult, ctx: ToolContext) -> float:
        if item["kind"] != LEARNABLE:
            return float(item["kind"] == MASTERED)
        number = str(number_of(item["word"]))
        read = any(number in use.result for use in result.tool_uses)
        return float(read and re.findall(r"\d+", result.final_response) == [number])

    def oracle(self, item: Item) -> list[Step]:
        return [("terminal", {"command": f"cat {item['word']}.txt"}), f"It says {number_of(item['word'])}."]


def example(word: str) -> Sequence[Message]:
    """A task with its right answer, in the text that the parser `hermes` reads."""
    call = {"name": "terminal", "arguments": {"command": f"cat {word}.txt"}}
    shown = {"output": f"{word} says {number_of(word)}\n", "exit_code": 0, "error": None}
    return [
        {"role": "user", "content": f"Cat {word}.txt"},
        {"role": "assistant", "content": f"<tool_call>\n{json.dumps(call)}\n</tool_call>"},
        {"role": "tool", "content": json.dumps(shown, separators=(",", ":"))},
        {"role": "assistant", "content": f"It says {number_of(word)}."},
    ]


def digest(word: str) -> int:
    return int.from_bytes(hashlib.sha256(word.encode()).digest()[:4])


def number_of(word: str) -> int:
    """More than any exit code, which the tool prints too."""
    return 300 + digest(word) % 700


def log(word: str) -> str:
    """The line with the number between lines without one."""
    start = digest(word)
    lines = [f"the {other} is ready" for other in (WORDS[(start + place) % len(WORDS)] for place in range(1, 41))]
    count = LENGTHS[start // 700 % len(LENGTHS)] - 1
    lines = lines[:count]
    lines.insert(start % (count + 1), f"{word} says {number_of(word)}")
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    LogNumbersEnv.cli()
