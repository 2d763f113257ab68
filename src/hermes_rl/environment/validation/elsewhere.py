"""A second instance of an environment in a process of its own: with another hash seed, sets have another order there.

The process takes FILE:CLASS as its argument and the configuration by standard input; the last line it prints is the
outline of the items.
"""

import asyncio
import contextlib
import inspect
import os
import sys
from dataclasses import asdict

from hermes_rl import jsontext
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.config import HermesAgentEnvConfig
from hermes_rl.environment.loader import load_environment
from hermes_rl.environment.preparation import without_waiting
from hermes_rl.environment.settings import defaults
from hermes_rl.environment.validation.inventory import Outline, take_inventory

# A setup that takes longer is run again in this process, where nobody hurries it.
LONGEST = 120.0
PROGRAM = f"import {__name__} as elsewhere; elsewhere.print_outline()"


async def outline_elsewhere(environment: type[HermesAgentBaseEnv], config: HermesAgentEnvConfig) -> Outline | None:
    """The outline that another process sees; None when the class cannot be had there, as one inside a function."""
    file = inspect.getsourcefile(environment)
    if file is None or "." in environment.__qualname__:
        return None
    hash_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, f"{file}:{environment.__qualname__}"),
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(LONGEST):
            said, _ = await process.communicate(jsontext.dumps(config.model_dump(mode="json")))
        lines = said.splitlines()
        return Outline(**jsontext.loads(lines[-1])) if process.returncode == 0 and lines else None
    except (TimeoutError, ValueError, TypeError):
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _outline(reference: str, config: object) -> Outline:
    environment = load_environment(reference)
    default, endpoints = defaults(environment)
    env = environment(type(default).model_validate(config), without_waiting(endpoints))
    async with env.opened():
        return (await take_inventory(env)).outline()


def print_outline() -> None:
    outline = asyncio.run(_outline(sys.argv[1], jsontext.loads(sys.stdin.buffer.read())))
    sys.stdout.buffer.write(b"\n" + jsontext.dumps(asdict(outline)) + b"\n")
