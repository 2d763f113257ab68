"""Running a command from start to exit code.

Errors of the package are printed without a traceback. Nothing a single command needs is imported here, so every command
starts fast.
"""

import gc
import io
import traceback
from collections.abc import Coroutine
from typing import Any, TypeVar

import click

from hermes_rl.console.output import echo, log_to_stderr
from hermes_rl.core.errors import ConfigError, HermesRLError

T = TypeVar("T")


def run_click(command: click.Command, arguments: list[str] | None, prog_name: str | None) -> int:
    """Run a click command and return its exit code: 2 for a ConfigError, 1 for every other error."""
    log_to_stderr("%(message)s")
    try:
        code = command.main(arguments, prog_name=prog_name, standalone_mode=False)
    except click.ClickException as error:
        message = io.StringIO()
        error.show(message)
        echo(message.getvalue(), err=True, nl=False)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        echo("stopped", err=True)
        return 130
    except HermesRLError as error:
        return show_error(error)
    except Exception:  # noqa: BLE001 (its message may hold text of a model)
        echo(traceback.format_exc().rstrip(), err=True)
        return 1
    return int(code or 0)


def show_error(error: HermesRLError) -> int:
    """Print an error of the package and return its exit code."""
    echo(f"error: {error}", err=True)
    return 2 if isinstance(error, ConfigError) else 1


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on a new uvloop event loop."""
    import asyncio

    import uvloop

    tune_gc()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def tune_gc() -> None:
    """Tune Python's garbage collector for a process that holds thousands of conversations.

    With the defaults, full collections scan all of them repeatedly: at 4,096 rollouts in flight that took a fifth of
    the CPU and tripled the p99 between turns (benchmarks/agent_loop.py). Young objects are collected often, in small
    numbers: a threshold of 100,000 blocked the loop for 0.3 s at 8,000 rollouts (benchmarks/in_flight.py).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(2_000, 2_500, 100)
