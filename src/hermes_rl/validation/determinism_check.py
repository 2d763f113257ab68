"""A second instance of an environment in a subprocess with another hash seed, so that sets have another order.

The subprocess gets FILE:CLASS as its argument and the configuration on stdin; the last line it prints is the outline
of the items.
"""

import asyncio
import contextlib
import inspect
import os
import sys
from dataclasses import asdict

from hermes_rl.core import fast_json
from hermes_rl.core.child_python import python_command
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.loading.loader import load_environment
from hermes_rl.environment.prebuild import without_health_checks
from hermes_rl.environment.resolve_config import config_defaults
from hermes_rl.rollout.config import HermesAgentEnvConfig
from hermes_rl.validation.item_checks import Outline, take_inventory

# A setup that takes longer runs again in this process, without a time limit.
MAX_SECONDS = 120.0
PROGRAM = f"import {__name__} as check; check.print_outline()"


async def outline_in_subprocess(environment: type[HermesAgentBaseEnv], config: HermesAgentEnvConfig) -> Outline | None:
    """The outline from a subprocess; None when the class cannot be imported there, such as one inside a function."""
    file = inspect.getsourcefile(environment)
    if file is None or "." in environment.__qualname__:
        return None
    hash_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    process = await asyncio.create_subprocess_exec(
        *python_command("-c", PROGRAM, f"{file}:{environment.__qualname__}"),
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(MAX_SECONDS):
            output, _ = await process.communicate(fast_json.dumps(config.model_dump(mode="json")))
        lines = output.splitlines()
        return Outline(**fast_json.loads(lines[-1])) if process.returncode == 0 and lines else None
    except (TimeoutError, ValueError, TypeError):
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _outline(reference: str, config: object) -> Outline:
    environment = load_environment(reference)
    default, endpoints = config_defaults(environment)
    env = environment(type(default).model_validate(config), without_health_checks(endpoints))
    async with env.opened():
        return (await take_inventory(env)).outline()


def print_outline() -> None:
    outline = asyncio.run(_outline(sys.argv[1], fast_json.loads(sys.stdin.buffer.read())))
    sys.stdout.buffer.write(b"\n" + fast_json.dumps(asdict(outline)) + b"\n")
