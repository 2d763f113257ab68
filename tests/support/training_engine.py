"""An engine that keeps books instead of weights: what every policy learned, in order, and what each checkpoint holds.

It stands in for the faults a real engine cannot be told to have at a chosen moment; tests/engines trains on a real one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
from numpy.typing import NDArray

from hermes_rl.inference.token_engines import SamplingRequest
from hermes_rl.inference.tokens.sampled import EngineAnswer, Finish, Sampled
from hermes_rl.training.engines.protocol import Adam, EngineCheckpoint, Example, StepResult


@dataclass
class Engines:
    """All policies of one server. `before` is called with the name of every operation, and may raise."""

    before: Callable[[str], None] = lambda name: None
    checkpoints: dict[str, tuple[int, ...]] = field(default_factory=dict)
    deleted: list[EngineCheckpoint] = field(default_factory=list)
    adams: list[Adam] = field(default_factory=list)
    _numbers: "count[int]" = field(default_factory=count)

    async def open(self, state: str | None) -> "BookEngine":
        self.before("open")
        return BookEngine(self, list(self.checkpoints[state]) if state else [])

    def path(self, name: str) -> str:
        return f"{name}-{next(self._numbers)}"


@dataclass
class BookEngine:
    """A policy that is the list of what it learned: the first token of each batch."""

    server: Engines
    learned: list[int]
    closed: bool = False

    async def step(
        self, examples: Sequence[Example], loss: str, clip: tuple[float, float] | None, adam: Adam
    ) -> StepResult:
        self.server.before("step")
        self.learned.append(int(examples[0].tokens[0]))
        self.server.adams.append(adam)
        return StepResult([example.logprobs for example in examples], {"loss": 1.0})

    async def logprobs(self, examples: Sequence[Example]) -> Sequence[NDArray[np.float32]]:
        return [example.logprobs for example in examples]

    async def save(self, name: str, *, sampler: str | None = None) -> EngineCheckpoint:
        self.server.before("save")
        path = self.server.path(name)
        self.server.checkpoints[path] = tuple(self.learned)
        return EngineCheckpoint(path, await self.save_sampler(name) if sampler is None else sampler)

    async def save_sampler(self, name: str) -> str:
        self.server.before("save_sampler")
        return self.server.path(name)

    async def sampler(self, path: str | None) -> "OneToken":
        return OneToken()

    async def delete(self, saved: EngineCheckpoint) -> None:
        self.server.deleted.append(saved)
        self.server.checkpoints.pop(saved.state, None)

    async def close(self) -> None:
        self.closed = True


class OneToken:
    """Says one token, always."""

    async def sample(self, ids: Sequence[int], request: SamplingRequest) -> EngineAnswer:
        return EngineAnswer((Sampled((1,), (-0.1,), (None,), Finish.STOP),) * request.n, tuple(ids), len(ids))

    async def logprobs(self, ids: Sequence[int]) -> list[float | None]:
        return [None, *[-0.1] * (len(ids) - 1)]
