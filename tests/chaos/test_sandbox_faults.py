"""Hundreds of rollouts through the pool while sandboxes fail in every way: nothing scored wrongly, nothing left behind.

Each kind of fault hits 5% of the starts, by a seeded draw. The policy is scripted and always right, so any score but 1
would be a fault that was scored.
"""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from hermes_rl import AgentResult, Reward, ToolContext
from hermes_rl.core.errors import SandboxError
from hermes_rl.rollout.generate import generate_groups
from hermes_rl.sandbox.backends.bubblewrap import BubblewrapBackend, BubblewrapSandbox
from hermes_rl.sandbox.ledger import SandboxLedger
from hermes_rl.sandbox.process_tree import children
from hermes_rl.sandbox.protocol import Command, ExecResult
from hermes_rl.sandbox.spec import Capabilities, SandboxSpec
from tests.rollout.test_rollout import writes_the_number
from tests.sandbox.living import living, nap
from tests.support.environments import FileEnv, opened
from tests.support.long_suites import in_the_gate
from tests.support.scripted_model import ScriptedModel

GROUP = 10
SHARE = 0.05
KINDS = ("start_fails", "start_hangs", "dies", "stops", "close_raises")


class FaultyBackend:
    """bubblewrap, with faults: some starts fail or hang, some sandboxes die, stop answering, or fail to close."""

    name = "bubblewrap"

    def __init__(self, ledger: SandboxLedger) -> None:
        self._real = BubblewrapBackend(ledger=ledger)
        self._random = Random(4)
        self.injected: Counter[str] = Counter()
        self.capabilities: Capabilities = self._real.capabilities

    async def probe(self) -> None:
        await self._real.probe()

    async def prepare(self, spec: SandboxSpec, report: Callable[[str], object]) -> None:
        await self._real.prepare(spec, report)

    async def start(self, spec: SandboxSpec | None = None) -> BubblewrapSandbox:
        drawn = self._random.random()
        kind = KINDS[int(drawn / SHARE)] if drawn < SHARE * len(KINDS) else "none"
        self.injected[kind] += 1
        if kind == "start_fails":
            raise SandboxError("start", "no sandbox to be had")
        if kind == "start_hangs":
            await asyncio.sleep(3600)
        sandbox = await self._real.start(spec)
        if kind == "close_raises":
            _fail_to_close(sandbox)
        elif kind in {"dies", "stops"}:
            _fail_at_a_command(sandbox, self._random.randrange(1, 3), kind)
        return sandbox

    async def reap(self, resources: Mapping[str, Any]) -> None:
        await self._real.reap(resources)

    async def close(self) -> None:
        await self._real.close()


def _fail_to_close(sandbox: BubblewrapSandbox) -> None:
    close = sandbox.close

    async def failing() -> None:
        await close()
        raise RuntimeError("the daemon is gone")

    sandbox.close = failing  # type: ignore[method-assign] # the fault


def _fail_at_a_command(sandbox: BubblewrapSandbox, which: int, kind: str) -> None:
    run = sandbox.run
    commands = 0

    async def failing(command: Command) -> ExecResult:
        nonlocal commands
        commands += 1
        if commands == which:
            (first,) = children(sandbox._transport.pid)
            os.kill(first, signal.SIGKILL if kind == "dies" else signal.SIGSTOP)
        return await run(command)

    sandbox.run = failing  # type: ignore[method-assign] # the fault


class LeavesProcesses(FileEnv):
    """Every rollout leaves a process behind, to be found if its sandbox is."""

    mine = nap()

    async def setup(self) -> None:
        await super().setup()
        self._eval_items = []

    async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float | Reward:
        ctx.terminal(f"{self.mine} &")
        return await super().compute_reward(item, result, ctx)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("rollouts", in_the_gate([200, 1000], 1))
async def test_no_fault_is_scored_and_none_is_leaked(
    rollouts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    backend = FaultyBackend(SandboxLedger(tmp_path / "ledger"))

    async def open_backends(*_: object) -> list[FaultyBackend]:
        return [backend]

    monkeypatch.setattr("hermes_rl.environment.base.open_backends", open_backends)
    monkeypatch.setattr("hermes_rl.sandbox.guest_agent.client._KILL_TIME", 2.0)
    monkeypatch.setattr("hermes_rl.sandbox.guest_agent.client._WATCH_EVERY", 2.0)
    monkeypatch.setattr("hermes_rl.sandbox.guest_agent.client._WATCH_TIME", 4.0)
    config: dict[str, Any] = {
        "total_steps": rollouts // GROUP,
        "group_size": GROUP,
        "max_num_workers": 24,
        "max_live_sandboxes": 64,
        "sandbox_start_timeout": 4.0,
        "max_starting_sandboxes": 16,
        "terminal_timeout": 4,
    }
    async with ScriptedModel(writes_the_number) as model, opened(LeavesProcesses, model, **config) as env:
        tally = await generate_groups(env, tmp_path / "groups.jsonl")
        pool = env.tools.pool
    injected = backend.injected
    with capsys.disabled():
        print(
            f"\n{rollouts} rollouts; injected {dict(injected)}; starts tried again {dict(pool.start_failures)}; "
            f"closes that raised {pool.close_failures}; scored {len(tally.scores)}; "
            f"rollouts tried again {dict(tally.retried)}; failures {dict(tally.failures)}"
        )
    assert len(tally.scores) + sum(tally.failures.values()) == rollouts
    assert set(tally.scores) == {1.0}
    assert min(injected[kind] for kind in KINDS) > rollouts * SHARE / 2
    assert pool.start_failures == {"start": injected["start_fails"], "start_timeout": injected["start_hangs"]}
    assert pool.close_failures == injected["close_raises"]
    seen = tally.failures + tally.retried
    assert seen["sandbox/died"] + seen["sandbox/hang"] == injected["dies"] + injected["stops"]
    assert sum(tally.failures.values()) < sum(tally.retried.values())
    # A start that fails three times in a row is given up, and its rollout tried again or counted.
    assert set(seen) <= {"sandbox/died", "sandbox/hang", "sandbox/start", "sandbox/start_timeout"}
    assert pool.live == 0
    assert living(LeavesProcesses.mine) == []
    assert list((tmp_path / "ledger").iterdir()) == []
