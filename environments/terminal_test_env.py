"""terminal_test: write a word into a file with one shell command; scored by what the file holds."""

from collections.abc import Sequence

from hermes_rl import AgentResult, APIServerConfig, HermesAgentBaseEnv, HermesAgentEnvConfig, Message, Step, ToolContext

WORDS: Sequence[str] = (
    "apple river stone cloud tiger lemon piano silver mountain robot garden window candle forest bridge pepper "
    "rocket butter ocean violin castle pencil dragon winter marble basket falcon ginger harbor island jacket kitten"
).split()
HELD_OUT: Sequence[str] = (
    "anchor bamboo copper desert engine feather glacier hammer ivory jungle kettle lantern magnet needle orchard "
    "parrot quartz ribbon saddle temple"
).split()
# Worked examples before each prompt, so that even a model of 135M parameters tries.
EXAMPLES = [
    {"role": "user", "content": "Echo hello into out.txt"},
    {
        "role": "assistant",
        "content": '<tool_call>\n{"name": "terminal", "arguments": {"command": "echo hello > out.txt"}}\n</tool_call>',
    },
    {"role": "user", "content": "Echo moon into out.txt"},
    {
        "role": "assistant",
        "content": '<tool_call>\n{"name": "terminal", "arguments": {"command": "echo moon > out.txt"}}\n</tool_call>',
    },
]


class TerminalTestEnv(HermesAgentBaseEnv):
    """Write a word into a file with the terminal; scored by what the file holds."""

    name = "terminal_test"
    default_toolsets = ("terminal",)

    @classmethod
    def config_init(cls) -> tuple[HermesAgentEnvConfig, list[APIServerConfig]]:
        prompt = "You have a tool named terminal. It runs a shell command."
        config = cls.env_config_cls(
            system_prompt=prompt, tool_prompt=False, max_agent_turns=1, max_token_length=64, total_steps=10
        )
        return config, []

    def train_items(self) -> Sequence[str]:
        return WORDS

    def eval_items(self) -> Sequence[str]:
        return HELD_OUT

    def format_prompt(self, item: str) -> str:
        return f"Echo {item} into out.txt"

    def initial_messages(self, item: str) -> list[Message]:
        *system, prompt = super().initial_messages(item)
        return [*system, *EXAMPLES, prompt]

    async def compute_reward(self, item: str, result: AgentResult, ctx: ToolContext) -> float:
        return 1.0 if ctx.read_file("out.txt").get("content", "").strip() == item else 0.0

    def oracle(self, item: str) -> list[Step]:
        return [("terminal", {"command": f"echo {item} > out.txt"})]


if __name__ == "__main__":
    TerminalTestEnv.cli()
