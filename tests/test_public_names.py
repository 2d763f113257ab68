"""The public names are a promise: adding or removing one is a decision, made here on purpose."""

import subprocess
import sys

import hermes_rl

PUBLIC = """
APIServerConfig AgentResult Case ConfigError EndpointError EpisodeContext Failure Group HermesAgentBaseEnv
HermesAgentEnvConfig HermesAgentLoop HermesMultiAgentEnv HermesRLError Judge JudgeError Judgement Limits Message
Reward Rollout SandboxError SandboxSpec ScriptedUser SeatAnswer Sequence ServerManager SimulatedUser
Step StepReward StopReason ToolCall ToolContext ToolError ToolHostError ToolSession ToolUseError TurnState
Verdict VerifierError
FailureSource InfrastructureError
TextGameEnv
__version__ cpu_reward load_records run_cases tool weighted
""".split()


def test_the_public_names_are_these() -> None:
    assert sorted(hermes_rl.__all__) == sorted(PUBLIC)


def test_every_public_name_can_be_had() -> None:
    assert all(getattr(hermes_rl, name) is not None for name in PUBLIC)
    assert dir(hermes_rl) == sorted(PUBLIC)


def test_importing_loads_nothing_heavy() -> None:
    """A fresh process: neither an engine nor anything optional comes with the package or its base class."""
    code = "import sys; from hermes_rl import HermesAgentBaseEnv; print(*sys.modules)"
    loaded = set(subprocess.check_output([sys.executable, "-c", code], text=True).split())
    heavy = {"torch", "transformers", "vllm", "jax", "openai", "wandb", "ray", "numpy", "datasets", "rich", "click"}
    assert loaded & heavy == set()
