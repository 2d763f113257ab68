"""ModelPolicy: samples from a torch model in this process, for trainers without an inference engine.

Requests that arrive together are sampled as one padded batch. Always true: the model is in eval mode while it samples,
because gradient checkpointing in train mode loses the key-value cache, and its mode is restored before the answer; each
logprob comes from the distribution that the token was drawn from.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from hermes_rl.core.errors import ConfigError, EndpointError
from hermes_rl.inference.token_engines import SamplingRequest, uncorrectable_reason
from hermes_rl.inference.tokens.sampled import EngineAnswer, Finish, Sampled

# Seconds in which the turns of rollouts that run at once are collected into a batch.
WINDOW = 0.005


class Row(NamedTuple):
    """One completion to sample, at most `room` tokens long."""

    prompt: Sequence[int]
    room: int
    stops: frozenset[int]
    temperature: float
    full: Finish
    """The finish reason if it becomes `room` tokens long."""


@dataclass(slots=True, eq=False)
class Pending:
    rows: list[Row]
    answer: "asyncio.Future[list[Sampled]]"


class ModelPolicy:
    """`version` names the weights; the owner sets it after each step. Train only while nothing is sampled."""

    def __init__(self, model: Callable[[], Any], *, context_tokens: int, max_rows: int = 64) -> None:
        self.version = 0
        self.context_tokens = context_tokens
        self._model = model
        self._max_rows = max_rows
        self._pending: list[Pending] = []
        self._worker: asyncio.Task[None] | None = None

    def hold(self, holder: str, version: int | None, seconds: float) -> int | None:
        """The current version for as long as nothing is trained; there is no other to hold."""
        return self.version if version in (None, self.version) else None

    async def logprobs(self, ids: Sequence[int], version: int | None = None) -> tuple[int, list[float | None]]:
        raise ConfigError("this server samples only; it does not score given tokens")

    async def sample(self, ids: Sequence[int], request: SamplingRequest, version: int | None = None) -> EngineAnswer:
        if (reason := uncorrectable_reason(request, "processed")) is not None:
            raise ConfigError(reason)
        room = self.context_tokens - len(ids)
        limit = min(request.max_tokens or room, room)
        full = Finish.LENGTH if limit == request.max_tokens else Finish.CONTEXT
        stops = frozenset() if request.ignore_eos else frozenset(request.stop_token_ids)
        rows = [Row(ids, limit, stops, request.temperature, full)] * request.n
        pending = Pending(rows, asyncio.get_running_loop().create_future())
        self._pending.append(pending)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return EngineAnswer(tuple(await pending.answer), tuple(ids), len(ids))

    async def _work(self) -> None:
        while self._pending:
            await asyncio.sleep(WINDOW)
            batch: list[Pending] = []
            count = 0
            while self._pending and (not batch or count + len(self._pending[0].rows) <= self._max_rows):
                batch.append(self._pending.pop(0))
                count += len(batch[-1].rows)
            batch = [each for each in batch if not each.answer.done()]
            try:
                sampled = await asyncio.to_thread(self._draw, [row for each in batch for row in each.rows])
            except Exception as error:  # noqa: BLE001 (reported to those who asked)
                failed = EndpointError("bad_response", f"the model could not sample: {type(error).__name__}: {error}")
                for each in batch:
                    if not each.answer.done():
                        each.answer.set_exception(failed)
                continue
            for each in batch:
                own, sampled = sampled[: len(each.rows)], sampled[len(each.rows) :]
                if not each.answer.done():
                    each.answer.set_result(own)

    def _draw(self, rows: list[Row]) -> list[Sampled]:
        if not rows:
            return []
        model = self._model()
        training = model.training
        model.eval()
        try:
            with torch.no_grad():
                drawn = _sample_rows(model, rows)
        finally:
            model.train(training)
        return [
            _sampled(row, tokens, logprobs, self.version) for row, (tokens, logprobs) in zip(rows, drawn, strict=True)
        ]


def _sample_rows(model: Any, rows: list[Row]) -> list[tuple[list[int], list[float]]]:
    """Tokens and logprobs of each row, sampled side by side until every row has ended."""
    device = next(model.parameters()).device
    width = max(len(row.prompt) for row in rows)
    ids = torch.tensor([[0] * (width - len(row.prompt)) + list(row.prompt) for row in rows], device=device)
    mask = torch.tensor([[0] * (width - len(row.prompt)) + [1] * len(row.prompt) for row in rows], device=device)
    temperatures = torch.tensor([[row.temperature] for row in rows], device=device)
    result: list[tuple[list[int], list[float]]] = [([], []) for _ in rows]
    open_rows = {index for index, row in enumerate(rows) if row.room > 0}
    positions, cache = (mask.cumsum(-1) - 1).clamp(min=0), None
    while open_rows:
        output = model(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
        )
        cache = output.past_key_values
        scores = (output.logits[:, -1].float() / temperatures).log_softmax(-1)
        drawn = torch.multinomial(scores.exp(), 1)
        logprobs = scores.gather(-1, drawn)[:, 0].tolist()
        tokens = drawn[:, 0].tolist()
        for index in sorted(open_rows):
            result[index][0].append(tokens[index])
            result[index][1].append(logprobs[index])
            if tokens[index] in rows[index].stops or len(result[index][0]) == rows[index].room:
                open_rows.remove(index)
        ids, positions = drawn, positions[:, -1:] + 1
        mask = torch.cat([mask, torch.ones_like(drawn)], 1)
    return result


def _sampled(row: Row, tokens: list[int], logprobs: list[float], version: int) -> Sampled:
    finish = Finish.STOP if tokens and tokens[-1] in row.stops else row.full
    return Sampled(tuple(tokens), tuple(logprobs), (version,) * len(tokens), finish)
