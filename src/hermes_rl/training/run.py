"""A training run in this process, from start to end: engine, trainer, inference server and metrics.

Always true: inference is up from before the first batch until after the last step; the run folder records how the run
ended, also when it failed.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hermes_rl.api.client.connection import ApiConnection
from hermes_rl.api.client.trainer import TrainerClient
from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.secrets import resolve_key
from hermes_rl.core.shutdown import StopSignal
from hermes_rl.inference.tokens.chat_format import FormatSettings
from hermes_rl.inference.tokens.tokenizer import decode_ids, load_tokenizer
from hermes_rl.sinks.run_sinks import MetricsRun, Sinks, open_sinks
from hermes_rl.sinks.selection import SinkConfig
from hermes_rl.sinks.serialize import public_config
from hermes_rl.training.audit_limit import AuditLimit
from hermes_rl.training.checkpoints import Lineage
from hermes_rl.training.config import TrainerSettings
from hermes_rl.training.engines.protocol import TrainingEngine
from hermes_rl.training.engines.tinker import TinkerEngine
from hermes_rl.training.inference_server.config import ChatFormats, InferenceSettings
from hermes_rl.training.inference_server.server import inference_server
from hermes_rl.training.initial_weights import find_initial_weights, state_at_engine
from hermes_rl.training.request_batching import Window
from hermes_rl.training.run_folder import RunFolder
from hermes_rl.training.step import GRPOStep
from hermes_rl.training.teacher import check_teacher
from hermes_rl.training.trainer import COMPLETE, Trainer, TrainingProgress
from hermes_rl.training.utilization import BusyTimer
from hermes_rl.training.vllm_fleet.fleet import VllmFleet
from hermes_rl.training.weight_sync import EngineWeightSync, VllmWeightSync

# Context length of Qwen3 and similar models, used when the model is not a local folder.
CONTEXT = 32_768
# A completion takes seconds on a small engine, and one call per group costs a fraction of many.
WINDOW = Window(idle=0.05, max_wait=0.5)


@dataclass(frozen=True, slots=True)
class RunCallbacks:
    on_listening: Callable[[str], None]
    """Gets the URL of inference."""
    on_start: Callable[[TrainingProgress], None]
    on_step: Callable[[int, dict[str, float]], None]
    on_complete: Callable[[], None]


async def run_training(
    settings: TrainerSettings, folder: RunFolder, stop: StopSignal, callbacks: RunCallbacks, *, stay: bool = False
) -> dict[str, Any]:
    """Train to the last step or the stop signal, and return a summary. `stay` keeps inference up until the signal."""
    tokenizer = load_tokenizer(settings.tokenizer_name or settings.base_model)
    await check_teacher(settings, tokenizer)
    busy, last = BusyTimer(), 0
    limit = None if settings.max_audit_gap is None else AuditLimit(settings.max_audit_gap, settings.audit_gap_steps)

    def report_step(step: int, metrics: dict[str, float]) -> None:
        nonlocal last
        metrics = metrics | throughput_metrics(metrics, busy) | fleet_metrics()
        if step <= last:
            sinks.rewind_to(step - 1)
        last = step
        sinks.log(metrics, step)
        folder.update_state(step=step, version=trainer.progress.version)
        callbacks.on_step(step, metrics)
        if limit is not None and (reason := limit.reached(step, metrics)):
            folder.update_state(limit=reason)
            stop.request(reason)

    def complete() -> None:
        folder.update_state(state=COMPLETE)
        callbacks.on_complete()

    async with AsyncExitStack() as stack:
        lineage = stack.enter_context(folder.acquire(settings))
        if lineage.last is None:
            # Before anything is started.
            find_initial_weights(settings)
        last = lineage.last.step if lineage.last else 0
        sinks = await stack.enter_async_context(open_run_sinks(settings, folder, last))
        connection = await stack.enter_async_context(
            ApiConnection(settings.rollout_server_url, token=_api_token(settings))
        )
        weight_sync, fleet_metrics = await _open_weight_sync(settings, folder, stack)
        trainer = Trainer(
            settings,
            lineage,
            TrainerClient(connection, folder.name),
            policy_opener(settings, folder, tokenizer, busy),
            GRPOStep(settings),
            weight_sync,
            report_step,
            complete if stay else None,
        )
        if isinstance(weight_sync, EngineWeightSync):
            weight_sync.on_lost = trainer.engine_lost
        callbacks.on_start(trainer.progress)
        server = inference_server(
            weight_sync.policy,
            ChatFormats(tokenizer, FormatSettings(parser=settings.tool_call_parser)),
            _inference_settings(settings),
            host=settings.host,
            port=settings.port,
        )
        url = await stack.enter_async_context(server)
        folder.update_state(inference_url=url)
        callbacks.on_listening(url)
        summary = await train_to_end(trainer, stop, folder, lineage)
        return summary | ({"limit": reached} if (reached := folder.read_state().get("limit")) else {})


def policy_opener(
    settings: TrainerSettings, folder: RunFolder, tokenizer: Any, busy: BusyTimer
) -> Callable[[str | None], Coroutine[Any, Any, TrainingEngine]]:
    """Opens the policy of a checkpoint's state. For None it opens a new one, from `init_from` if that is set."""
    context = context_tokens(settings.base_model)

    def decode(ids: Sequence[int]) -> str:
        return decode_ids(tokenizer, ids)

    async def open_engine(state: str | None) -> TrainingEngine:
        start = find_initial_weights(settings) if state is None else None
        async with state_at_engine(start, settings, busy) as initial:
            engine = await TinkerEngine.open(
                settings, state, busy=busy, decode=decode, context=context, initial=initial
            )
        if start is not None:
            folder.update_state(started_from=start.record())
        return engine

    return open_engine


