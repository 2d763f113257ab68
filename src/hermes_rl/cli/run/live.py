"""A run followed while it works: on a terminal a picture that changes, elsewhere a line for each change.

Always true: following changes nothing. Ctrl-C ends the following and the run goes on.
"""

import time
from typing import TYPE_CHECKING, Any

import click

from hermes_rl.environment.display import console
from hermes_rl.runs.watching import status

if TYPE_CHECKING:
    from rich.console import Console, Group

LOOK_EVERY = 0.5
STYLES = {"finished": "green", "running": "green", "failed": "red", "interrupted": "red"}


def follow(run_id: str) -> dict[str, Any]:
    """Show the run until it has ended, or until Ctrl-C; what it was at last."""
    screen = console()
    try:
        return _drawn(run_id, screen) if screen.is_terminal else _told(run_id)
    except KeyboardInterrupt:
        click.echo(
            f"\nthe run {run_id} goes on. Follow it again: hermes-rl run status {run_id} --watch\n"
            f"stop it: hermes-rl run stop {run_id}",
            err=True,
        )
        return status(run_id)


def exit_code(told: dict[str, Any]) -> int:
    """Not zero for a run that ended otherwise than it should."""
    return 1 if told["status"] in {"failed", "interrupted"} else 0


def said(told: dict[str, Any]) -> str:
    """The run in one line."""
    figures = told["metrics"]
    step, total = figures["step"], figures["total_steps"]
    parts = [told["status"], f"step {step}" + ("" if total is None else f" of {total}")]
    if figures.get("reward_mean") is not None:
        parts.append(f"reward {figures['reward_mean']:.3f}")
    if told["status"] not in {"running", "finished"}:
        parts += [f"{name} {state}" for name, state in part_states(told).items()]
    return "  ".join(parts)


def part_states(told: dict[str, Any]) -> dict[str, str]:
    return {name: str(part["status"]) for name, part in told["processes"].items()}


def problems(told: dict[str, Any]) -> list[str]:
    """What is wrong with it, in words."""
    found = [f"{name}: {part['problem']}" for name, part in told["processes"].items() if part.get("problem")]
    if told.get("stalled"):
        found.append(f"stalled: {told['stalled']['why']}; see {told['stalled']['look_at']}")
    if told.get("reason") and told["status"] != "finished":
        found.append(str(told["reason"]))
    return list(dict.fromkeys(found))


def _told(run_id: str) -> dict[str, Any]:
    before: tuple[str, list[str]] | None = None
    while True:
        told = status(run_id)
        now = (said(told), problems(told))
        if now != before:
            click.echo(f"{run_id}  {now[0]}", err=True)
            for problem in now[1]:
                if before is None or problem not in before[1]:
                    click.echo(f"  {problem}", err=True)
            before = now
        if told["ended"]:
            return told
        time.sleep(LOOK_EVERY)


def _drawn(run_id: str, screen: "Console") -> dict[str, Any]:
    from rich.live import Live

    with Live(console=screen, auto_refresh=False) as picture:
        while True:
            told = status(run_id)
            picture.update(drawing(told), refresh=True)
            if told["ended"]:
                return told
            time.sleep(LOOK_EVERY)


def drawing(told: dict[str, Any]) -> "Group":
    """The run as a picture: phase, steps, parts, what is wrong."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    figures = told["metrics"]
    step, total = figures["step"], figures["total_steps"]
    head = Text.assemble(
        (f"{told['run_id']} ", "bold"),
        f"{told.get('environment') or ''}  ",
        (str(told["status"]), STYLES.get(str(told["status"]), "yellow")),
        f"  {told['running_time_minutes']:.1f} min",
    )
    bar = Table.grid(padding=(0, 1))
    shown = f"step {step}" + ("" if total is None else f" of {total}")
    for name in ("reward_mean", "percent_correct", "eval_percent_correct", "loss"):
        if figures.get(name) is not None:
            shown += f"   {name} {figures[name]:.3g}"
    bar.add_row(ProgressBar(total=total or 1, completed=min(step, total or 1), width=30), Text(shown))
    parts = Text("   ").join(Text.assemble((name, "dim"), f" {state}") for name, state in part_states(told).items())
    return Group(head, bar, parts, *(Text(problem, style="red") for problem in problems(told)))
