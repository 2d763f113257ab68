"""The environment of a whole-stack chaos: plain text of a tiny model, counted by a command in a sandbox.

Always true: the score of a rollout follows from what the model said, by `share`, so that anybody can count it again. It
is written as a careless author would: an empty answer of the sandbox would be a score of 0.
"""

import string
from pathlib import Path

from pydantic import Field

from hermes_rl import AgentResult, APIServerConfig, HermesAgentBaseEnv, HermesAgentEnvConfig, ToolContext

PLAIN = frozenset((string.ascii_letters + string.digits + " ").encode())
# As in examples/plain_text_env.py: all are of one shape for an engine that compiles each shape.
PROMPTS = ("Write a word.", "Write a name.", "Write a line.", "Say hello.", "Say a colour.", "Name a fruit.")
COUNT = "sleep {pace}; wc -c < said; LC_ALL=C tr -cd 'A-Za-z0-9 ' < said | wc -c"


def share(said: str) -> float:
    data = said.encode()
    return sum(byte in PLAIN for byte in data) / len(data) if data else 0.0


class ChaosConfig(HermesAgentEnvConfig):
    pace_file: str = Field(default="", description="Holds the seconds that a sandbox takes to count.")


class ChaosEnv(HermesAgentBaseEnv):
    """Scored by the share of plain bytes, as a sandbox counts them."""

    name = "stack_chaos"
    env_config_cls = ChaosConfig

    @classmethod
    def config_init(cls) -> tuple[HermesAgentEnvConfig, list[APIServerConfig]]:
        return cls.env_config_cls(enabled_toolsets=[], max_agent_turns=1, max_token_length=8), []

    def train_items(self) -> tuple[str, ...]:
        return PROMPTS

    def eval_items(self) -> tuple[str, ...]:
        return ("Name a tree.",)

    def format_prompt(self, item: str) -> str:
        return item

    async def compute_reward(self, item: str, result: AgentResult, ctx: ToolContext) -> float:
        assert isinstance(self.config, ChaosConfig)
        ctx.write_file("said", result.final_response)
        pace = Path(self.config.pace_file).read_text().strip()
        counted = ctx.terminal(COUNT.format(pace=pace)).get("output", "").split()
        whole, plain = (int(word) for word in counted) if len(counted) == 2 else (0, 0)
        return plain / whole if whole else 0.0


if __name__ == "__main__":
    ChaosEnv.cli()
