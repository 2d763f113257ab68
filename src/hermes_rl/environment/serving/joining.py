"""How an environment presents itself to the API, and where it keeps what the API does not have yet."""

import asyncio
from pathlib import Path

from pydantic import ValidationError

from hermes_rl.api.client.atropos_dialect import AtroposLimits
from hermes_rl.api.client.connection import ApiUnavailableError, Connection
from hermes_rl.api.client.destination import Destination, Standing, find_destination
from hermes_rl.api.wire import EnvironmentRegistration
from hermes_rl.environment.contract import Environment
from hermes_rl.environment.groups import provenance
from hermes_rl.environment.items import content_id
from hermes_rl.environment.serve_display import Board
from hermes_rl.errors import ConfigError
from hermes_rl.home import rl_home

ASK_EVERY = 1.0


def registration_of(env: Environment) -> EnvironmentRegistration:
    config, source = env.config, provenance(env)
    try:
        return EnvironmentRegistration(
            name=env.display_name(),
            instance=instance_of(env),
            group_size=config.group_size,
            weight=config.inference_weight,
            minimum=config.min_batch_allocation or 0.0,
            settings={
                "model": source.model,
                "config_hash": source.config_hash,
                "environment_hash": source.environment_hash,
                "dataset_hash": source.dataset_hash,
            },
        )
    except ValidationError as error:
        [first, *_] = error.errors()
        flags = {"weight": "inference_weight", "minimum": "min_batch_allocation"}
        field = str(first["loc"][0])
        raise ConfigError(f"--env.{flags.get(field, field)}: {first['msg']}, got {first['input']!r}") from None


def instance_of(env: Environment) -> str:
    """Which of several processes that share a stream of draws this one is."""
    config = env.config
    return f"{config.shard}/{config.shards}" if config.shards > 1 else ""


def own_name(env: Environment) -> str:
    """The name of this environment's files: one for each API it is served to, and for each shard."""
    name = env.display_name()
    return f"{name}-{content_id([env.config.rollout_server_url.rstrip('/'), name, instance_of(env)])}"


def spool_folder(env: Environment) -> Path:
    return rl_home() / "spool" / own_name(env)


async def join(connection: Connection, env: Environment, board: Board) -> tuple[Destination, Standing]:
    """Find out what answers there and register, however long it takes until something does."""
    config = env.config
    limits = AtroposLimits(config.max_token_length, config.max_batches_offpolicy)
    registration = registration_of(env)
    while True:
        try:
            destination = await find_destination(connection, registration, limits=limits, patience=0.0)
            board.api = f"{connection.url} ({destination.kind})"
            standing = await destination.register()
        except ApiUnavailableError as error:
            board.waiting = error.message
            await asyncio.sleep(ASK_EVERY)
        else:
            board.waiting = None
            return destination, standing