async def _open_weight_sync(
    settings: TrainerSettings, folder: RunFolder, stack: AsyncExitStack
) -> tuple[EngineWeightSync | VllmWeightSync, Callable[[], dict[str, float]]]:
    """The weight sync, and a function for its metrics per step."""
    if not settings.vllm_servers:
        return EngineWeightSync(settings.engine_patience), dict
    if settings.base_url is None:
        raise ConfigError("vllm_servers needs a self-hosted engine: set --tinker.base_url to its address")
    fleet = await stack.enter_async_context(VllmFleet(settings.vllm_servers, run=folder.name))
    return VllmWeightSync(fleet, folder.path / "sampled", settings.base_url), fleet.metrics


class RunningTrainer(Protocol):
    progress: TrainingProgress

    async def run(self, stop: StopSignal) -> str: ...


async def train_to_end(
    trainer: RunningTrainer, stop: StopSignal, folder: RunFolder, lineage: Lineage
) -> dict[str, Any]:
    """Run a trainer, record in the folder how it ended, and return a summary."""
    try:
        with stop.graceful():
            ended = await trainer.run(stop)
    except BaseException as error:
        stopped = isinstance(error, asyncio.CancelledError)
        folder.update_state(state="stopped" if stopped else "failed", error=str(error) or type(error).__name__)
        raise
    folder.update_state(state=COMPLETE if ended == COMPLETE else "stopped", step=trainer.progress.step)
    last = lineage.last
    return {
        "run": folder.name,
        "ended": ended,
        "step": trainer.progress.step,
        "version": trainer.progress.version,
        "state": last and last.state,
        "sampler": last and last.sampler,
        "folder": str(folder.path),
    }


def open_run_sinks(settings: TrainerSettings, folder: RunFolder, last: int) -> AbstractAsyncContextManager[Sinks]:
    run = MetricsRun(
        group=folder.name,
        folder=folder.path,
        name=settings.wandb_name or folder.name,
        config=public_config(settings),
        resumed_from=last,
    )
    return open_sinks(run, SinkConfig.from_config(settings, "tinker"))


def throughput_metrics(metrics: dict[str, float], busy: BusyTimer) -> dict[str, float]:
    """Tokens per second of a step, and the idle share of trainer and engine."""
    seconds = metrics["time/step"]
    return {
        "tokens/per_second": metrics["tokens/total"] / seconds,
        "time/trainer_idle_share": metrics["time/wait"] / seconds,
        "time/engine_idle_share": max(0.0, 1 - busy.take() / seconds),
    }


def context_tokens(base_model: str) -> int:
    return model_number(base_model, "max_position_embeddings") or CONTEXT


def model_number(base_model: str, field: str) -> int | None:
    """A number from the model's config.json; None if the model is not a local folder."""
    try:
        return int(fast_json.loads((Path(base_model) / "config.json").read_bytes())[field])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _inference_settings(settings: TrainerSettings) -> InferenceSettings:
    token = settings.inference_token
    return InferenceSettings(
        model=settings.base_model,
        context_tokens=context_tokens(settings.base_model),
        vocabulary=model_number(settings.base_model, "vocab_size"),
        token=None if token is None else resolve_key(token, "--tinker.inference_token"),
        window=WINDOW,
    )


def _api_token(settings: TrainerSettings) -> str | None:
    token = settings.rollout_server_token
    return None if token is None else resolve_key(token, "--tinker.rollout_server_token")
