"""Prebuilds an environment's sandboxes: fetch the image of each distinct spec and bake its files and setup.

Needs no model. Equal specs are built once; a spec that fails does not stop the others.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from hermes_rl.core.errors import ConfigError, HermesRLError
from hermes_rl.environment.base import HermesAgentBaseEnv, seeded
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.rewards.sync_bridge import bridged
from hermes_rl.rollout.external.program import install_packages, with_agent
from hermes_rl.sandbox.backends.registry import open_backends
from hermes_rl.sandbox.protocol import Backend
from hermes_rl.sandbox.spec import SandboxSpec

MAX_CONCURRENT = 4
# Constructing an environment needs an endpoint; this one is never contacted.
NO_MODEL = APIServerConfig(base_url="http://127.0.0.1:9/v1", model_name="none", health_check=False, max_retries=0)


def without_health_checks(endpoints: Sequence[APIServerConfig]) -> list[APIServerConfig]:
    """The endpoints without health checks: the policy is scripted or recorded, but a reward may use a model."""
    usable = [endpoint.model_copy(update={"health_check": False}) for endpoint in endpoints if endpoint.base_url]
    try:
        for endpoint in usable:
            endpoint.resolved_key()
    except ConfigError:
        usable = []
    return usable or [NO_MODEL]


@dataclass(slots=True)
class PrebuildResult:
    """Number of specs and backends, and the failed specs with the reason."""

    specs: int = 0
    backends: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)


@asynccontextmanager
async def open_for_prebuild(env: HermesAgentBaseEnv) -> AsyncIterator[Sequence[Backend]]:
    """Open the backends and run the environment's setup, without a model or tools."""
    backends = await open_backends(env.config.terminal_backend, env.config.sandbox_settings)
    try:
        await install_packages(env.config)
        async with env.owning_resources():
            with seeded(env.config.seed):
                await bridged(env.setup())
            yield backends
    finally:
        await env.server.close()
        for backend in backends:
            await backend.close()


def distinct_specs(env: HermesAgentBaseEnv) -> list[SandboxSpec]:
    """The distinct sandbox specs of the environment's items."""
    train_items = env.train_items()
    items = [*(train_items or ()), *env.eval_items()]
    specs = [with_agent(env.sandbox_spec(item), env.config) for item in items]
    if train_items is None and not _spec_depends_on_item(env):
        specs.append(with_agent(env.sandbox_spec(None), env.config))
    if not specs:
        raise ConfigError(
            f"{type(env).__name__}.sandbox_spec depends on the item, and there are no items: define train_items() "
            "or fill self._eval_items in setup"
        )
    try:
        return list({spec.digest: spec for spec in specs}.values())
    except OSError as error:
        raise ConfigError(f"cannot read a file of sandbox_spec: {error}") from error


def training_specs_unknown(env: HermesAgentBaseEnv) -> bool:
    """Whether the specs of training items are unknown before the run."""
    return env.train_items() is None and _spec_depends_on_item(env)


async def prebuild_specs(
    specs: Sequence[SandboxSpec],
    backends: Sequence[Backend],
    report: Callable[[str], object],
    advance: Callable[[], object],
) -> PrebuildResult:
    """Prebuild each spec on each backend, a few at a time. `advance` is called after each, failed or not."""
    result = PrebuildResult(len(specs), len(backends))
    semaphore = asyncio.Semaphore(MAX_CONCURRENT)

    async def prebuild(spec: SandboxSpec, backend: Backend) -> None:
        label = _describe(spec)
        async with semaphore:
            try:
                await backend.prepare(spec, lambda line: report(f"{label}: {line}"))
            except HermesRLError as error:
                result.failed.append((label, str(error)))
        advance()

    await asyncio.gather(*(prebuild(spec, backend) for spec in specs for backend in backends))
    return result


def _describe(spec: SandboxSpec) -> str:
    added = [f"{len(spec.files)} files"] * bool(spec.files) + ["a setup"] * bool(spec.setup)
    return (spec.image or "the default image") + (f" with {' and '.join(added)}" if added else "")


def _spec_depends_on_item(env: HermesAgentBaseEnv) -> bool:
    return type(env).sandbox_spec is not HermesAgentBaseEnv.sandbox_spec
