"""Ready-made agents, really installed, on terminal_test with a scripted engine of token ids as their model."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from environments.terminal_test_env import TerminalTestEnv
from hermes_rl import APIServerConfig, HermesAgentEnvConfig
from hermes_rl.agent.harnesses.installer import install
from hermes_rl.agent.harnesses.registry import get_agent
from hermes_rl.core.trajectory import Rollout
from tests.support.chat_models import chat_model
from tests.support.token_servers import Asked, Tokens, VLLMServer, logprob_of

MODEL = chat_model("chatml")
WORD = "apple"


@contextmanager
def ready_made(name: str) -> Iterator[Path]:
    """The agent's folder, made once a machine where the users of sandboxes can reach it; the first time takes a minute.

    Within this block hermes_rl finds the agent by its name.
    """
    home = Path("/var/tmp") / f"hermes-rl-tests-{os.geteuid()}"
    home.mkdir(exist_ok=True)
    if home.stat().st_uid != os.geteuid():
        pytest.fail(f"{home} is somebody else's")
    home.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HERMES_HOME", str(home))
        agent = get_agent(name)
        yield install(agent) if agent.pip else home


class Script:
    """A model that speaks by what it reads and how often it spoke before; `said` keeps both."""

    def __init__(self, speak: Callable[[str, int], str]) -> None:
        self.said: list[tuple[str, tuple[int, ...]]] = []
        self._speak = speak

    def __call__(self, asked: Asked) -> Tokens:
        read = MODEL.tokenizer.decode(asked.prompt, skip_special_tokens=False)
        text = self._speak(read, read.count("<|im_start|>assistant") - 1)
        spoken = (*MODEL.tokenizer.encode(text, add_special_tokens=False), MODEL.stop_ids[0])
        self.said.append((read, spoken))
        return Tokens(spoken)


def call(tool: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


async def rollout_of(script: Script, folder: Path, context: int = 65536, **config: Any) -> Rollout:
    """One rollout of terminal_test on WORD, which has a score."""
    settings = {
        "tokenizer_name": str(MODEL.save(folder / "tokenizer")),
        "terminal_backend": "bubblewrap",
        "max_agent_turns": 60,
        "max_token_length": 2048,
        "group_size": 1,
        "rollout_retries": 0,
        **config,
    }
    async with VLLMServer(script, context=context) as server:
        endpoint = APIServerConfig.model_validate(
            {"base_url": server.base_url, "model_name": "scripted", "server_type": "vllm", "max_retries": 0}
        )
        env = TerminalTestEnv(HermesAgentEnvConfig.model_validate(settings), [endpoint])
        async with env.opened():
            (rollout,) = (await env.collect_group(WORD)).rollouts
    assert rollout.failure is None, rollout.failure
    return rollout


def assert_every_token_is_accounted_for(rollout: Rollout, script: Script) -> None:
    """Each turn that the engine sampled stands in the sequences once, and nothing else is trained on."""
    assert "breaches" not in rollout.metadata
    assert sorted(_sampled_turns(rollout)) == sorted(spoken for _, spoken in script.said)


def _sampled_turns(rollout: Rollout) -> list[tuple[int, ...]]:
    """The runs of tokens that are trained on; between two turns there is always context."""
    turns: list[list[int]] = []
    for sequence in rollout.sequences:
        before = 0
        for token, kept, logprob in zip(sequence.tokens, sequence.mask, sequence.logprobs, strict=True):
            if kept:
                turns += [] if before else [[]]
                turns[-1].append(token)
                assert logprob == logprob_of(token)
            before = kept
    return [tuple(turn) for turn in turns]


if __name__ == "__main__":
    # Before the tests, whose time limits an installation would eat. The others take minutes: a test installs them.
    for name in ("hermes-agent", "codex", "sdk"):
        with ready_made(name) as folder:
            print(folder)
