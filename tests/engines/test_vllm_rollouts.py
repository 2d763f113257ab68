"""Rollouts of a real model on a real vLLM: the tokens kept are the engine's own, logprob by logprob.

SmolLM2 in float32 works in a sandbox over several turns. Then every sequence is given back to the engine, which says
for the same ids what it would have sampled them with.
"""

import asyncio
import hashlib
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import aiohttp
import pytest

from hermes_rl import (
    AgentResult,
    APIServerConfig,
    Group,
    HermesAgentBaseEnv,
    HermesAgentEnvConfig,
    Message,
    SandboxSpec,
    ToolContext,
)
from hermes_rl import Sequence as TokenSequence
from hermes_rl.inference.server_manager import ServerManager
from hermes_rl.inference.tokens.tokenizer import load_tokenizer
from scripts.hf_model import vllm_python
from tests.engines.conftest import TokenEndpoint

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

WORDS = "apple river stone cloud".split()
END = 2
MEAN_DIFFERENCE, MOST_DIFFERENCE = 1e-3, 2e-2


def number_of(word: str) -> int:
    return 100 + int.from_bytes(hashlib.sha256(word.encode()).digest()[:4]) % 900


def example(word: str, number: int) -> list[Message]:
    call = f'<tool_call>\n{{"name": "terminal", "arguments": {{"command": "cat {word}.txt"}}}}\n</tool_call>'
    return [
        {"role": "user", "content": f"Cat {word}.txt"},
        {"role": "assistant", "content": call},
        {"role": "tool", "content": str(number)},
        {"role": "assistant", "content": f"It says {number}."},
    ]


class CatEnv(HermesAgentBaseEnv):
    """Read a number out of a file with the terminal and tell it, then do it again for another file."""

    default_toolsets: ClassVar[Sequence[str]] = ("terminal",)

    def train_items(self) -> Sequence[str]:
        return WORDS

    def format_prompt(self, item: str) -> str:
        return f"Cat {item}.txt"

    def initial_messages(self, item: str) -> list[Message]:
        *system, prompt = super().initial_messages(item)
        return [*system, *example("moon", 417), *example("green", 902), prompt]

    async def next_user_message(self, item: str, messages: list[Message], session: object = None) -> str | None:
        asked = sum(message["role"] == "user" for message in messages) - 3
        return f"Cat {WORDS[(WORDS.index(item) + 1) % len(WORDS)]}.txt" if asked == 0 else None

    def sandbox_spec(self, item: str) -> SandboxSpec:
        return SandboxSpec(files={f"{word}.txt": f"{number_of(word)}\n" for word in WORDS})

    async def compute_reward(self, item: str, result: AgentResult, ctx: ToolContext) -> float:
        return float(str(number_of(item)) in result.final_response)


@asynccontextmanager
async def opened(served: TokenEndpoint, **config: Any) -> AsyncIterator[CatEnv]:
    settings = {
        "system_prompt": "You have a tool named terminal. It runs a shell command.",
        "tool_prompt": False,
        "tokenizer_name": str(served.folder),
        "group_size": 8,
        "max_agent_turns": 4,
        "max_token_length": 48,
        "terminal_backend": "bubblewrap",
        **config,
    }
    endpoint = {"base_url": served.base_url, "model_name": served.model_name, "server_type": "vllm", "timeout": 300}
    env = CatEnv(HermesAgentEnvConfig.model_validate(settings), [APIServerConfig.model_validate(endpoint)])
    async with env.opened():
        yield env


async def post(address: str, body: dict[str, Any] | None = None) -> Any:
    async with aiohttp.ClientSession() as session, session.post(address, json=body) as response:
        assert response.status == 200, await response.text()
        return await response.json(content_type=None)


async def engines_own(served: TokenEndpoint, sequence: TokenSequence) -> tuple[list[int], list[float]]:
    """The ids and logprobs at the sampled places of a sequence, as the engine gives them for it as a prompt."""
    body = {
        "model": served.model_name,
        "token_ids": list(sequence.tokens),
        "sampling_params": {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0},
        "return_token_ids": True,
    }
    answer = await post(f"{served.root}/inference/v1/generate", body)
    places = [place for place, kept in enumerate(sequence.mask) if kept]
    logprobs = [answer["prompt_logprobs"][place] for place in places]
    given = [answer["prompt_token_ids"][place] for place in places]
    return given, [entry[str(token)]["logprob"] for entry, token in zip(logprobs, given, strict=True)]


@pytest.fixture(scope="module")
def groups(vllm_server: TokenEndpoint) -> list[Group]:
    """One set of rollouts, looked at from all sides."""

    async def collected() -> list[Group]:
        async with opened(vllm_server) as env:
            return [await env.collect_group(word, draw) for draw, word in enumerate(WORDS[:2])]

    return asyncio.run(collected())


def test_rollouts_have_turns_and_tools_and_no_breach(groups: list[Group]) -> None:
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    several = [rollout for rollout in rollouts if rollout.turns_used > 1]
    called = [rollout for rollout in rollouts if rollout.tool_uses]
    print(f"{len(rollouts)} rollouts, {len(several)} of several turns, {len(called)} with tool calls")
    assert all(rollout.scored and rollout.sequences for rollout in rollouts)
    assert not any("breaches" in rollout.metadata for rollout in rollouts)
    assert len(several) >= 4
    assert len(called) >= 2


