"""The engine's own backend in a process of SkyRL's environment, on virtual devices, without server or database."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from hermes_rl.training.engines.skyrl.process import INSIDE, VIRTUAL_DEVICES
from tests.support.skyrl_engine import CHECKOUT, skyrl_environment

SCRIPT = CHECKOUT / "tests" / "engines" / "skyrl" / "parity" / "device_steps.py"


def backend_process(
    mode: str, model: Path | str, *out: Path, devices: int = 1, seconds: float = 2000
) -> dict[str, Any]:
    """What `device_steps.py MODE` prints."""
    environment = skyrl_environment()
    variables = {
        "PYTHONPATH": str(INSIDE),
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(environment / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        # Compiling takes most of the time, and every program runs a few times only.
        "XLA_FLAGS": f"{VIRTUAL_DEVICES}={devices} --xla_backend_optimization_level=0",
        "HF_HUB_OFFLINE": "1",
    }
    command = [str(environment / "bin" / "python"), str(SCRIPT), mode, str(model), *map(str, out)]
    said = subprocess.run(
        command, env=os.environ | variables, stdout=subprocess.PIPE, text=True, check=True, timeout=seconds
    )
    answer: dict[str, Any] = json.loads(said.stdout.splitlines()[-1])
    print(json.dumps(answer, indent=1))
    return answer
