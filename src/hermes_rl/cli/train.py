"""`hermes-rl train ENV`: a whole training run, started and followed."""

from typing import Any

import click

from hermes_rl.cli.run.group import started
from hermes_rl.cli.run.starting import made_run, starting_options


@click.command(context_settings={"show_default": True, "max_content_width": 110})
@starting_options
@click.option("--json", "as_json", is_flag=True, help="Print what the run came to as one JSON object.")
def train(
    environment: str,
    preset: str | None,
    changes: tuple[str, ...],
    added: tuple[str, ...],
    evaluated: tuple[str, ...],
    dry_run: bool,
    trace: str | None,
    as_json: bool,
    **machines: Any,
) -> int:
    """Train a model on ENV, and show how it goes: the trajectory API, the trainer and the environment in one command.

    ENV is a name of `hermes-rl env list`, FILE.py or FILE.py:CLASS. Ctrl-C leaves the run running; `hermes-rl run stop`
    stops it. The exit code is 0 when the run finished and 1 when it failed. On this machine, without any key:

    \b
        hermes-rl train gsm8k --preset laptop --set base_model=FOLDER
    """  # noqa: D301 (\b is click's mark for a paragraph left as it is)
    run_file = made_run(environment, preset, changes, added, evaluated, trace, machines)
    return started(run_file, dry_run=dry_run, follows=True, as_json=as_json)