async def test_the_engine_gives_the_same_logprobs_for_the_same_ids(
    groups: list[Group], vllm_server: TokenEndpoint
) -> None:
    differences = []
    for sequence in all_sequences(groups):
        ids, logprobs = await engines_own(vllm_server, sequence)
        assert ids == [token for token, kept in zip(sequence.tokens, sequence.mask, strict=True) if kept]
        kept = [logprob for logprob in sequence.logprobs if logprob is not None]
        differences += [abs(one - other) for one, other in zip(kept, logprobs, strict=True)]
    mean = sum(differences) / len(differences)
    print(f"{len(differences)} sampled tokens: mean difference {mean:.2e}, most {max(differences):.2e}")
    assert mean < MEAN_DIFFERENCE
    assert max(differences) < MOST_DIFFERENCE


def test_no_end_token_stands_twice(groups: list[Group]) -> None:
    for sequence in all_sequences(groups):
        assert all(pair != (END, END) for pair in zip(sequence.tokens, sequence.tokens[1:], strict=False))


def test_every_token_the_engine_counted_is_trained_once(groups: list[Group]) -> None:
    for group in groups:
        for rollout in group.rollouts:
            sampled = sum(sum(sequence.mask) for sequence in rollout.sequences)
            assert sampled == rollout.usage.completion_tokens


def all_sequences(groups: Sequence[Group]) -> list[TokenSequence]:
    return [sequence for group in groups for rollout in group.rollouts for sequence in rollout.sequences]


# --- a policy that changes in the middle of a turn ---

OTHER_WEIGHTS = """
import shutil, sys, torch
from safetensors.torch import load_file, save_file
source, target = sys.argv[1:]
shutil.copytree(source, target)
weights = load_file(f"{source}/model.safetensors")
torch.manual_seed(0)
for name, value in weights.items():
    if "mlp.down_proj" in name:
        weights[name] = value + 0.05 * value.std() * torch.randn_like(value)
save_file(weights, f"{target}/model.safetensors", metadata={"format": "pt"})
"""


@pytest.fixture(scope="module")
def other_weights(vllm_server: TokenEndpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights") / "other"
    subprocess.run([vllm_python(), "-c", OTHER_WEIGHTS, vllm_server.folder, folder], check=True, timeout=300)
    return folder


async def sampled_tokens(served: TokenEndpoint) -> float:
    """How many tokens the server has sampled since it started."""
    async with aiohttp.ClientSession() as session, session.get(f"{served.root}/metrics") as response:
        lines = (await response.text()).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:generation_tokens_total"))


async def load_weights(served: TokenEndpoint, folder: Path, version: str) -> None:
    """What a trainer does after a step: pause in the middle of things, put the new weights in place, go on."""
    await post(f"{served.root}/pause?mode=keep")
    try:
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        await post(f"{served.root}/collective_rpc", body)
        await post(f"{served.root}/reset_prefix_cache")
        await post(f"{served.root}/update_weight_version", {"new_version": version})
    finally:
        await post(f"{served.root}/resume")


async def test_versions_are_right_token_by_token_when_the_weights_change_within_a_turn(
    vllm_server: TokenEndpoint, other_weights: Path
) -> None:
    tokenizer = load_tokenizer(str(vllm_server.folder))
    config = APIServerConfig.model_validate(
        {"base_url": vllm_server.base_url, "model_name": vllm_server.model_name, "server_type": "vllm"}
    )
    history: list[Message] = [{"role": "user", "content": "Tell me a long story about a river."}]
    sampled_before = await sampled_tokens(vllm_server)
    try:
        async with ServerManager([config]) as manager, manager.managed_server(tokenizer) as server:
            asked = asyncio.create_task(
                server.chat_completion(history, max_tokens=160, extra_body={"ignore_eos": True}, seed=1)
            )
            async with asyncio.timeout(120):
                while await sampled_tokens(vllm_server) < sampled_before + 8:
                    await asyncio.sleep(0.1)
            assert not asked.done(), "the turn ended before the weights could change"
            await load_weights(vllm_server, other_weights, "7")
            said = (await asked).choices[0].message
            again = [*history, {"role": "assistant", "content": said.content}, {"role": "user", "content": "Go on."}]
            await server.chat_completion(again, max_tokens=16, extra_body={"ignore_eos": True}, seed=2)
            [sequence] = server.checked().sequences
    finally:
        await load_weights(vllm_server, vllm_server.folder, "default")
    versions = [version for version in sequence.versions if version is not None]
    changed = versions.index(7)
    assert 0 < changed < 160
    assert versions == [0] * changed + [7] * (176 - changed)
    # The labels say the truth: the first weights give the logprobs of what they sampled, and not of the rest.
    _, first = await engines_own(vllm_server, sequence)
    kept = [logprob for logprob in sequence.logprobs if logprob is not None]
    apart = [abs(one - other) for one, other in zip(kept, first, strict=True)]
    before, after = sum(apart[:changed]) / changed, sum(apart[changed:]) / (176 - changed)
    print(f"changed after {changed} of 160 tokens; mean difference to the first weights {before:.2e}, then {after:.2e}")
    assert before < MEAN_DIFFERENCE
    assert after > 20 * MEAN_DIFFERENCE
