"""A run followed while it works: on a terminal a picture that changes, elsewhere a line for each change.

Always true: following changes nothing. Ctrl-C ends the following and the run goes on.
"""

import time
from typing import TYPE_CHECKING, Any

import click

from hermes_rl.runs.watching.pulse import Pulse, pulse
from hermes_rl.runs.watching.status import status
from hermes_rl.terminal.look import Look, counts
from hermes_rl.terminal.screen import console, drawing

if TYPE_CHECKING:
    from rich.console import Console

LOOK_EVERY = 0.5
FIGURES = ("percent_correct", "eval_percent_correct", "eval_reward_mean", "loss", "seconds_per_step")


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
    parts = [told["status"], steps_of(figures)]
    if figures.get("reward_mean") is not None:
        parts.append(f"reward {figures['reward_mean']:.3f}")
    if told["status"] not in {"running", "finished"}:
        parts += [f"{name} {state}" for name, state in part_states(told).items()]
    return "  ".join(parts)


def steps_of(figures: dict[str, Any]) -> str:
    total = figures["total_steps"]
    return f"step {figures['step']}" + ("" if total is None else f" of {total}")


def part_states(told: dict[str, Any]) -> dict[str, str]:
    return {name: str(part["status"]) + _from_replicas(part) for name, part in told["processes"].items()}


def _from_replicas(part: dict[str, Any]) -> str:
    told = part.get("replicas")
    if told is None:
        return ""
    opened = sum(one["state"] == "open" for one in told["replicas"].values())
    return f", {opened} of {told['wanted']} replicas"


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
    told = status(run_id)
    with drawing(screen, look(told, pulse(run_id))) as shown:
        while not told["ended"]:
            time.sleep(LOOK_EVERY)
            told = status(run_id)
            shown.look = look(told, pulse(run_id))
    return told


def look(told: dict[str, Any], beat: Pulse) -> Look:
    """The run as every command shows itself: phase, steps, rewards, parts, what is wrong."""
    figures = told["metrics"]
    minutes, left = told["running_time_minutes"], figures.get("minutes_left")
    shown = {name: figures[name] for name in FIGURES if figures.get(name) is not None}
    reward, steps = figures.get("reward_mean"), steps_of(figures)
    rows = {
        "state": f"{told['status']} {'after' if told['ended'] else 'for'} {minutes:.1f} min, {steps}"
        + ("" if left is None or told["ended"] else f", about {left:.1f} min left"),
        "score": "" if reward is None else f"mean {reward:.3f} in the last step",
        "figures": " · ".join(f"{name} {value:.3g}" for name, value in shown.items()),
        "not scored": counts(beat.failures),
        "parts": " · ".join(f"{name} {state}" for name, state in part_states(told).items()),
        **{f"problem {number}": problem for number, problem in enumerate(problems(told), 1)},
    }
    return Look(
        f"run · {told.get('environment') or ''} · {told['run_id']}",
        {label: text for label, text in rows.items() if text},
        done=figures["step"],
        total=figures["total_steps"],
        rewards=beat.rewards,
        styles={label: "red" for label in rows if label.startswith("problem")},
    )
