"""Following a run: a live panel on a terminal, otherwise a line per change.

Following only reads. Ctrl-C stops following, and the run continues.
"""

import time
from typing import TYPE_CHECKING, Any

from hermes_rl.console.live_display import console, live_panel
from hermes_rl.console.output import echo
from hermes_rl.console.panel import Panel, format_counts
from hermes_rl.core.exit_codes import LIMIT_REACHED
from hermes_rl.orchestration.run_paths import RunPaths
from hermes_rl.orchestration.supervision.lifecycle import LIMIT_REASON

if TYPE_CHECKING:
    from hermes_rl.console.escaping_console import EscapingConsole
    from hermes_rl.orchestration.status.summary import RunSummary

POLL_SECONDS = 0.5
FIGURES = ("percent_correct", "eval_percent_correct", "eval_reward_mean", "loss", "seconds_per_step")


def follow(run_id: str) -> dict[str, Any]:
    """Show the run until it ends or Ctrl-C; returns its last status."""
    from hermes_rl.orchestration.status.status import status

    screen = console()
    try:
        return _follow_panel(run_id, screen) if screen.is_terminal else _follow_lines(run_id)
    except KeyboardInterrupt:
        echo(
            f"\nrun {run_id} continues. Follow it with: hermes-rl run status {run_id} --watch\n"
            f"Stop it with: hermes-rl run stop {run_id}",
            err=True,
        )
        return status(run_id)


def exit_code(report: dict[str, Any]) -> int:
    """3 if a limit stopped the run, 1 if it failed."""
    if is_limited(report):
        return LIMIT_REACHED
    return 1 if report["status"] in {"failed", "interrupted"} else 0


def is_limited(report: dict[str, Any]) -> bool:
    """Whether a limit stopped the run."""
    return report["status"] == "stopped" and str(report.get("reason")).startswith(LIMIT_REASON)


def summary_line(report: dict[str, Any]) -> str:
    figures = report["metrics"]
    parts = [report["status"], step_text(figures)]
    if figures.get("reward_mean") is not None:
        parts.append(f"reward {figures['reward_mean']:.3f}")
    shown = report["status"] not in {"running", "finished"}
    for name, state in component_states(report).items():
        if (shown and state != "waiting") or report["processes"][name].get("stage"):
            parts.append(f"{name} {state}")
    return "  ".join(parts)


def audit_text(report: dict[str, Any]) -> str:
    """The gap between trained and audited reward in the last audited step; "" without audits."""
    audit = report["metrics"].get("audit")
    if not audit:
        return ""
    failed = f", {audit['errors']:g} audits failed" if audit["errors"] else ""
    if audit["gap"] is None:
        return f"no rollout of step {audit['step']}{failed}"
    ends = [audit["gap_low"], audit["gap_high"]]
    interval = "" if None in ends else f" (95% {ends[0]:+.3f} to {ends[1]:+.3f})"
    rollouts = f"{audit['rollouts']:g} best rollouts of step {audit['step']}"
    return f"trained − audited reward {audit['gap']:+.3f}{interval}, {rollouts}{failed}"


def forecast_text(run_id: str) -> str:
    """How the first steps compare with the forecast that was made before the run; "" without one."""
    from hermes_rl.evaluation.forecast_check import CHECKED
    from hermes_rl.evaluation.prediction import figure
    from hermes_rl.orchestration.status.forecast import check_earlier_forecast

    found = check_earlier_forecast(RunPaths(run_id))
    if found is None or not found.figures:
        return ""
    figures = ", ".join(
        f"{CHECKED[one.name]} {figure(one.observed)} {'inside' if one.inside else 'outside'} "
        f"[{figure(one.predicted.low)}, {figure(one.predicted.high)}]"
        for one in found.figures
    )
    return f"first {found.steps} of {found.planned} steps: {figures}"


def step_text(figures: dict[str, Any]) -> str:
    total = figures["total_steps"]
    return f"step {figures['step']}" + ("" if total is None else f" of {total}")


def component_states(report: dict[str, Any]) -> dict[str, str]:
    return {
        name: str(part["status"]) + (f" ({part['stage']})" if part.get("stage") else "") + _from_replicas(part)
        for name, part in report["processes"].items()
    }


def _from_replicas(part: dict[str, Any]) -> str:
    report = part.get("replicas")
    if report is None:
        return ""
    opened = sum(one["state"] == "open" for one in report["replicas"].values())
    return f", {opened} of {report['wanted']} replicas"


def problems(report: dict[str, Any]) -> list[str]:
    found = [f"{name}: {part['problem']}" for name, part in report["processes"].items() if part.get("problem")]
    found += [
        f"{one['name']}: {one['metrics']['diagnosis']}"
        for one in report.get("environments") or ()
        if one["metrics"].get("diagnosis")
    ]
    if report.get("stalled"):
        found.append(f"stalled: {report['stalled']['why']}; see {report['stalled']['look_at']}")
    if report.get("reason") and report["status"] != "finished":
        found.append(str(report["reason"]))
    return list(dict.fromkeys(found))


def _follow_lines(run_id: str) -> dict[str, Any]:
    from hermes_rl.orchestration.status.status import status

    before: tuple[str, list[str]] | None = None
    while True:
        report = status(run_id)
        now = (summary_line(report), problems(report))
        if now != before:
            echo(f"{run_id}  {now[0]}", err=True)
            for problem in now[1]:
                if before is None or problem not in before[1]:
                    echo(f"  {problem}", err=True)
            before = now
        if report["ended"]:
            return report
        time.sleep(POLL_SECONDS)


def _follow_panel(run_id: str, screen: "EscapingConsole") -> dict[str, Any]:
    from hermes_rl.orchestration.status.status import status
    from hermes_rl.orchestration.status.summary import run_summary

    report = status(run_id)
    with live_panel(screen, status_panel(report, run_summary(run_id))) as shown:
        while not report["ended"]:
            time.sleep(POLL_SECONDS)
            report = status(run_id)
            shown.panel = status_panel(report, run_summary(run_id))
    return report


def status_panel(report: dict[str, Any], summary: "RunSummary") -> Panel:
    """The panel of a run: state, steps, rewards, components and problems."""
    figures = report["metrics"]
    minutes, left = report["running_time_minutes"], figures.get("minutes_left")
    shown = {name: figures[name] for name in FIGURES if figures.get(name) is not None}
    reward, steps = figures.get("reward_mean"), step_text(figures)
    rows = {
        "state": f"{report['status']} {'after' if report['ended'] else 'for'} {minutes:.1f} min, {steps}"
        + ("" if left is None or report["ended"] else f", about {left:.1f} min left"),
        "score": "" if reward is None else f"mean {reward:.3f} in the last step",
        "figures": " · ".join(f"{name} {value:.3g}" for name, value in shown.items()),
        "audit": audit_text(report),
        "not scored": format_counts(summary.failures),
        "parts": " · ".join(f"{name} {state}" for name, state in component_states(report).items()),
        **{f"problem {number}": problem for number, problem in enumerate(problems(report), 1)},
    }
    return Panel(
        f"run · {report.get('environment') or ''} · {report['run_id']}",
        {label: text for label, text in rows.items() if text},
        done=figures["step"],
        total=figures["total_steps"],
        rewards=summary.rewards,
        styles={label: "red" for label in rows if label.startswith("problem")},
    )
