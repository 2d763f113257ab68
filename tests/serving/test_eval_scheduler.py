"""Evaluations beside serving: when they are due, what training does meanwhile, and that none ends the run."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.rollout.config import EvalHandling
from hermes_rl.serving.eval_scheduler import groups_during_eval, is_due
from hermes_rl.store.database.store import Store
from tests.serving.counting_env import Streamed, number_asked, says_it, slowly
from tests.serving.parts import serving, train, trainer, until
from tests.support.token_servers import VLLMServer

HELD_OUT = 1000


@pytest.mark.parametrize(
    ("before", "now", "due"), [(0, 1, False), (0, 2, True), (1, 2, True), (2, 3, False), (1, 5, True), (4, 4, False)]
)
def test_an_evaluation_is_due_when_a_multiple_of_its_steps_is_passed(before: int, now: int, due: bool) -> None:
    assert is_due(before, now, 2) is due


def test_training_goes_on_as_far_as_the_setting_says() -> None:
    assert [groups_during_eval(handling, 0.5, 9) for handling in EvalHandling] == [0, 4, 9]


async def test_held_out_items_are_evaluated_when_the_policy_has_moved_on(
    tmp_path: Path, store: Store, api: str
) -> None:
    await trainer(store)
    async with VLLMServer(says_it) as model, serving(api, model.base_url, tmp_path, steps_per_eval=2) as run:
        await until(lambda: run.board.version == 0)
        model.weights = "2"
        await train(store, 2)
        await until(lambda: run.board.evaluated)
        report = run.env.last_evaluation
    assert report["metrics"]["eval/items"] == 3
    assert run.board.evaluated == f"of version 2: mean reward {report['metrics']['eval/mean_reward']:.4f}"


async def test_no_training_group_begins_while_an_evaluation_stops_them(tmp_path: Path, store: Store, api: str) -> None:
    class Holding(VLLMServer):
        """Answers held-out items when it may."""

        may_answer = asyncio.Event()

        async def _send(self, request: Any, body: dict[str, Any], reply: Any) -> Any:
            if number_asked(self.asked(body)) >= HELD_OUT:
                await self.may_answer.wait()
            return await super()._send(request, body, reply)

    await trainer(store, max_staleness=1000)
    async with (
        Holding(slowly(0.05)) as model,
        serving(api, model.base_url, tmp_path, steps_per_eval=1) as run,
    ):
        await until(lambda: run.board.tally.groups > 1)
        await train(store, 1)
        await until(lambda: run.board.waiting == "an evaluation runs" and not run.board.groups_running)
        made = run.board.groups_begun
        await asyncio.sleep(0.5)
        assert (run.board.groups_begun, run.board.evaluating) == (made, "0/3")
        model.may_answer.set()
        await until(lambda: run.board.groups_begun > made)


async def test_an_evaluation_that_fails_is_told_and_the_run_goes_on(tmp_path: Path, store: Store, api: str) -> None:
    class Broken(Streamed):
        async def evaluate(self, *args: Any, **kwargs: Any) -> None:
            raise ZeroDivisionError("no items")

    await trainer(store, max_staleness=1000)
    async with VLLMServer(says_it) as model, serving(api, model.base_url, tmp_path, Broken, steps_per_eval=1) as run:
        await until(lambda: run.board.tally.groups > 1)
        await train(store, 1)
        await until(lambda: run.board.evaluated == "of version 1 failed: no items")
        made = run.board.tally.groups
        await until(lambda: run.board.tally.groups > made)
