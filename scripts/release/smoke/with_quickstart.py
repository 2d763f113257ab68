"""The extra `quickstart`: `hermes-rl quickstart` with a few rollouts of the real small model."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def main(_given: dict[str, Any]) -> str:
    command = [str(Path(sys.executable).with_name("hermes-rl")), "quickstart", "--groups", "1", "--eval-items", "2"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["rollouts"]["scored"] == 4, result["rollouts"]
    return f"`quickstart`: {result['rollouts']['scored']} scored rollouts, an evaluation of 2 items"


if __name__ == "__main__":
    print(main(json.loads(sys.argv[1])))
