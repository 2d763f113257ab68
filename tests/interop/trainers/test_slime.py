"""HermesGenerate against slime's contract: its call, its `Sample` and its router's /generate.

The names, types and defaults are those of THUDM/slime at commit 624b824a898ab0ec1fcb4d373004c7f3852bf515
(slime/utils/types.py, slime/rollout/sglang_rollout.py, slime/ray/rollout.py).
"""

import inspect
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from hermes_rl import AgentResult, HermesAgentBaseEnv, Step, ToolContext
from hermes_rl.core.errors import ConfigError, HermesRLError, VerifierError
from hermes_rl.inference.tokens.sampled import Finish, Sampled
from hermes_rl.interop.trainers.slime import HermesGenerate, dataset_rows, group_rewards, rollout_samples
from tests.support.chat_models import chat_model

CHATML = chat_model("chatml")
SAMPLING = {"temperature": 0.7, "top_p": 1.0, "top_k": -1, "max_new_tokens": 6, "stop_token_ids": None}


@dataclass
class Sample:
    """What the adapter reads and writes of slime's class of this name."""

    class Status(Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"

    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    prompt: str = ""
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    reward: float | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    remove_sample: bool = False
    status: Status = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    session_id: str | None = None

    def get_reward_value(self, args: Namespace) -> float:
        assert self.reward is not None
        return self.reward


class WordEnv(HermesAgentBaseEnv):
    """Scored by whether the item is what was said; the item `broken` breaks the verifier."""

    name = "word"

    @classmethod
    def config_init(cls) -> Any:
        return cls.env_config_cls(enabled_toolsets=[], max_agent_turns=1, rollout_retries=0), []

    def train_items(self) -> list[str]:
        return ["yes", "no", "broken"]

    def format_prompt(self, item: str) -> str:
        return f"Say {item}."

    async def compute_reward(self, item: str, result: AgentResult, ctx: ToolContext) -> float:
        if item == "broken":
            raise VerifierError("broken", "no judge")
        return float(result.final_response == item)

    def oracle(self, item: str) -> list[Step]:
        return [item]


@dataclass(frozen=True, slots=True)
class Router:
    args: Namespace
    asked: list[tuple[dict[str, Any], dict[str, str]]]


@asynccontextmanager
async def router(text: str = "yes") -> AsyncIterator[Router]:
    """SGLang's answer to /generate, as slime's router passes it on; each token has its own logprob."""
    asked: list[tuple[dict[str, Any], dict[str, str]]] = []

    async def generate(request: web.Request) -> web.Response:
        body = await request.json()
        asked.append((body, dict(request.headers)))
        tokens = [*CHATML.tokenizer.encode(text, add_special_tokens=False), CHATML.stop_ids[0]]
        rows = [[-0.25 * (place + 1), token, None] for place, token in enumerate(tokens)]
        about = {
            "finish_reason": {"type": "stop", "matched": tokens[-1]},
            "prompt_tokens": len(body["input_ids"]),
            "output_token_logprobs": rows,
            "weight_version": "12",
        }
        return web.json_response({"text": text, "output_ids": tokens, "meta_info": about})

    app = web.Application()
    app.add_routes([web.post("/generate", generate)])
    async with TestServer(app) as server:
        args = Namespace(
            sglang_router_ip=server.host,
            sglang_router_port=server.port,
            router_policy="consistent_hashing",
            grpo_std_normalization=False,
        )
        yield Router(args, asked)


@pytest.fixture
async def generate(tmp_path: Path) -> AsyncIterator[HermesGenerate]:
    made = HermesGenerate(WordEnv, str(CHATML.save(tmp_path / "tokenizer")))
    yield made
    await made.host.close()


def pending(item: int, **fields: Any) -> Sample:
    return Sample(group_index=0, index=4, session_id="a-session", metadata={"hermes_item": item}, **fields)


def test_slime_finds_that_it_takes_evaluation(generate: HermesGenerate) -> None:
    assert "evaluation" in inspect.signature(generate).parameters


async def test_a_sample_has_the_tokens_and_logprobs_of_the_router(generate: HermesGenerate) -> None:
    async with router() as there:
        given = pending(0)
        sample = await generate(there.args, given, SAMPLING)
    [(body, headers)] = there.asked
    assert given.status is Sample.Status.PENDING
    assert sample.status is Sample.Status.COMPLETED
    assert sample.tokens[: len(body["input_ids"])] == body["input_ids"]
    assert sample.response == "yes"
    assert sample.response_length == len(sample.loss_mask) == len(sample.rollout_log_probs)
    sampled = [logprob for logprob, mask in zip(sample.rollout_log_probs, sample.loss_mask, strict=True) if mask]
    assert sampled == [-0.25 * (place + 1) for place in range(len(sampled))]
    assert sample.weight_versions == ["12"]
    assert (sample.reward, sample.rollout_id) == (1.0, 4)
    assert body["sampling_params"]["temperature"] == 0.7
    assert body["sampling_params"]["max_new_tokens"] == 6
    assert headers["X-SMG-Routing-Key"] == "a-session"


async def test_a_rollout_of_several_sequences_is_several_samples_of_one_rollout(generate: HermesGenerate) -> None:
    plan = generate.host.plan(await generate.host.opened(), "yes", 1)[0]

    async def sample(*_: Any) -> Sampled:
        return Sampled((CHATML.stop_ids[0],), (-0.5,), (0,), Finish.STOP)

    rollout = (await generate.host.rollout(plan, sample)).rollout
    samples = rollout_samples(pending(0), replace(rollout, sequences=rollout.sequences * 2), "")
    assert [sample.tokens for sample in samples] == [list(rollout.sequences[0].tokens)] * 2
    assert {sample.rollout_id for sample in samples} == {4}
    assert {sample.reward for sample in samples} == {0.0}


async def test_a_rollout_without_a_score_raises(generate: HermesGenerate) -> None:
    async with router() as there:
        with pytest.raises(HermesRLError, match="no score"):
            await generate(there.args, pending(2), SAMPLING)


@pytest.mark.parametrize(
    ("sample", "parameters", "message"),
    [(Sample(), SAMPLING, "hermes_item"), (pending(0), {**SAMPLING, "top_p": 0.9}, "rollout_top_p")],
)
async def test_what_slime_could_not_train_on_is_refused(
    generate: HermesGenerate, sample: Sample, parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        await generate(Namespace(), sample, parameters)


async def test_each_item_is_a_row_of_the_prompt_data(generate: HermesGenerate) -> None:
    rows = await dataset_rows(generate)
    assert [row["metadata"] for row in rows] == [{"hermes_item": number} for number in range(3)]
    assert all(isinstance(row["prompt"], str) for row in rows)


def test_each_rollout_counts_once_in_the_mean_of_its_group() -> None:
    scores = [(0, 0, 1.0), (0, 0, 1.0), (0, 1, 0.0), (1, 2, 0.5), (1, 3, 0.5)]
    samples = [
        Sample(group_index=group, index=rollout, rollout_id=rollout, reward=reward) for group, rollout, reward in scores
    ]
    raw, rewards = group_rewards(Namespace(grpo_std_normalization=False), samples)
    assert raw == [1.0, 1.0, 0.0, 0.5, 0.5]
    assert rewards == [0.5, 0.5, -0.5, 0.0, 0.0]


def test_the_deviation_of_a_group_is_that_of_its_rollouts() -> None:
    samples = [Sample(group_index=0, index=number, reward=float(number)) for number in range(2)]
    _, rewards = group_rewards(Namespace(grpo_std_normalization=True), samples)
    assert rewards == pytest.approx([-0.70710, 0.70710], abs=1e-4)
