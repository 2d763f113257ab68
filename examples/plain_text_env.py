"""plain_text: answer with letters, digits and spaces; scored by their share of the characters.

To try a whole training run in a minute or two: the model of `scripts/hf_model.py --tiny` has random weights, begins
at about 0.5 and learns to write nothing else within ten steps. One turn of 8 tokens, no tools, no sandbox.
"""

import string

from hermes_rl import AgentResult, APIServerConfig, HermesAgentBaseEnv, HermesAgentEnvConfig, Step, ToolContext

PLAIN = frozenset(string.ascii_letters + string.digits + " ")
# With 8 tokens of answer each takes 26 to 31 tokens of that model: one shape for an engine that compiles each shape.
PROMPTS = [
    "Write a word.",
    "Write a name.",
    "Write a line.",
    "Say hello.",
    "Say a colour.",
    "Name a fruit.",
    "Name a town.",
    "Tell a story.",
]
HELD_OUT = ["Write a note.", "Write a rhyme.", "Say goodbye.", "Say a prayer.", "Name a tree.", "Name a game."]


class PlainTextEnv(HermesAgentBaseEnv):
    """Answer with plain characters; scored by their share."""

    name = "plain_text"

    @classmethod
    def config_init(cls) -> tuple[HermesAgentEnvConfig, list[APIServerConfig]]:
        config = cls.env_config_cls(
            enabled_toolsets=[],
            max_agent_turns=1,
            max_token_length=8,
            group_size=16,
            batch_size=64,
            total_steps=15,
            eval_size=len(HELD_OUT),
            eval_samples=16,
        )
        return config, []

    def train_items(self) -> list[str]:
        return PROMPTS

    def eval_items(self) -> list[str]:
        return HELD_OUT

    def format_prompt(self, item: str) -> str:
        return item

    async def compute_reward(self, item: str, result: AgentResult, ctx: ToolContext) -> float:
        said = result.final_response
        return sum(character in PLAIN for character in said) / len(said) if said else 0.0

    def oracle(self, item: str) -> list[Step]:
        return ["Whatever I write here is plain"]


if __name__ == "__main__":
    PlainTextEnv.cli()
