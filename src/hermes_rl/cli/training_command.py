"""The end of a training command: run it, traced, and report its result."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import click

from hermes_rl.console.live_display import warn
from hermes_rl.console.output import echo
from hermes_rl.console.run_command import run_async
from hermes_rl.core import fast_json
from hermes_rl.core.exit_codes import LIMIT_REACHED
from hermes_rl.tracing.setup import Tracing, traced


def run_and_report(
    train: Coroutine[Any, Any, dict[str, Any]], *, run: str, model: str, trace: str | None, as_json: bool
) -> None:
    """Print the result as JSON to stdout, or as one line to stderr. The exit code is 3 if a limit ended the run."""
    try:
        with traced(Tracing.from_option(trace), "trainer", {"run": run, "model": model}, report=warn):
            result = run_async(train)
    except asyncio.CancelledError:
        raise click.Abort from None
    if as_json:
        echo(fast_json.dumps(result))
    else:
        echo(f"{result['ended']} at step {result['step']}; {result['folder']}", err=True)
    if result.get("limit"):
        click.get_current_context().exit(LIMIT_REACHED)
