"""`serve`: make groups as the API grants them, and deliver them to it.

However a run ended, the next one resumes it: no finished group is lost and no draw is delivered twice. One process
serves an environment, or one shard of it, to one API.
"""

import asyncio
from contextlib import nullcontext

from pydantic import ValidationError

from hermes_rl.api.client.atropos_destination import AtroposLimits
from hermes_rl.api.client.connection import ApiConnection, ApiUnavailableError
from hermes_rl.api.client.delivery import Delivery
from hermes_rl.api.client.destination import Destination, ResumeState, find_destination
from hermes_rl.api.client.spool import Spool
from hermes_rl.api.schemas import EnvironmentRegistration
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.secrets import resolve_key
from hermes_rl.core.shutdown import Stopped, StopSignal
from hermes_rl.core.validation import problem_text
from hermes_rl.rollout.budget import Budget
from hermes_rl.rollout.concurrency import training_concurrency
from hermes_rl.rollout.environment_protocol import Environment
from hermes_rl.rollout.group import provenance
from hermes_rl.rollout.metrics import RolloutCounts
from hermes_rl.serving.cursor import DrawCursor
from hermes_rl.serving.display import ServeStats, show_stats
from hermes_rl.serving.paths import instance_name, serve_paths
from hermes_rl.serving.reward_history import reward_history
from hermes_rl.serving.serve_loop import ServeLoop, ServeResult

POLL_SECONDS = 1.0
# For an environment that never sends a group; run-api fails at 0.
MIN_WEIGHT = 1e-6


def build_registration(env: Environment) -> EnvironmentRegistration:
    """The registration. An evaluation-only environment gets no minimum and almost no weight: no batch waits for it."""
    config, source = env.config, provenance(env)
    try:
        return EnvironmentRegistration(
            name=env.display_name(),
            instance=instance_name(env),
            group_size=config.group_size,
            weight=MIN_WEIGHT if config.evaluation_only else config.inference_weight,
            minimum=0.0 if config.evaluation_only else config.min_batch_allocation or 0.0,
            settings={
                "model": source.model,
                "config_hash": source.config_hash,
                "environment_hash": source.environment_hash,
                "dataset_hash": source.dataset_hash,
                "evaluation_only": config.evaluation_only,
            },
        )
    except ValidationError as error:
        [first, *_] = error.errors()
        flags = {"weight": "inference_weight", "minimum": "min_batch_allocation"}
        field = str(first["loc"][0])
        raise ConfigError(f"--env.{flags.get(field, field)}: {problem_text(first)}, got {first['input']!r}") from None


async def join(connection: ApiConnection, env: Environment, stats: ServeStats) -> tuple[Destination, ResumeState]:
    """Detect the kind of API and register with it, waiting as long as nothing answers."""
    config = env.config
    limits = AtroposLimits(config.max_token_length, config.max_batches_offpolicy, config.include_messages)
    registration = build_registration(env)
    while True:
        try:
            destination = await find_destination(connection, registration, limits=limits, patience=0.0)
            stats.api = f"{connection.url} ({destination.kind})"
            resume_state = await destination.register()
        except ApiUnavailableError as error:
            stats.waiting = error.message
            await asyncio.sleep(POLL_SECONDS)
        else:
            stats.waiting = None
            return destination, resume_state


def initial_stats(env: Environment) -> ServeStats:
    config = env.config
    return ServeStats(
        environment=env.display_name(),
        api=config.rollout_server_url,
        model=", ".join(sorted({f"{one.model_name} at {one.shown_url}" for one in env.server.configs})),
        total_steps=config.total_steps,
        tally=RolloutCounts(budget=Budget.from_config(config, env.server.configs), pass_score=config.pass_score),
        max_groups=training_concurrency(env.config, len(env.server.configs)).fixed,
        group_size=config.group_size,
        outage=lambda: env.server.outage.text,
        in_flight=env.in_flight,
    )


async def serve(env: Environment, stop: StopSignal, stats: ServeStats) -> ServeResult:
    """Serve an open environment.

    An error outside a rollout ends the run; the groups in flight are finished and delivered before it is raised.
    """
    token = env.config.rollout_server_token
    key = resolve_key(token, "--env.rollout_server_token") if token else None
    paths = serve_paths(env)
    async with (
        Spool(paths.spool) as spool,
        ApiConnection(env.config.rollout_server_url, token=key) as connection,
        show_stats(stats),
    ):
        with stop.graceful():
            try:
                destination, resume_state = await stop.run_until_stopped(join(connection, env, stats))
            except Stopped:
                return ServeResult(str(stop.reason), stats.tally, spool.directory, len(spool))
            cursor = DrawCursor(resume_state, spool.draws)
            by_rewards = env.uses_item_rewards
            history = reward_history(env.item_rewards, destination, paths.scores) if by_rewards else nullcontext()
            async with history as rewards, Delivery(destination, spool) as delivery:
                return await ServeLoop(env, destination, delivery, spool, cursor, stats, stop, rewards).run()
