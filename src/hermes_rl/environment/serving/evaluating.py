"""Evaluations beside serving: when one is due, and what training rollouts do meanwhile.

An evaluation never ends a run: what it raises is told, and the next one is tried when it is due.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from hermes_rl.environment.config import EvalHandling
from hermes_rl.environment.contract import Environment
from hermes_rl.environment.metrics import Tally
from hermes_rl.environment.serve_display import Board


def is_due(before: int, now: int, every: int) -> bool:
    """Whether a multiple of `every` lies between two versions of the policy."""
    return now // every > before // every


def groups_meanwhile(handling: EvalHandling, ratio: float, most: int) -> int:
    """How many training groups may run while an evaluation does. Those in flight are never given up for it."""
    match handling:
        case EvalHandling.STOP_TRAIN:
            return 0
        case EvalHandling.LIMIT_TRAIN:
            return int(most * ratio)
        case EvalHandling.NONE:
            return most


class Evaluations:
    """At most one runs at a time; one that falls due meanwhile is left out, or comes next where there is nothing else.

    Where there is nothing else the first version is evaluated too.
    """

    def __init__(self, env: Environment, board: Board) -> None:
        self._env, self._board = env, board
        self._running: asyncio.Task[None] | None = None
        self._version: int | None = None
        # Its own progress bar would write over the dashboard.
        vars(env)["progress"] = self._progress

    def see(self, version: int) -> None:
        """Begin an evaluation when this version makes one due."""
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

    def allowed(self, most: int) -> int:
        """How many training groups may be in flight now."""
        config = self._env.config
        return groups_meanwhile(config.eval_handling, config.eval_limit_ratio, most) if self.running else most

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running})

    async def _evaluate(self, version: int) -> None:
        board, self._env.policy_version = self._board, version
        try:
            await self._env.run_evaluate()
        except Exception as error:  # noqa: BLE001 (the author's code may raise anything)
            board.evaluated = f"of version {version} failed: {error}"
        else:
            mean = (self._env.last_evaluation or {}).get("metrics", {}).get("eval/mean_reward")
            board.evaluated = f"of version {version}: " + (f"mean reward {mean:.4f}" if mean is not None else "done")
        finally:
            board.evaluating = None

    @contextmanager
    def _progress(self, what: str, total: int, tally: Tally, done: int = 0) -> Iterator["_Advancing"]:
        yield _Advancing(self._board, total, done)


class _Advancing:
    def __init__(self, board: Board, total: int, done: int) -> None:
        self._board, self._total, self._done = board, total, done - 1
        self.advance()

    def advance(self) -> None:
        self._done += 1
        self._board.evaluating = f"{self._done}/{self._total}"
