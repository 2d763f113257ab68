"""TinkerEngine: one policy in training at a Tinker server.

Always true: no SDK type leaves this package; forward-backward and the optimizer step are submitted together.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tinker
from numpy.typing import NDArray

from hermes_rl.core.secrets import resolve_key
from hermes_rl.training.config import TrainerSettings
from hermes_rl.training.engines.protocol import (
    CROSS_ENTROPY,
    Adam,
    EngineCheckpoint,
    EngineError,
    Example,
    StepResult,
)
from hermes_rl.training.engines.tinker.calls import PROBE_TIMEOUT_S, Calls
from hermes_rl.training.engines.tinker.capabilities import Capabilities, check_capabilities, read_capabilities
from hermes_rl.training.engines.tinker.sampler import TinkerSampler
from hermes_rl.training.utilization import BusyTimer

log = logging.getLogger(__name__)

# A self-hosted server needs no key, but the SDK requires one of this form.
SELF_HOSTED_KEY = "tml-self-hosted"


class StateInfo(NamedTuple):
    base_model: str
    lora_rank: int | None


class TinkerEngine:
    def __init__(
        self,
        settings: TrainerSettings,
        service: tinker.ServiceClient,
        training: tinker.TrainingClient,
        calls: Calls,
        decode: Callable[[Sequence[int]], str],
        context: int,
        losses: frozenset[str] | None = None,
    ) -> None:
        self._settings, self._service, self._training, self._calls = settings, service, training, calls
        self._decode, self._context, self._losses = decode, context, losses

    @classmethod
    async def open(
        cls,
        settings: TrainerSettings,
        state: str | None,
        *,
        busy: BusyTimer,
        decode: Callable[[Sequence[int]], str],
        context: int,
        initial: str | None = None,
    ) -> "TinkerEngine":
        """Open a new policy, or one restored from a checkpoint with its optimizer. Waits for an unreachable server.

        `initial` is the state whose weights a new policy starts from, with a new optimizer.
        """
        calls = Calls(settings.base_url, settings.engine_patience, busy)
        await calls.wait_until_up()
        found = Capabilities()
        if settings.base_url is not None:
            found = await read_capabilities(settings.base_url, settings.base_model)
            check_capabilities(found, settings)
        service = tinker.ServiceClient(base_url=settings.base_url, api_key=_key(settings))

        def make() -> tinker.TrainingClient:
            if state is not None:
                return service.create_training_client_from_state_with_optimizer(state)
            if initial is not None:
                return service.create_training_client_from_state(initial)
            return service.create_lora_training_client(
                base_model=settings.base_model, rank=settings.lora_rank, seed=settings.seed
            )

        # In a thread: the SDK blocks here until the server answers.
        try:
            training = await calls.run("make the policy", asyncio.to_thread(make))
        except EngineError as error:
            refused = initial is not None and isinstance(error.__cause__, tinker.RequestFailedError)
            raise EngineError(str(error), permanent=error.permanent or refused) from error
        return cls(settings, service, training, calls, decode, min(context, found.context or context), found.losses)

    async def step(
        self, examples: Sequence[Example], loss: str, clip: tuple[float, float] | None, adam: Adam
    ) -> StepResult:
        if self._losses is not None and loss not in self._losses:
            known = ", ".join(sorted(self._losses))
            raise EngineError(f"{self._calls.server} has no loss {loss}; it has {known}", permanent=True)
        config = None if clip is None else {"clip_low_threshold": clip[0], "clip_high_threshold": clip[1]}
        forward_backward = self._training.forward_backward(to_datums(examples, loss), loss, config)  # type: ignore[arg-type]
        optim_step = self._training.optim_step(
            tinker.AdamParams(
                learning_rate=adam.learning_rate,
                beta1=adam.beta1,
                beta2=adam.beta2,
                eps=adam.eps,
                weight_decay=adam.weight_decay,
                grad_clip_norm=adam.grad_clip_norm,
            )
        )
        output = await self._calls.run("compute gradients", forward_backward.result_async())
        stepped = await self._calls.run("take the optimizer step", optim_step.result_async())
        return StepResult(_logprobs(output), {**_padding(_numbers(output.metrics)), **_numbers(stepped.metrics)})

    async def logprobs(self, examples: Sequence[Example]) -> Sequence[NDArray[np.float32]]:
        forward = self._training.forward(to_datums(examples), "importance_sampling")
        return _logprobs(await self._calls.run("compute logprobs", forward.result_async()))

    async def save(self, name: str, *, sampler: str | None = None) -> EngineCheckpoint:
        state = self._training.save_state(name)
        if sampler is None:
            sampler = await self.save_sampler(name)
        saved = await self._calls.run("save a checkpoint", state.result_async())
        return EngineCheckpoint(saved.path, sampler)

    async def save_sampler(self, name: str) -> str:
        saving = self._training.save_weights_for_sampler(name)
        saved = await self._calls.run("save sampler weights", saving.result_async())
        return str(saved.path)

    async def sampler(self, path: str | None) -> TinkerSampler:
        def make() -> tinker.SamplingClient:
            if path is None:
                return self._service.create_sampling_client(base_model=self._settings.base_model)
            return self._service.create_sampling_client(model_path=path)

        client = await self._calls.run("make a sampler", asyncio.to_thread(make))
        return TinkerSampler(client, self._calls, self._decode, self._context)

    async def delete(self, saved: EngineCheckpoint) -> None:
        for path in (saved.state, saved.sampler):
            await _delete(self._settings, self._calls, path)

    async def close(self) -> None:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                await self._service.close("success")
        except Exception as error:  # noqa: BLE001 (closing is best effort)
            log.info("could not close the engine session: %s", error)


async def find_state(settings: TrainerSettings, path: str, busy: BusyTimer) -> StateInfo | None:
    """Look up a training state; None if the server does not have it. Waits for an unreachable server."""
    calls = Calls(settings.base_url, settings.engine_patience, busy)
    await calls.wait_until_up()
    rest = tinker.RestClient(base_url=settings.base_url, api_key=_key(settings))

    async def find() -> StateInfo | None:
        try:
            info = await rest.get_weights_info_by_tinker_path(path)
        except tinker.NotFoundError:
            return None
        return StateInfo(info.base_model, info.lora_rank)

    return await calls.run(f"find {path}", find())


async def delete_state(settings: TrainerSettings, path: str, busy: BusyTimer) -> None:
    """A state that no longer exists is ignored."""
    await _delete(settings, Calls(settings.base_url, settings.engine_patience, busy), path)


async def _delete(settings: TrainerSettings, calls: Calls, path: str) -> None:
    # RestClients of one address share their connections.
    rest = tinker.RestClient(base_url=settings.base_url, api_key=_key(settings))
    try:
        await calls.run("delete a checkpoint", rest.delete_checkpoint_from_tinker_path_async(path))
    except EngineError as error:
        log.info("%s", error)


def _key(settings: TrainerSettings) -> str | None:
    if settings.api_key is not None:
        return resolve_key(settings.api_key, "--tinker.api_key")
    return SELF_HOSTED_KEY if settings.self_hosted else None


def to_datums(examples: Sequence[Example], loss: str = "importance_sampling") -> list[tinker.types.Datum]:
    return [
        tinker.types.Datum(
            model_input=tinker.ModelInput.from_ints(example.tokens.tolist()),
            loss_fn_inputs={name: tinker.TensorData.from_numpy(column) for name, column in _inputs(example, loss)},
        )
        for example in examples
    ]


def _inputs(example: Example, loss: str) -> Iterator[tuple[str, NDArray[Any]]]:
    yield "target_tokens", example.targets
    if loss == CROSS_ENTROPY:
        yield "weights", example.advantages
    else:
        yield "logprobs", example.logprobs
        yield "advantages", example.advantages


def _logprobs(output: tinker.ForwardBackwardOutput) -> list[NDArray[np.float32]]:
    return [np.asarray(item["logprobs"].to_numpy(), np.float32) for item in output.loss_fn_outputs]


def _numbers(metrics: Mapping[str, Any] | None) -> dict[str, float]:
    return {name: float(value) for name, value in (metrics or {}).items()}


def _padding(metrics: dict[str, float]) -> dict[str, float]:
    """The ratio of padded to real tokens instead of both counts, where the engine reports them."""
    real, padded = metrics.pop("tokens:sum", 0), metrics.pop("padded_tokens:sum", 0)
    return metrics | {"padding": padded / real} if real else metrics
