"""terminal_test: write a word into a file with one shell command; scored by what the file holds.

Two worked examples stand before each prompt, so that even a model of 135M parameters tries.
"""

from itertools import cycle
from typing import Any

from hermes_rl import AgentResult, APIServerConfig, HermesAgentBaseEnv, HermesAgentEnvConfig, Message, ToolContext

WORDS = (
    "apple river stone cloud tiger lemon piano silver mountain robot garden window candle forest bridge pepper "
    "rocket butter ocean violin castle pencil dragon winter marble basket falcon ginger harbor island jacket kitten"
).split()
HELD_OUT = (
    "anchor bamboo copper desert engine feather glacier hammer ivory jungle kettle lantern magnet needle orchard "
    "parrot quartz ribbon saddle temple"
).split()
EXAMPLES = ("hello", "moon")


class TerminalTestEnv(HermesAgentBaseEnv):
    """Write a word into a file with the terminal; scored by what the file holds."""

    name = "terminal_test"
    default_toolsets = ("terminal",)

    @classmethod
    def config_init(cls) -> tuple[HermesAgentEnvConfig, list[APIServerConfig]]:
        prompt = "You have a tool named terminal. It runs a shell command."
        return cls.env_config_cls(system_prompt=prompt, max_agent_turns=1, max_token_length=64, total_steps=10), []

    async def setup(self) -> None:
        self._items = cycle(WORDS)
        self._eval_items = HELD_OUT

    async def get_next_item(self) -> str:
        return next(self._items)

    def format_prompt(self, item: str) -> str:
        return f"Echo {item} into out.txt"

    def initial_messages(self, item: str) -> list[Message]:
        *system, prompt = super().initial_messages(item)
        return [*system, *(message for word in EXAMPLES for message in self._worked_example(word)), prompt]

    def _worked_example(self, word: str) -> list[Message]:
        call = f'<tool_call>\n{{"name": "terminal", "arguments": {{"command": "echo {word} > out.txt"}}}}\n</tool_call>'
        return [{"role": "user", "content": self.format_prompt(word)}, {"role": "assistant", "content": call}]

    async def compute_reward(self, item: str, result: AgentResult, ctx: ToolContext) -> float:
        written: dict[str, Any] = ctx.read_file("out.txt")
        return 1.0 if written.get("content", "").strip() == item else 0.0


if __name__ == "__main__":
    TerminalTestEnv.cli()
