"""A training run in this process: the engine, the batches, the inference server, the metrics, from begin to end.

Always true: inference answers from before the first batch to after the last step; what the run came to stands in its
folder, also when it failed.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes_rl import jsontext
from hermes_rl.api.client.connection import Connection
from hermes_rl.api.client.trainer import TrainerClient
from hermes_rl.errors import ConfigError
from hermes_rl.secrets import resolved_key
from hermes_rl.sinks.choice import Asked
from hermes_rl.sinks.opening import MetricsRun, Sinks, open_sinks
from hermes_rl.sinks.values import saved_config
from hermes_rl.stopping import Stop
from hermes_rl.tokens.chat_format import FormatSettings
from hermes_rl.tokens.tokenizer import decoded, load_tokenizer
from hermes_rl.training.busy import Busy
from hermes_rl.training.coalescing import Window
from hermes_rl.training.engine import TrainingEngine
from hermes_rl.training.inference_server.server import inference_server
from hermes_rl.training.inference_server.settings import ChatFormats, InferenceSettings
from hermes_rl.training.learning import GroupLearning
from hermes_rl.training.lineage import Lineage
from hermes_rl.training.publishing import EnginePublishing, VllmPublishing
from hermes_rl.training.run_folder import RunFolder
from hermes_rl.training.settings import TrainerSettings
from hermes_rl.training.tinker_api import TinkerEngine
from hermes_rl.training.trainer import COMPLETE, Progress, Trainer
from hermes_rl.training.vllm_fleet.fleet import VllmFleet

# What Qwen3 and its like hold, where nobody says.
CONTEXT = 32_768
# A completion takes seconds on a small engine, and one call for a group costs it a fraction of many.
WINDOW = Window(quiet=0.05, longest=0.5)


@dataclass(frozen=True, slots=True)
class Watcher:
    """Who is told how a run goes: where inference listens, how far it is, the metrics of each step, and the end."""

    listening: Callable[[str], None]
    begun: Callable[[Progress], None]
    stepped: Callable[[int, dict[str, float]], None]
    complete: Callable[[], None]


async def run_training(
    settings: TrainerSettings, folder: RunFolder, stop: Stop, watcher: Watcher, *, stay: bool = False
) -> dict[str, Any]:
    """Train until the last step or until it is told to stop; what the run came to. `stay`: then answer until told."""
    tokenizer = load_tokenizer(settings.tokenizer_name or settings.base_model)
    context = model_number(settings.base_model, "max_position_embeddings") or CONTEXT
    busy, last = Busy(), 0

    async def open_engine(state: str | None) -> TrainingEngine:
        return await TinkerEngine.open(
            settings, state, busy=busy, decode=lambda ids: decoded(tokenizer, ids), context=context
        )

    def told(step: int, metrics: dict[str, float]) -> None:
        nonlocal last
        metrics = metrics | speeds(metrics, busy) | figures()
        if step <= last:
            sinks.back_to(step - 1)
        last = step
        sinks.log(metrics, step)
        folder.tell(step=step, version=trainer.progress.version)
        watcher.stepped(step, metrics)

    def complete() -> None:
        folder.tell(state=COMPLETE)
        watcher.complete()

    async with AsyncExitStack() as open_:
        lineage = open_.enter_context(folder.taken(settings))
        last = lineage.last.step if lineage.last else 0
        sinks = await open_.enter_async_context(_sinks(settings, folder, last))
        connection = await open_.enter_async_context(Connection(settings.rollout_server_url, token=_token(settings)))
        publishing, figures = await _publishing(settings, folder, open_)
        trainer = Trainer(
            settings,
            lineage,
            TrainerClient(connection, folder.name),
            open_engine,
            GroupLearning(settings),
            publishing,
            told,
            complete if stay else None,
        )
        if isinstance(publishing, EnginePublishing):
            publishing.lost = trainer.engine_lost
        watcher.begun(trainer.progress)
        server = inference_server(
            publishing.policy,
            ChatFormats(tokenizer, FormatSettings(parser=settings.tool_call_parser)),
            _inference(settings, context),
            host=settings.host,
            port=settings.port,
        )
        url = await open_.enter_async_context(server)
        folder.tell(inference_url=url)
        watcher.listening(url)
        return await _ended(trainer, stop, folder, lineage)


async def _publishing(
    settings: TrainerSettings, folder: RunFolder, open_: AsyncExitStack
) -> tuple[EnginePublishing | VllmPublishing, Callable[[], dict[str, float]]]:
    """Who samples, and their figures for the metrics of a step."""
    if not settings.vllm_servers:
        return EnginePublishing(settings.engine_patience), dict
    if settings.base_url is None:
        raise ConfigError("vLLM servers sample what an engine of your own trains: set --tinker.base_url to its address")
    fleet = await open_.enter_async_context(VllmFleet(settings.vllm_servers, run=folder.name))
    return VllmPublishing(fleet, folder.path / "sampled", settings.base_url), fleet.figures


async def _ended(trainer: Trainer, stop: Stop, folder: RunFolder, lineage: Lineage) -> dict[str, Any]:
    try:
        with stop.heeded():
            ended = await trainer.run(stop)
    except BaseException as error:
        stopped = isinstance(error, asyncio.CancelledError)
        folder.tell(state="stopped" if stopped else "failed", error=str(error) or type(error).__name__)
        raise
    folder.tell(state=COMPLETE if ended == COMPLETE else "stopped", step=trainer.progress.step)
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


@asynccontextmanager
async def _sinks(settings: TrainerSettings, folder: RunFolder, last: int) -> AsyncIterator[Sinks]:
    run = MetricsRun(
        group=folder.name,
        folder=folder.path,
        name=settings.wandb_name or folder.name,
        config=saved_config(settings),
        resumed_from=last,
    )
    async with open_sinks(run, Asked.by(settings, "tinker")) as sinks:
        yield sinks


def speeds(metrics: dict[str, float], busy: Busy) -> dict[str, float]:
    """How fast a step was, and what part of it each side had nothing to do."""
    seconds = metrics["time/step"]
    return {
        "tokens/per_second": metrics["tokens/total"] / seconds,
        "time/trainer_idle_share": metrics["time/wait"] / seconds,
        "time/engine_idle_share": max(0.0, 1 - busy.take() / seconds),
    }


def model_number(base_model: str, field: str) -> int | None:
    """A number that the model's own files say; None for a model that is no folder."""
    try:
        return int(jsontext.loads((Path(base_model) / "config.json").read_bytes())[field])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _inference(settings: TrainerSettings, context: int) -> InferenceSettings:
    token = settings.inference_token
    return InferenceSettings(
        model=settings.base_model,
        context_tokens=context,
        vocabulary=model_number(settings.base_model, "vocab_size"),
        token=None if token is None else resolved_key(token, "--tinker.inference_token"),
        window=WINDOW,
    )


def _token(settings: TrainerSettings) -> str | None:
    token = settings.rollout_server_token
    return None if token is None else resolved_key(token, "--tinker.rollout_server_token")
