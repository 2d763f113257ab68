"""The first minutes of README in an installation without any extra, on a model that is none.

`briefly`: what another installation of the same files has shown already is left out.
"""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

NEVER_LOADED = {"atroposlib", "datasets", "jax", "openai", "ray", "tinker", "torch", "transformers", "vllm", "wandb"}


def main(given: dict[str, Any]) -> str:
    said = hermes_rl("--version")
    assert said.split()[-1] == version("hermes-rl"), said
    assert "Usage" in hermes_rl("--help")
    model = ["--openai.base_url", given["model"], "--openai.model_name", "null"]
    groups = ["--env.total_steps", "2", "--env.group_size", "2", "--env.data_path_to_save_groups", "output.jsonl"]
    hermes_rl("process", "terminal_test", *groups, *model)
    scores = [score for line in Path("output.jsonl").read_text().splitlines() for score in json.loads(line)["scores"]]
    assert scores == [1.0] * 4, scores
    if given["briefly"]:
        return "4 rollouts scored"
    hermes_rl("evaluate", "terminal_test", "--env.data_dir_to_save_evals", "evals", *model)
    reached = json.loads(Path("evals/metrics.json").read_text())["metrics"]["eval/mean_reward"]
    assert reached == 1.0, reached
    hermes_rl("report", "output.jsonl", "--output", "report.html")
    assert "</html>" in Path("report.html").read_text()
    hermes_rl("init", "word_count")
    assert "no problems found" in hermes_rl("validate", "word_count_env.py")
    unwanted = loaded() & NEVER_LOADED
    assert not unwanted, f"import hermes_rl loads {sorted(unwanted)}"
    return "4 rollouts scored, 20 items evaluated, a report, `init` and `validate`"


def hermes_rl(*words: str) -> str:
    command = [str(Path(sys.executable).with_name("hermes-rl")), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def loaded() -> set[str]:
    program = "from hermes_rl import *; import sys; print(*{name.split('.')[0] for name in sys.modules})"
    return set(subprocess.check_output([sys.executable, "-I", "-c", program], text=True, timeout=240).split())


if __name__ == "__main__":
    print(main(json.loads(sys.argv[1])))
