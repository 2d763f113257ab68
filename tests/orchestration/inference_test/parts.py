"""A test of the trial environments against a scripted model, and what a test leaves on the machine."""

from pathlib import Path
from typing import Any

from hermes_rl.orchestration.inference_test.runner import run_test
from tests.orchestration.inference_test import trial_env
from tests.support.scripted_model import Calls, Reply, ScriptedModel, Text

FILE = Path(trial_env.__file__)
CHANGES: dict[str, Any] = {"terminal_backend": "bubblewrap", "rollout_retries": 0}


async def report_of(
    *models: Any, name: str = "Trial", num_steps: int = 2, group_size: int = 2, **options: Any
) -> dict[str, Any]:
    return await run_test(
        f"{FILE}:{name}", "trial", CHANGES, list(models), num_steps=num_steps, group_size=group_size, **options
    )


def at(model: ScriptedModel, name: str = "some/model", **more: Any) -> dict[str, Any]:
    return {"model": name, "base_url": model.base_url, "max_retries": 0, **more}


def answers(request: dict[str, Any]) -> Reply:
    """Call the tool, then say the number, or by the seed another one."""
    if request["messages"][-1]["role"] == "user":
        return Calls([("terminal", '{"command": "true"}')])
    number = int(request["messages"][0]["content"].split()[1])
    return Text(str(number + request["seed"] % 2))


def processes_of(home: Path) -> list[int]:
    """Those that were started with this folder as HERMES_HOME."""
    wanted = f"HERMES_HOME={home}\0".encode()
    found = []
    for place in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = place.read_bytes()
        except OSError:
            continue
        if wanted in variables + b"\0":
            found.append(int(place.parent.name))
    return found
