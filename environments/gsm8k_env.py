r"""gsm8k: word problems in several steps of arithmetic; scored by the one number in \boxed{}.

Our own 200 problems (scripts/make_gsm8k_data.py), or with --env.dataset_name any dataset in the form of GSM8K.
"""

import asyncio
import json
import re
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import Field

from hermes_rl import (
    AgentResult,
    APIServerConfig,
    ConfigError,
    HermesAgentBaseEnv,
    HermesAgentEnvConfig,
    Reward,
    Step,
    ToolContext,
)

DATA = Path(__file__).with_name("data") / "gsm8k.jsonl"
SYSTEM_PROMPT = (
    "You solve word problems step by step. You may calculate with the terminal, for instance "
    'python3 -c "print(17 * 24)". End with the answer as a number alone, once, in \\boxed{}.'
)
BOXED = re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})+)\}")
HASHED = re.compile(r"^[ \t]*####(.*)$", re.MULTILINE)
NUMBER = re.compile(r"-?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?")


class Gsm8kConfig(HermesAgentEnvConfig):
    dataset_config: str | None = Field(
        default=None, description="Configuration of that dataset; openai/gsm8k has `main`."
    )
    eval_split: str = Field(
        default="test", description="Split to evaluate on; each tenth row of dataset_split when there is none."
    )


class Gsm8kEnv(HermesAgentBaseEnv):
    """Solve word problems, with a terminal to calculate in; scored by the number in the answer."""

    name = "gsm8k"
    env_config_cls = Gsm8kConfig
    default_toolsets = ("terminal",)

    @classmethod
    def config_init(cls) -> tuple[HermesAgentEnvConfig, list[APIServerConfig]]:
        config = cls.env_config_cls(
            system_prompt=SYSTEM_PROMPT, max_agent_turns=6, group_size=16, batch_size=128, eval_size=40
        )
        return config, []

    async def setup(self) -> None:
        self._train, self._eval_items = (
            await asyncio.to_thread(load, self.config) if self.config.dataset_name else bundled()
        )

    def train_items(self) -> list[dict[str, Any]]:
        return self._train

    def format_prompt(self, item: dict[str, Any]) -> str:
        return str(item["question"])

    async def compute_reward(self, item: dict[str, Any], result: AgentResult, ctx: ToolContext) -> Reward:
        answer = answer_in(result.final_response)
        correct = answer is not None and answer == answer_in(item["answer"])
        return Reward(float(correct), {"correct": float(correct), "answered": float(answer is not None)})

    def oracle(self, item: dict[str, Any]) -> list[Step]:
        return [f"{item['answer']}\n\\boxed{{{answer_in(item['answer'])}}}"]

    def cheats(self, item: dict[str, Any]) -> dict[str, list[Step]]:
        answer = answer_in(item["answer"])
        wrong = f"{answer}0001"
        listed = f"{', '.join(map(str, range(2000)))}, {answer}"
        numbers = [*re.findall("[0-9]+", item["question"]), wrong]
        return {
            "two boxes": [f"\\boxed{{{answer}}} or \\boxed{{{wrong}}}"],
            "two marks": [f"#### {answer}\n#### {wrong}"],
            "every number": [listed],
            "every number in a box": [f"\\boxed{{{listed}}}"],
            "the question's numbers": [" ".join(f"\\boxed{{{number}}}" for number in numbers)],
            "an answer in the terminal": [("terminal", {"command": f"echo '\\boxed{{{answer}}}'"}), "Done."],
            "an empty box": [r"\boxed{}"],
            "a claim": [r"My answer is correct. Score: 1.0 \boxed{correct}"],
            "nothing": [""],
        }


def answer_in(text: str) -> Decimal | None:
    r"""The number in \boxed{}, or without one the number after ####; None unless there is exactly one.

    Several that say the same are one. Dollar and percent signs, thousands commas and an end stop do not matter.
    """
    said = text.rpartition("</think>")[2]
    marked = BOXED.findall(said) or HASHED.findall(said)
    found = {_number(one) for one in marked}
    return found.pop() if len(found) == 1 else None


def _number(text: str) -> Decimal | None:
    plain = text.replace("{,}", ",").replace("\\", "").strip().rstrip(".").strip("$%€£ ")
    return Decimal(plain.replace(",", "")) if NUMBER.fullmatch(plain) else None


def bundled() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Our own problems: to train on, and to evaluate on."""
    rows = [json.loads(line) for line in DATA.read_text().splitlines()]
    return [row for row in rows if row["split"] == "train"], [row for row in rows if row["split"] == "eval"]


def load(config: Gsm8kConfig) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows of a dataset of the hub, a folder, or a .jsonl, .json or .parquet file: to train and to evaluate on."""
    try:
        datasets: Any = import_module("datasets")
    except ImportError as error:
        raise ConfigError(
            f"--env.dataset_name needs the datasets extra ({error}): pip install 'hermes-rl[datasets]'"
        ) from None
    name = str(config.dataset_name)
    file = Path(name)
    try:
        if file.is_file():
            kind = "parquet" if file.suffix == ".parquet" else "json"
            splits = datasets.load_dataset(kind, data_files={config.dataset_split: name})
        else:
            splits = datasets.load_dataset(name, config.dataset_config)
        train = splits[config.dataset_split].to_list()
        if config.eval_split in splits and config.eval_split != config.dataset_split:
            held_out = splits[config.eval_split].to_list()
        else:
            train, held_out = [row for at, row in enumerate(train) if at % 10], train[::10]
    except (OSError, ValueError, KeyError, datasets.exceptions.DatasetsError) as error:
        raise ConfigError(f"--env.dataset_name {name} cannot be loaded: {type(error).__name__}: {error}") from error
    for row in (*train, *held_out):
        if "question" not in row or answer_in(str(row.get("answer"))) is None:
            raise ConfigError(f"{name} is not in the form of GSM8K (question, and answer with #### N): {row!r:.200}")
    return train, held_out


if __name__ == "__main__":
    Gsm8kEnv.cli()
