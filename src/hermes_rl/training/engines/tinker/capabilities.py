"""What a server of the Tinker API says of itself, and whether a run can use it.

Always true: a server is refused only for what it says; servers say much less than they could.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import aiohttp

from hermes_rl.core import fast_json
from hermes_rl.training.config import TrainerSettings
from hermes_rl.training.engines.protocol import EngineError

TIMEOUT_S = 30.0


class Capabilities(NamedTuple):
    """None where the server does not say. `losses` is an addition of our own engine."""

    models: frozenset[str] | None = None
    trainable: bool | None = None
    context: int | None = None
    losses: frozenset[str] | None = None


async def read_capabilities(base_url: str, model: str) -> Capabilities:
    """Those for `model`. A server that does not answer says nothing."""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as session,
            session.get(f"{base_url.rstrip('/')}/api/v1/get_server_capabilities") as response,
        ):
            return capabilities(fast_json.loads(await response.read()), model) if response.ok else Capabilities()
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
        return Capabilities()


def capabilities(answer: Any, model: str) -> Capabilities:
    supported = answer.get("supported_models") if isinstance(answer, Mapping) else None
    if not isinstance(supported, list) or not all(isinstance(each, Mapping) for each in supported):
        return Capabilities()
    named = {each["model_name"]: each for each in supported if isinstance(each.get("model_name"), str)}
    own, context, losses = named.get(model, {}), None, answer.get("losses")
    if isinstance(length := own.get("max_context_length"), int):
        context = length
    return Capabilities(
        frozenset(named) or None, own.get("trainable"), context, frozenset(losses) if isinstance(losses, list) else None
    )


def check_capabilities(found: Capabilities, settings: TrainerSettings) -> None:
    """Raise an EngineError that names what the server lacks."""
    server, model = settings.base_url, settings.base_model
    problem = None
    if found.models is not None and model not in found.models:
        problem = f"it has {', '.join(sorted(found.models))}, not {model}; set --tinker.base_model"
    elif found.trainable is False:
        problem = f"{model} cannot be trained there; choose another --tinker.base_model"
    elif found.context is not None and settings.max_token_trainer_length > found.context:
        problem = (
            f"it takes sequences of up to {found.context:,} tokens, and max_token_trainer_length is "
            f"{settings.max_token_trainer_length:,}; set --tinker.max_token_trainer_length {found.context}"
        )
    if problem is not None:
        raise EngineError(f"{server} cannot train this run: {problem}", permanent=True)
