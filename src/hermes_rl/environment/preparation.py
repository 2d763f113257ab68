"""Preparing an environment's machines ahead: the image of each distinct spec fetched, its files and setup baked.

Needs no model. Equal content is prepared once; one spec that fails does not stop the others.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from hermes_rl.environment.base import HermesAgentBaseEnv, seeded
from hermes_rl.environment.outside.program import with_agent
from hermes_rl.errors import ConfigError, HermesRLError
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.rewards.sync_bridge import bridged
from hermes_rl.sandbox.backends import open_backends
from hermes_rl.sandbox.protocol import Backend
from hermes_rl.sandbox.spec import SandboxSpec

AT_ONCE = 4
# An environment must have an endpoint; this one is never asked.
NO_MODEL = APIServerConfig(base_url="http://127.0.0.1:9/v1", model_name="none", health_check=False, max_retries=0)


def without_waiting(endpoints: Sequence[APIServerConfig]) -> list[APIServerConfig]:
    """Nobody waits for a model, as the policy is a script or a record; but a reward may ask one."""
    usable = [one.model_copy(update={"health_check": False}) for one in endpoints if one.base_url]
    try:
        for endpoint in usable:
            endpoint.resolved_key()
    except ConfigError:
        usable = []
    return usable or [NO_MODEL]


@dataclass(slots=True)
class Prepared:
    """How many specs are ready, on how many backends, and those that failed, each with the reason."""

    specs: int = 0
    backends: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)


@asynccontextmanager
async def opened_for_preparation(env: HermesAgentBaseEnv) -> AsyncIterator[Sequence[Backend]]:
    """The environment set up as a run would, with its backends, but with neither a model nor tools."""
    backends = await open_backends(env.config.terminal_backend, env.config.sandbox_settings)
    try:
        async with env.holding():
            with seeded(env.config.seed):
                await bridged(env.setup())
            yield backends
    finally:
        await env.server.close()
        for backend in backends:
            await backend.close()


def specs_to_prepare(env: HermesAgentBaseEnv) -> list[SandboxSpec]:
    """One spec for each distinct content that the environment's items ask for."""
    train_items = env.train_items()
    items = [*(train_items or ()), *env.eval_items()]
    specs = [with_agent(env.sandbox_spec(item), env.config) for item in items]
    if train_items is None and not _depends_on_the_item(env):
        specs.append(with_agent(env.sandbox_spec(None), env.config))
    if not specs:
        raise ConfigError(
            f"{type(env).__name__}.sandbox_spec depends on the item, and there is no item to ask it for: define "
            "train_items() with the items of training, or fill self._eval_items in setup"
        )
    try:
        return list({spec.digest: spec for spec in specs}.values())
    except OSError as error:
        raise ConfigError(f"a file of sandbox_spec cannot be read: {error}") from error


def leaves_training_out(env: HermesAgentBaseEnv) -> bool:
    """Whether the machines of training items cannot be known ahead."""
    return env.train_items() is None and _depends_on_the_item(env)


async def prepare_environment(
    specs: Sequence[SandboxSpec],
    backends: Sequence[Backend],
    say: Callable[[str], object],
    advance: Callable[[], object],
) -> Prepared:
    """Prepare each spec on each backend, a few at a time. `advance` is called as each is done, well or not."""
    prepared = Prepared(len(specs), len(backends))
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(spec: SandboxSpec, backend: Backend) -> None:
        what = _described(spec)
        async with turns:
            try:
                await backend.prepare(spec, lambda line: say(f"{what}: {line}"))
            except HermesRLError as error:
                prepared.failed.append((what, str(error)))
        advance()

    await asyncio.gather(*(one(spec, backend) for spec in specs for backend in backends))
    return prepared


def _described(spec: SandboxSpec) -> str:
    added = [f"{len(spec.files)} files"] * bool(spec.files) + ["a setup"] * bool(spec.setup)
    return (spec.image or "the default image") + (f" with {' and '.join(added)}" if added else "")


def _depends_on_the_item(env: HermesAgentBaseEnv) -> bool:
    return type(env).sandbox_spec is not HermesAgentBaseEnv.sandbox_spec
