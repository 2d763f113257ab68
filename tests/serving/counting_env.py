"""Environments that are served in tests: an item is a number, and the reward is 1 when the model says it.

The scripted model says it, or one less, by the seed it is sent; nothing needs a sandbox.
"""

import re
from collections.abc import Sequence
from typing import Any, ClassVar, cast

from hermes_rl import AgentResult, HermesAgentBaseEnv, ToolContext
from tests.support.chat_models import chat_model
from tests.support.scripted_model import Delayed
from tests.support.token_servers import Asked, Tokens, TokenScript

MODEL = chat_model("chatml")
ITEMS = 24


class Streamed(HermesAgentBaseEnv):
    """Numbers without an end, from `get_next_item`."""

    name = "counting"
    default_toolsets: ClassVar[tuple[str, ...]] = ("terminal",)

    async def setup(self) -> None:
        self.taken = 0

    async def get_next_item(self) -> Any:
        self.taken += 1
        return {"number": self.taken}

    def eval_items(self) -> Sequence[Any]:
        return [{"number": 1000 + number} for number in range(3)]

    def format_prompt(self, item: Any) -> str:
        return f"say {item['number']}"

    async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
        return float(result.messages[-1]["content"] == str(item["number"]))


class Listed(Streamed):
    """Six of them, drawn by a sampler."""

    def train_items(self) -> Sequence[Any]:
        return [{"number": number} for number in range(1, 7)]


class Ending(Streamed):
    """The first ITEMS of them."""

    async def get_next_item(self) -> Any:
        return None if self.taken == ITEMS else await super().get_next_item()


def number_asked(asked: Asked) -> int:
    text = MODEL.tokenizer.decode(asked.prompt, skip_special_tokens=False)
    return int(re.findall(r"user\nsay (\d+)", text)[-1])


def says_it(asked: Asked) -> Tokens:
    number = number_asked(asked) - asked.body["sampling_params"]["seed"] % 2
    return Tokens((*MODEL.tokenizer.encode(str(number), add_special_tokens=False), MODEL.stop_ids[0]))


def slowly(seconds: float) -> TokenScript:
    """The same, so many seconds later."""
    return lambda asked: Delayed(seconds, cast("Any", says_it(asked)))
