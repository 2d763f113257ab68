"""How an environment presents itself to the API."""

import asyncio

from pydantic import ValidationError

from hermes_rl.api.client.atropos_dialect import AtroposLimits
from hermes_rl.api.client.connection import ApiUnavailableError, Connection
from hermes_rl.api.client.destination import Destination, Standing, find_destination
from hermes_rl.api.wire import EnvironmentRegistration
from hermes_rl.environment.contract import Environment
from hermes_rl.environment.groups import provenance
from hermes_rl.environment.serve_display import Board
from hermes_rl.environment.serving.kept_files import instance_of
from hermes_rl.errors import ConfigError

ASK_EVERY = 1.0
# Of one that never sends a group; run-api fails at 0.
NO_WEIGHT = 1e-6


def registration_of(env: Environment) -> EnvironmentRegistration:
    """One that only evaluates has no minimum and next to no weight, so no batch waits for it or is shared with it."""
    config, source = env.config, provenance(env)
    try:
        return EnvironmentRegistration(
            name=env.display_name(),
            instance=instance_of(env),
            group_size=config.group_size,
            weight=NO_WEIGHT if config.evaluation_only else config.inference_weight,
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
        raise ConfigError(f"--env.{flags.get(field, field)}: {first['msg']}, got {first['input']!r}") from None


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
