"""The workflow for GitHub Actions calls `hermes-rl audit` with options that it has."""

import re
from pathlib import Path

import click
import yaml

from scripts.reference import commands

WORKFLOW = Path(__file__).parents[2] / "examples" / "github" / "reward-audit.yml"


def test_the_workflow_names_options_that_exist() -> None:
    steps = yaml.safe_load(WORKFLOW.read_text())["jobs"]["audit"]["steps"]
    [line] = [step["run"] for step in steps if step.get("run", "").startswith("hermes-rl audit")]
    audit = dict(commands())["hermes-rl audit"]
    known = {flag for option in audit.params if isinstance(option, click.Option) for flag in option.opts}
    assert set(re.findall(r"--[\w.-]+", line)) <= known
    assert "--out audit" in line
