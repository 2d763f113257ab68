"""CoalescingPolicy: merges concurrent requests for the same prompt into one sampling call.

Requests that differ only in `n` and seed and arrive within a short window, like the first turns of a group, become one.
Always true: each request gets the `n` completions it asked for; the same merged requests give the same samples, in
whatever order they arrive; a single request is passed on unchanged.
"""

import asyncio
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TypeAlias

from hermes_rl.inference.token_engines import SamplingRequest
from hermes_rl.inference.tokens.sampled import EngineAnswer
from hermes_rl.training.policy import Policy


@dataclass(frozen=True, slots=True)
class Window:
    """A batch closes `idle` seconds after its last request, `max_wait` after its first, or at `max_completions`.

    `idle` 0 disables merging.
    """

    idle: float = 0.005
    max_wait: float = 0.03
    max_completions: int = 64


@dataclass(slots=True, eq=False)
class BatchMember:
    request: SamplingRequest
    answer: asyncio.Future[EngineAnswer]


@dataclass(slots=True, eq=False)
class PendingBatch:
    """Requests that will be sent as one."""

    ids: Sequence[int]
    closes_at: float
    timer: asyncio.TimerHandle | None = None
    members: list[BatchMember] = field(default_factory=list)

    @property
    def completions(self) -> int:
        return sum(member.request.n for member in self.members)


# Prompt, requested version, whether there is no seed, and the other sampling parameters.
BatchKey: TypeAlias = tuple[tuple[int, ...], int | None, bool, str]


class CoalescingPolicy:
    """`requests` counts incoming requests, `calls` the sampling calls made for them."""

    def __init__(self, policy: Policy, window: Window) -> None:
        self.requests = 0
        self.calls = 0
        self._policy = policy
        self._window = window
        self._batches: dict[BatchKey, PendingBatch] = {}
        self._asking: set[asyncio.Task[None]] = set()

    @property
    def version(self) -> int | None:
        return self._policy.version

    def hold(self, holder: str, version: int | None, seconds: float) -> int | None:
        return self._policy.hold(holder, version, seconds)

    async def logprobs(self, ids: Sequence[int], version: int | None = None) -> tuple[int, list[float | None]]:
        return await self._policy.logprobs(ids, version)

    async def sample(self, ids: Sequence[int], request: SamplingRequest, version: int | None = None) -> EngineAnswer:
        self.requests += 1
        if self._window.idle <= 0 or request.n >= self._window.max_completions:
            self.calls += 1
            return await self._policy.sample(ids, request, version)
        loop = asyncio.get_running_loop()
        # Seeded and unseeded requests are never merged: seeded ones must be reproducible.
        key = tuple(ids), version, request.seed is None, repr(replace(request, n=1, seed=None))
        batch = self._batches.get(key)
        if batch is not None and batch.completions + request.n > self._window.max_completions:
            self._close(key)
            batch = None
        if batch is None:
            batch = self._batches[key] = PendingBatch(key[0], loop.time() + self._window.max_wait)
        member = BatchMember(request, loop.create_future())
        batch.members.append(member)
        if batch.timer is not None:
            batch.timer.cancel()
        if batch.completions >= self._window.max_completions:
            self._close(key)
        else:
            due = min(loop.time() + self._window.idle, batch.closes_at)
            batch.timer = loop.call_at(due, self._close, key)
        # Cancelling one caller cancels only its own future.
        return await member.answer

    def _close(self, key: BatchKey) -> None:
        batch = self._batches.pop(key)
        if batch.timer is not None:
            batch.timer.cancel()
        members = sorted_by_seed(member for member in batch.members if not member.answer.done())
        if not members:
            return
        self.calls += 1
        task = asyncio.create_task(self._answer(batch.ids, key[1], members))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        for member in members:
            member.answer.add_done_callback(lambda _: _cancel_if_abandoned(task, members))

    async def _answer(self, ids: Sequence[int], version: int | None, members: Sequence[BatchMember]) -> None:
        merged = merge_requests([member.request for member in members])
        try:
            answer = await self._policy.sample(ids, merged, version)
        except asyncio.CancelledError:
            for member in members:
                member.answer.cancel()
            raise
        except Exception as error:  # noqa: BLE001 (every member gets the error)
            for member in members:
                if not member.answer.done():
                    member.answer.set_exception(error)
            return
        completions = iter(answer.completions)
        for member in members:
            own = tuple(islice(completions, member.request.n))
            if not member.answer.done():
                member.answer.set_result(answer._replace(completions=own))


def sorted_by_seed(members: Iterable[BatchMember]) -> list[BatchMember]:
    """Arrival order is random, seeds are not."""
    return sorted(members, key=lambda member: (member.request.seed or 0, member.request.n))


def merge_requests(requests: Sequence[SamplingRequest]) -> SamplingRequest:
    """One request for the completions of all; its seed is derived from all seeds."""
    [first, *others] = requests
    if not others:
        return first
    seed = first.seed
    if seed is not None:
        seeds = ",".join(f"{request.seed}x{request.n}" for request in requests)
        # Every engine accepts 31-bit seeds.
        seed = int.from_bytes(hashlib.sha256(seeds.encode()).digest()[:4]) >> 1
    return replace(first, n=sum(request.n for request in requests), seed=seed)


def _cancel_if_abandoned(task: asyncio.Task[None], members: Sequence[BatchMember]) -> None:
    """Cancel the call once no member waits for it."""
    if all(member.answer.cancelled() for member in members):
        task.cancel()
