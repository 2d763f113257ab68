"""TinkerEngine: one policy in training at a Tinker server.

Always true: nothing of the SDK's is seen outside; gradients and the optimizer's step are submitted together.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tinker
from numpy.typing import NDArray

from hermes_rl.secrets import resolved_key
from hermes_rl.training.busy import Busy
from hermes_rl.training.engine import Adam, EngineError, Example, Saved, Stepped
from hermes_rl.training.settings import TrainerSettings
from hermes_rl.training.tinker_api.calls import PROBE_TIME, Calls
from hermes_rl.training.tinker_api.sampler import TinkerSampler

log = logging.getLogger(__name__)

# A server of one's own asks for no key, but the SDK wants one of this form.
OWN_KEY = "tml-self-hosted"


class TinkerEngine:
    def __init__(
        self,
        settings: TrainerSettings,
        service: tinker.ServiceClient,
        training: tinker.TrainingClient,
        calls: Calls,
        decode: Callable[[Sequence[int]], str],
        context: int,
    ) -> None:
        self._settings, self._service, self._training, self._calls = settings, service, training, calls
        self._decode, self._context = decode, context

    @classmethod
    async def open(
        cls,
        settings: TrainerSettings,
        state: str | None,
        *,
        busy: Busy,
        decode: Callable[[Sequence[int]], str],
        context: int,
    ) -> "TinkerEngine":
        """A policy with new weights, or with those of a checkpoint, optimizer too. Waits for a server that is away."""
        calls = Calls(settings.base_url, settings.engine_patience, busy)
        await calls.wait_until_up()
        service = tinker.ServiceClient(base_url=settings.base_url, api_key=_key(settings))

        def make() -> tinker.TrainingClient:
            if state is not None:
                return service.create_training_client_from_state_with_optimizer(state)
            return service.create_lora_training_client(
                base_model=settings.base_model, rank=settings.lora_rank, seed=settings.seed
            )

        # The SDK waits for the server here, hence on a thread.
        training = await calls.made("make the policy", asyncio.to_thread(make))
        return cls(settings, service, training, calls, decode, context)

    async def step(
        self, examples: Sequence[Example], loss: str, clip: tuple[float, float] | None, adam: Adam
    ) -> Stepped:
        config = None if clip is None else {"clip_low_threshold": clip[0], "clip_high_threshold": clip[1]}
        passed = self._training.forward_backward(data_of(examples), loss, config)  # type: ignore[arg-type]
        moved = self._training.optim_step(
            tinker.AdamParams(
                learning_rate=adam.learning_rate,
                beta1=adam.beta1,
                beta2=adam.beta2,
                eps=adam.eps,
                weight_decay=adam.weight_decay,
                grad_clip_norm=adam.grad_clip_norm,
            )
        )
        output = await self._calls.made("compute gradients", passed.result_async())
        done = await self._calls.made("take the optimizer's step", moved.result_async())
        return Stepped(_logprobs(output), {**_numbers(output.metrics), **_numbers(done.metrics)})

    async def logprobs(self, examples: Sequence[Example]) -> Sequence[NDArray[np.float32]]:
        passed = self._training.forward(data_of(examples), "importance_sampling")
        return _logprobs(await self._calls.made("compute logprobs", passed.result_async()))

    async def save(self, name: str) -> Saved:
        state = self._training.save_state(name)
        sampler = await self.save_sampler(name)
        saved = await self._calls.made("save a checkpoint", state.result_async())
        return Saved(saved.path, sampler)

    async def save_sampler(self, name: str) -> str:
        saving = self._training.save_weights_for_sampler(name)
        saved = await self._calls.made("save weights to sample from", saving.result_async())
        return str(saved.path)

    async def sampler(self, path: str | None) -> TinkerSampler:
        def make() -> tinker.SamplingClient:
            if path is None:
                return self._service.create_sampling_client(base_model=self._settings.base_model)
            return self._service.create_sampling_client(model_path=path)

        client = await self._calls.made("make a sampler", asyncio.to_thread(make))
        return TinkerSampler(client, self._calls, self._decode, self._context)

    async def delete(self, saved: Saved) -> None:
        settings = self._settings
        # Its connections are shared by all of the same address.
        rest = tinker.RestClient(base_url=settings.base_url, api_key=_key(settings))
        for path in (saved.state, saved.sampler):
            try:
                await self._calls.made("delete a checkpoint", rest.delete_checkpoint_from_tinker_path_async(path))
            except EngineError as error:
                log.info("%s", error)

    async def close(self) -> None:
        try:
            async with asyncio.timeout(PROBE_TIME):
                await self._service.close("success")
        except Exception as error:  # noqa: BLE001 (whatever it is, nothing depends on a farewell)
            log.info("the engine was not told goodbye: %s", error)


def _key(settings: TrainerSettings) -> str | None:
    if settings.api_key is not None:
        return resolved_key(settings.api_key, "--tinker.api_key")
    return OWN_KEY if settings.self_hosted else None


def data_of(examples: Sequence[Example]) -> list[tinker.types.Datum]:
    tensor = tinker.TensorData.from_numpy
    return [
        tinker.types.Datum(
            model_input=tinker.ModelInput.from_ints(example.tokens.tolist()),
            loss_fn_inputs={
                "target_tokens": tensor(example.targets),
                "logprobs": tensor(example.logprobs),
                "advantages": tensor(example.advantages),
            },
        )
        for example in examples
    ]


def _logprobs(output: tinker.ForwardBackwardOutput) -> list[NDArray[np.float32]]:
    return [np.asarray(one["logprobs"].to_numpy(), np.float32) for one in output.loss_fn_outputs]


def _numbers(metrics: Mapping[str, Any] | None) -> dict[str, float]:
    return {name: float(value) for name, value in (metrics or {}).items()}
