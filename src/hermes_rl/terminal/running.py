"""A command's work from its start to its exit code, on a loop of its own where it needs one.

Always true: an error of ours is told without a traceback, and by the exit code; nothing of what a verb needs is loaded
here, so that another verb does not wait for it.
"""

import gc
from collections.abc import Coroutine
from typing import Any, TypeVar

import click

from hermes_rl.errors import ConfigError, HermesRLError

T = TypeVar("T")


def run_click(command: click.Command, arguments: list[str] | None, prog_name: str | None) -> int:
    """Run a click command; our own errors are printed without a traceback, with exit code 2 or 1."""
    try:
        code = command.main(arguments, prog_name=prog_name, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped", err=True)
        return 130
    except HermesRLError as error:
        click.echo(f"error: {error}", err=True)
        return 2 if isinstance(error, ConfigError) else 1
    return int(code or 0)


def on_a_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's work to its end."""
    import asyncio

    import uvloop

    settle_collector()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def settle_collector() -> None:
    """Set Python's garbage collector for a process that holds thousands of conversations.

    With its defaults a full collection walks all of them again and again: at 4,096 rollouts in flight that took a fifth
    of the processor and tripled the p99 between turns (benchmarks/agent_loop.py). Young objects are walked often, a
    few at a time: with 100,000 at once the loop stood still for 0.3 s at 8,000 rollouts (benchmarks/in_flight.py).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(2_000, 2_500, 100)


def warn(problem: str) -> None:
    click.echo(f"warning: {problem}", err=True)
