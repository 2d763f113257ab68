"""One model's part of a test: `hermes-rl process` as a process of its own, for so long at most.

Always true: whatever ends this, a time limit, a cancellation or the death of the caller, the process and all it started
are gone; its command line holds no setting, its configuration no key.
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hermes_rl.runs.inference_test import guarding
from hermes_rl.runs.inference_test.outputs import Outputs
from hermes_rl.runs.keys import key_variables, referenced_keys

# Beside the keys that its settings name: what tools and sandboxes of an environment may need.
TOOL_KEYS = (
    "HF_TOKEN",
    "DAYTONA_API_KEY",
    "MODAL_TOKEN_ID",
    "MODAL_TOKEN_SECRET",
    "TAVILY_API_KEY",
    "EXA_API_KEY",
    "BRAVE_API_KEY",
)
# A request that hangs is to be told as a failure of its rollout, also after the rollout was tried again.
REQUEST_SHARE = 0.4
TAIL = 4000


@dataclass(frozen=True, slots=True)
class Ran:
    """How a process ended. `exit_code` is None when its time was up."""

    exit_code: int | None

    @property
    def timed_out(self) -> bool:
        return self.exit_code is None


async def run_process(
    reference: str, settings: Mapping[str, Any], endpoint: Mapping[str, Any], outputs: Outputs, seconds: float
) -> Ran:
    """Make the groups of one model; how it ended."""
    sections = {
        "env": {**settings, "data_path_to_save_groups": str(outputs.groups)},
        "openai": {"timeout": seconds * REQUEST_SHARE, **endpoint},
    }
    variables = {**os.environ, **key_variables((*referenced_keys(sections), *TOOL_KEYS))}
    with tempfile.TemporaryDirectory(prefix="hermes-rl-test-") as private:
        config = Path(private) / "config.yaml"
        config.write_text(yaml.safe_dump(sections, allow_unicode=True))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", guarding.__file__),
            *(sys.executable, "-m", "hermes_rl", "process", reference, "--overwrite", "--config", str(config)),
            stdin=asyncio.subprocess.PIPE,
            stdout=outputs.log_file,
            stderr=outputs.log_file,
            env=variables,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(seconds):
                return Ran(await process.wait())
        except TimeoutError:
            return Ran(None)
        finally:
            await asyncio.shield(_end(process))


async def _end(process: asyncio.subprocess.Process) -> None:
    """Let go of the guard's standard input, which ends the process, and wait for it."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(guarding.GRACE + 5):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def last_words(log: Path) -> str:
    """The error at the end of a log: the last that it calls one, else its last line."""
    lines = [line.strip() for line in log.read_text(errors="replace")[-TAIL:].splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("error: ")]
    return (told or lines or ["it said nothing"])[-1].removeprefix("error: ")
