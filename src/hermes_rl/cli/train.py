"""`hermes-rl train ENV` (Train): train a model on an environment: API, trainer and environment in one command."""

from typing import Any

import click

from hermes_rl.cli.run.commands import launch_run
from hermes_rl.cli.run.start_options import build_run, start_options


@click.command(context_settings={"show_default": True, "max_content_width": 110})
@start_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def train(dry_run: bool, as_json: bool, **options: Any) -> int:
    """Train a model on ENV: runs the trajectory API, the trainer and the environment, and shows progress.

    ENV is a name of `hermes-rl env list`, FILE.py, FILE.py:CLASS or MODULE:CLASS. Ctrl-C leaves the run running;
    stop it with `hermes-rl run stop`. The exit code is 1 if the run failed. To train on this machine, without an API
    key:

    \b
        hermes-rl train gsm8k --preset laptop --set base_model=FOLDER
    """  # noqa: D301 (\b keeps a paragraph's line breaks in click)
    return launch_run(build_run(**options), dry_run=dry_run, follows=True, as_json=as_json)
