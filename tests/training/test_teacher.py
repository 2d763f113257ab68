"""On-policy distillation: which teacher a setting names, what it says of tokens, and what that does to a step."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from pydantic import ValidationError

from hermes_rl.core.errors import ConfigError, EndpointError
from hermes_rl.training.checkpoints import Checkpoint
from hermes_rl.training.config import LossAggregation, TrainerSettings
from hermes_rl.training.engines.protocol import EngineError, Example
from hermes_rl.training.loss import add_teacher_advantage
from hermes_rl.training.run_folder import RunFolder
from hermes_rl.training.step import GRPOStep
from hermes_rl.training.teacher import TeacherServer, WeightsAtEngine, check_teacher, find_teacher
from tests.support.chat_models import chat_model
from tests.support.inference import inference, saying
from tests.support.lora_server import LoraServer
from tests.support.token_servers import logprob_of
from tests.support.training_engine import OneToken
from tests.training.test_step import Asked
from tests.training.token_rows import of
from tests.training.training_run import batch_group

PATH = "tinker://run/sampler_weights/one"
SETTINGS = TrainerSettings(
    base_url="http://engine", total_steps=4, teacher=PATH, loss_aggregation=LossAggregation.TOKEN_SUM
)
TOKENIZER = chat_model("chatml").tokenizer


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))


def with_settings(**changes: Any) -> TrainerSettings:
    return SETTINGS.model_copy(update=changes)


async def stepped(engine: Asked, *groups: bytes, **changes: Any) -> dict[str, float]:
    return (await GRPOStep(with_settings(**changes)).run(engine, groups, step=0, version=0)).metrics


def test_the_advantage_by_hand() -> None:
    example, _ = of(now=[-9, -9, -9], then=[-1, -2, 0], advantages=[0.5, 0.5, 0], mask=[1, 1, 0])
    teacher = [np.array([-0.5, -3, -7], np.float32)]
    [made] = add_teacher_advantage([example], teacher, 2.0, 0.5)
    # 0.5 * 0.5 + 2 * (-0.5 + 1), 0.5 * 0.5 + 2 * (-3 + 2), and nothing where nothing was sampled.
    assert made.advantages.tolist() == [1.25, -1.75, 0]


def test_a_teacher_that_is_the_sampler_changes_nothing() -> None:
    example, _ = of(now=[-9, -9], then=[-1, -2], advantages=[0.5, -0.25], mask=[1, 1])
    [made] = add_teacher_advantage([example], [example.logprobs], 3.0, 1.0)
    assert made.advantages.tolist() == [0.5, -0.25]


async def test_the_engine_gets_the_sum_of_both_advantages() -> None:
    engine = Asked()
    metrics = await stepped(engine, batch_group(10))
    # The teacher says -0.1 of every token, and -0.5 were sampled; the scores give -0.5 and 0.5.
    sent = engine.steps[0][0]
    assert [example.advantages.tolist() for example in sent] == [pytest.approx([-0.1] * 2), pytest.approx([0.9] * 2)]
    assert metrics["kl/teacher_k1"] == pytest.approx(-0.4)
    assert metrics["kl/teacher_k3"] == pytest.approx(np.expm1(0.4) - 0.4)


async def test_groups_of_equal_scores_learn_from_the_teacher() -> None:
    engine = Asked()
    metrics = await stepped(engine, batch_group(10, scores=(1.0, 1.0)), batch_group(11, scores=(0.0,)))
    assert [example.advantages.tolist() for example in engine.steps[0][0]] == [pytest.approx([0.4] * 2)] * 3
    assert (metrics["groups/zero_signal"], metrics["groups/used"]) == (0, 2)


async def test_without_reward_only_the_teacher_counts() -> None:
    engine = Asked()
    await stepped(engine, batch_group(10), reward_coef=0.0, teacher_coef=0.5)
    assert [example.advantages.tolist() for example in engine.steps[0][0]] == [pytest.approx([0.2] * 2)] * 2


async def test_a_penalty_comes_on_top() -> None:
    engine = Asked()
    metrics = await stepped(engine, batch_group(10), kl_coef=1.0)
    # All log ratios to the reference are the same, so that its penalty is 0.
    assert engine.steps[0][0][1].advantages.tolist() == pytest.approx([0.9] * 2)
    assert metrics["kl/reference_k1"] == pytest.approx(-0.4)


async def test_a_teacher_that_fails_is_a_failed_step(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(self: OneToken, ids: Sequence[int]) -> list[float | None]:
        raise EndpointError("engine", "gone")

    monkeypatch.setattr(OneToken, "logprobs", fails)
    with pytest.raises(EngineError, match="cannot compute the teacher's logprobs: gone"):
        await stepped(Asked(), batch_group(10))


@pytest.mark.parametrize("values", [[None, None, -1.0], [None, float("-inf"), -1.0], [None, -1.0]])
async def test_a_teacher_without_a_logprob_for_each_token_is_a_failed_step(
    monkeypatch: pytest.MonkeyPatch, values: list[float | None]
) -> None:
    async def answers(self: OneToken, ids: Sequence[int]) -> list[float | None]:
        return values

    monkeypatch.setattr(OneToken, "logprobs", answers)
    with pytest.raises(EngineError, match="incomplete or non-finite"):
        await stepped(Asked(), batch_group(10))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"teacher_coef": 2.0}, "need a teacher"),
        ({"reward_coef": 0.0}, "need a teacher"),
        ({"teacher": PATH, "teacher_token": "env:T"}, "needs a teacher with a URL"),
    ],
)
def test_settings_without_effect_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        TrainerSettings(**fields)


def test_the_token_of_a_teacher_is_not_saved() -> None:
    settings = TrainerSettings(teacher="http://t", teacher_token="s3cret")
    assert "s3cret" not in settings.model_dump_json()
    assert "s3cret" not in repr(settings)


def saved_run(name: str, **settings: Any) -> None:
    """A run whose last checkpoint is a final one."""
    folder = RunFolder.named(name)
    with folder.acquire(TrainerSettings(**{"base_url": "http://engine"} | settings)) as lineage:
        for step in (1, 2):
            lineage.add(Checkpoint(step, step, (), f"state-{step}", f"sampler-{step}", final=step == 2))


def test_a_path_is_that_sampler() -> None:
    assert find_teacher(SETTINGS) == WeightsAtEngine(PATH)


def test_a_run_is_its_last_sampler() -> None:
    saved_run("taught", base_model="some/model")
    assert find_teacher(with_settings(teacher="taught")) == WeightsAtEngine("sampler-2", "some/model")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"teacher": "nobody"}, "neither a run in .*, nor a tinker:// path, nor a URL"),
        ({"teacher": "tinker://run/weights/one"}, "is a training state"),
        ({"teacher": "taught", "base_url": None}, "is not at this engine"),
    ],
)
def test_what_is_no_teacher_is_refused_before_the_run(changes: dict[str, Any], said: str) -> None:
    saved_run("taught")
    with pytest.raises(ConfigError, match=said):
        GRPOStep(with_settings(**changes))


async def test_a_run_of_a_model_with_another_tokenizer_is_refused(tmp_path: Path) -> None:
    saved_run("taught", base_model=str(chat_model("llama3").save(tmp_path / "other")))
    with pytest.raises(ConfigError, match="choose one with the same tokenizer"):
        await check_teacher(with_settings(teacher="taught"), TOKENIZER)


@pytest.mark.parametrize("model", ["Qwen/Qwen3-8B", "no/such"])
async def test_a_run_whose_tokenizer_is_the_same_or_unknown_is_taken(model: str) -> None:
    saved_run("taught", base_model=model)
    await check_teacher(with_settings(teacher="taught"), TOKENIZER)


async def test_our_own_server_is_a_teacher() -> None:
    async with inference(saying("hello"), token="sesame", headers={"Authorization": "Bearer sesame"}) as server:
        teacher = TeacherServer(f"{server.url}/v1", "sesame")
        await teacher.check(TOKENIZER, "m")
        async with teacher.open() as scorer:
            assert await scorer.logprobs([5, 6, 7]) == [None, logprob_of(6), logprob_of(7)]


async def test_our_own_server_with_another_tokenizer_is_refused() -> None:
    async with inference(saying("hello"), model=chat_model("llama3")) as server:
        with pytest.raises(ConfigError, match="has another tokenizer than m"):
            await TeacherServer(server.url).check(TOKENIZER, "m")


async def test_a_vllm_server_is_a_teacher() -> None:
    async with LoraServer() as server:
        teacher = TeacherServer(server.root)
        # It has no route to tokenize, so nothing is known against it.
        await teacher.check(TOKENIZER, "m")
        async with teacher.open() as scorer:
            assert await scorer.logprobs([5, 6, 7]) == [None, logprob_of(6), logprob_of(7)]


@asynccontextmanager
async def tokenizing(family: str) -> AsyncIterator[str]:
    """As much of vLLM as the check of its tokenizer needs."""

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "large", "owned_by": "vllm"}]})

    async def tokenize(request: web.Request) -> web.Response:
        body = await request.json()
        assert (body["model"], body["add_special_tokens"]) == ("large", False)
        ids = chat_model(family).tokenizer.encode(body["prompt"], add_special_tokens=False)
        return web.json_response({"count": len(ids), "tokens": ids})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_post("/tokenize", tokenize)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield "http://{}:{}".format(*runner.addresses[0])
    finally:
        await runner.cleanup()


async def test_the_tokenizer_of_a_vllm_server_is_compared() -> None:
    async with tokenizing("chatml") as url:
        await TeacherServer(url).check(TOKENIZER, "m")
    async with tokenizing("llama3") as url:
        with pytest.raises(ConfigError, match=r"the teacher large at .* has another tokenizer"):
            await TeacherServer(url).check(TOKENIZER, "m")


async def test_a_server_that_is_away_is_a_failed_step() -> None:
    with pytest.raises(EngineError, match=r"cannot compute the teacher's logprobs: .*cannot be reached"):
        await stepped(Asked(), batch_group(10), teacher="http://127.0.0.1:9")


async def test_a_step_asks_the_server_for_whole_sequences() -> None:
    engine = Asked()
    async with inference(saying("hello")) as server:
        await stepped(engine, batch_group(10), teacher=server.url, reward_coef=0.0)
    examples: Sequence[Example] = engine.steps[0][0]
    expected = [logprob_of(6) + 0.5, logprob_of(7) + 0.5]
    assert [example.advantages.tolist() for example in examples] == [pytest.approx(expected)] * 2
