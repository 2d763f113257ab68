"""Coalesced: a policy that asks for all completions of one prompt in one call.

Requests for the same prompt that differ in nothing but `n` and seed, and come within a moment of each other, as the
first turns of a group do, become one. Always true: each gets as many completions as it asked for; the same requests
joined again draw the same, in whatever order they come; one that is alone is passed on as it is.
"""

import asyncio
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from hermes_rl.inference.token_engines import SamplingRequest
from hermes_rl.tokens.exchange import Answer
from hermes_rl.training.policy import Policy


@dataclass(frozen=True, slots=True)
class Window:
    """How long to wait for more: `quiet` seconds after the last, `longest` after the first, or until `most` are asked.

    Zero `quiet` joins nothing.
    """

    quiet: float = 0.005
    longest: float = 0.03
    most: int = 64


@dataclass(slots=True, eq=False)
class Member:
    request: SamplingRequest
    answer: asyncio.Future[Answer]


@dataclass(slots=True, eq=False)
class Gathering:
    """Requests that wait to become one."""

    ids: Sequence[int]
    closes_at: float
    timer: asyncio.TimerHandle | None = None
    members: list[Member] = field(default_factory=list)

    @property
    def wanted(self) -> int:
        return sum(member.request.n for member in self.members)


class Coalesced:
    """`requests` and `calls` count what was asked here and what was asked of the policy for it."""

    def __init__(self, policy: Policy, window: Window) -> None:
        self.requests = 0
        self.calls = 0
        self._policy = policy
        self._window = window
        self._gatherings: dict[tuple[tuple[int, ...], bool, str], Gathering] = {}
        self._asking: set[asyncio.Task[None]] = set()

    @property
    def version(self) -> int | None:
        return self._policy.version

    async def logprobs(self, ids: Sequence[int]) -> tuple[int, list[float | None]]:
        return await self._policy.logprobs(ids)

    async def sample(self, ids: Sequence[int], request: SamplingRequest) -> Answer:
        self.requests += 1
        if self._window.quiet <= 0 or request.n >= self._window.most:
            self.calls += 1
            return await self._policy.sample(ids, request)
        loop = asyncio.get_running_loop()
        # With a seed and without one are two kinds: the first must be drawn again alike.
        key = tuple(ids), request.seed is None, repr(replace(request, n=1, seed=None))
        gathering = self._gatherings.get(key)
        if gathering is not None and gathering.wanted + request.n > self._window.most:
            self._close(key)
            gathering = None
        if gathering is None:
            gathering = self._gatherings[key] = Gathering(key[0], loop.time() + self._window.longest)
        member = Member(request, loop.create_future())
        gathering.members.append(member)
        if gathering.timer is not None:
            gathering.timer.cancel()
        if gathering.wanted >= self._window.most:
            self._close(key)
        else:
            due = min(loop.time() + self._window.quiet, gathering.closes_at)
            gathering.timer = loop.call_at(due, self._close, key)
        # A caller that is cancelled cancels its own future, and nothing else.
        return await member.answer

    def _close(self, key: tuple[tuple[int, ...], bool, str]) -> None:
        gathering = self._gatherings.pop(key)
        if gathering.timer is not None:
            gathering.timer.cancel()
        members = in_order(member for member in gathering.members if not member.answer.done())
        if not members:
            return
        self.calls += 1
        task = asyncio.create_task(self._answer(gathering.ids, members))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        for member in members:
            member.answer.add_done_callback(lambda _: _end_unheard(task, members))

    async def _answer(self, ids: Sequence[int], members: Sequence[Member]) -> None:
        try:
            answer = await self._policy.sample(ids, joined([member.request for member in members]))
        except asyncio.CancelledError:
            for member in members:
                member.answer.cancel()
            raise
        except Exception as error:  # noqa: BLE001 (whatever it is, each of them is told)
            for member in members:
                if not member.answer.done():
                    member.answer.set_exception(error)
            return
        completions = iter(answer.completions)
        for member in members:
            own = tuple(islice(completions, member.request.n))
            if not member.answer.done():
                member.answer.set_result(answer._replace(completions=own))


def in_order(members: Iterable[Member]) -> list[Member]:
    """By their seeds, and not by who came first: that is chance."""
    return sorted(members, key=lambda member: (member.request.seed or 0, member.request.n))


def joined(requests: Sequence[SamplingRequest]) -> SamplingRequest:
    """One request for all completions of these; its seed is made of all of theirs."""
    [first, *others] = requests
    if not others:
        return first
    seed = first.seed
    if seed is not None:
        named = ",".join(f"{request.seed}x{request.n}" for request in requests)
        # 31 bits: what every engine takes for a seed.
        seed = int.from_bytes(hashlib.sha256(named.encode()).digest()[:4]) >> 1
    return replace(first, n=sum(request.n for request in requests), seed=seed)


def _end_unheard(task: asyncio.Task[None], members: Sequence[Member]) -> None:
    """Give a call up once nobody waits for it."""
    if all(member.answer.cancelled() for member in members):
        task.cancel()
