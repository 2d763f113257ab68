"""Evaluations during serving: when one is due, and how many training groups may run meanwhile.

A failed evaluation never ends a run: its error is shown, and the next one starts when it is due.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from hermes_rl.evaluation.evaluated_policy import policy_text
from hermes_rl.rollout.config import EvalHandling
from hermes_rl.rollout.environment_protocol import Environment
from hermes_rl.rollout.metrics import RolloutCounts
from hermes_rl.serving.display import ServeStats


def is_due(before: int, now: int, every: int) -> bool:
    """Whether the policy passed a multiple of `every` between two versions."""
    return now // every > before // every


def groups_during_eval(handling: EvalHandling, ratio: float, max_groups: int) -> int:
    """The limit on training groups during an evaluation. Groups already in flight are never cancelled for it."""
    match handling:
        case EvalHandling.STOP_TRAIN:
            return 0
        case EvalHandling.LIMIT_TRAIN:
            return int(max_groups * ratio)
        case EvalHandling.NONE:
            return max_groups


class EvalScheduler:
    """Runs one evaluation at a time and skips those that fall due meanwhile.

    With `evaluation_only` they are queued instead of skipped, and the first version is evaluated too.
    """

    def __init__(self, env: Environment, stats: ServeStats) -> None:
        self._env, self._stats = env, stats
        self._running: asyncio.Task[None] | None = None
        self._version: int | None = None
        # The evaluation's own progress bar would overwrite the dashboard.
        vars(env)["progress"] = self._progress

    def on_version(self, version: int) -> None:
        """Start an evaluation if this version makes one due."""
        config = self._env.config
        if config.evaluation_only and self.running:
            return
        before, self._version = self._version, version
        due = config.evaluation_only if before is None else is_due(before, version, config.steps_per_eval)
        if due and not self.running:
            self._running = asyncio.create_task(self._evaluate(version))

    @property
    def running(self) -> bool:
        return self._running is not None and not self._running.done()

    def allowed(self, max_groups: int) -> int:
        """The limit on training groups in flight now."""
        config = self._env.config
        return (
            groups_during_eval(config.eval_handling, config.eval_limit_ratio, max_groups)
            if self.running
            else max_groups
        )

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running})

    async def _evaluate(self, version: int) -> None:
        stats, self._env.policy_version = self._stats, version
        try:
            await self._env.run_evaluate()
        except Exception as error:  # noqa: BLE001 (an author's code may raise anything)
            stats.evaluated = f"of version {version} failed: {error}"
        else:
            report = self._env.last_evaluation or {}
            mean = report.get("metrics", {}).get("eval/mean_reward")
            of = f"of {policy_text(report['policy'])}: " if report.get("policy") else ""
            stats.evaluated = of + (f"mean reward {mean:.4f}" if mean is not None else "done")
        finally:
            stats.evaluating = None

    @contextmanager
    def _progress(self, what: str, total: int, tally: RolloutCounts, done: int = 0) -> Iterator["_EvalProgress"]:
        yield _EvalProgress(self._stats, total, done)


class _EvalProgress:
    def __init__(self, stats: ServeStats, total: int, done: int) -> None:
        self._stats, self._total, self._done = stats, total, done - 1
        self.advance()

    def advance(self) -> None:
        self._done += 1
        self._stats.evaluating = f"{self._done}/{self._total}"
