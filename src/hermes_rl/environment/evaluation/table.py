"""An evaluation as a person reads it: numbers with their intervals, then what must be known of them, in words.

Fits 80 columns. Goes to standard error, like all of display.py.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hermes_rl.terminal.screen import console, short

# Half the width of an interval: what is said to be wide, and what is proposed instead.
WIDE, USEFUL = 0.1, 0.05
KINDS = ("model_failure", "failure", "retried", "items_left_out", "time_share", "stop_reason")
READ = frozenset(
    f"eval/{name}"
    for name in "items items_scored samples_per_item rollouts scored model_failures failures mean_reward "
    "standard_error tool_calls tool_errors tokens/prompt tokens/completion tokens/per_rollout cost seconds/wall "
    "seconds/rollout_mean seconds/rollout_median seconds/rollout_p95".split()
)


def evaluation_table(report: Mapping[str, Any], folder: Path) -> None:
    """The end of an evaluation; the default one's with its intervals, an author's own as the numbers stand."""
    from rich.table import Table

    # An author's evaluate_log may have put other numbers in their place.
    measured = "items" in report and report["metrics"].keys() >= {*READ, *report["methods"]}
    table = Table(title=f"{report['task']} · {report['model']}", title_justify="left", show_header=not measured)
    table.add_column("metric")
    table.add_column("value", justify="left" if measured else "right")
    if measured:
        for row in _evaluation_rows(report):
            table.add_row(*row)
    else:
        for name, value in report["metrics"].items():
            table.add_row(plain(name), _number(value))
    screen = console()
    screen.print(table)
    for line in evaluation_remarks(report) if measured else ():
        screen.print(line, soft_wrap=True)
    screen.print(
        f"written: {folder}/metrics.json, {folder}/samples.jsonl ({report['samples']} samples)", soft_wrap=True
    )


def estimate_text(estimate: float, low: float | None, high: float | None) -> str:
    """0.62 [0.55, 0.69], with more digits where the interval is too narrow to be seen in two."""
    if low is None or high is None or not math.isfinite(high - low):
        return f"{estimate:.2f} [unknown]"
    digits = 2 if high - low >= 0.02 or high == low else 4
    return f"{estimate:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def _evaluation_rows(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    metrics = report["metrics"]
    samples = report["samples_per_item"]
    temperature = report["generation_parameters"].get("temperature")
    yield (
        "items",
        f"{metrics['eval/items']}, {samples} {'sample' if samples == 1 else 'samples'} each"
        + (f", temperature {temperature:g}" if isinstance(temperature, int | float) else ""),
    )
    if metrics["eval/mean_reward"] is None:
        yield "eval/mean_reward", "[red]none was scored[/red]"
    for name in report["methods"]:
        shown = estimate_text(metrics[name], metrics[f"{name}/low"], metrics[f"{name}/high"])
        yield plain(name), plain(shown)
    yield "rollouts", f"{metrics['eval/rollouts']}, {metrics['eval/scored']} scored"
    passed = metrics["eval/scored"] - metrics["eval/model_failures"]
    yield "passed", f"{passed}, {metrics['eval/model_failures']} failed by the model"
    for reason, count in _counts(metrics, "model_failure"):
        yield f"  stopped: {reason}", str(count)
    for cause, count in _counts(metrics, "failure"):
        yield f"[red]not scored: {plain(cause)}[/red]", str(count)
    for cause, count in _counts(metrics, "retried"):
        yield f"tried again: {plain(cause)}", str(count)
    for reason, count in _counts(metrics, "items_left_out"):
        yield f"[yellow]items left out: {plain(reason)}[/yellow]", str(count)
    yield "tool calls", f"{metrics['eval/tool_calls']}, {metrics['eval/tool_errors']} with an error"
    yield "time", _time_text(metrics)
    if shares := [f"{span} {share:.0%}" for span, share in _counts(metrics, "time_share") if share >= 0.005]:
        yield "spent in", ", ".join(shares)
    if metrics["eval/tokens/per_rollout"]:
        prompt, completion = metrics["eval/tokens/prompt"], metrics["eval/tokens/completion"]
        yield "tokens", f"{prompt:,} prompt, {completion:,} completion"
    if metrics["eval/cost"] is not None:
        yield "cost", f"{metrics['eval/cost']:.4f}"
    for name, value in metrics.items():
        if not _shown(name, report):
            yield plain(name), _number(value)


def evaluation_remarks(report: Mapping[str, Any]) -> Iterator[str]:
    """What a reader of the numbers must know, in words."""
    metrics = report["metrics"]
    if not metrics["eval/scored"]:
        yield "[red]No rollout was scored: this says nothing about the model.[/red] Mend what is named above."
    else:
        methods = ", ".join(sorted(set(report["methods"].values())))
        yield plain(f"In brackets: {report['confidence']:.0%} intervals, clustered by item; {methods}.")
        yield from _wide(metrics)
    for name in report["methods"]:
        if few := metrics.get(f"{name}/items_left_out"):
            yield f"{few} items have too few scored samples for {plain(name)} and are not in it."
    if metrics["eval/failures"] and metrics["eval/scored"]:
        share = metrics["eval/failures"] / metrics["eval/rollouts"]
        yield f"[yellow]{share:.0%} of the rollouts have no score[/yellow] and are in none of the means."
    if report["limit"]:
        yield f"[yellow]ended early[/yellow] by {plain(report['limit'])}; raise it and go on with --resume"
    if report["resumed_items"]:
        yield f"{report['resumed_items']} items were there from an earlier run; the time on the wall is this run's"
    for cause, message in report["failure_examples"].items():
        yield f"[red]{plain(cause)}[/red], for instance: {short(message)}"


def _wide(metrics: Mapping[str, Any]) -> Iterator[str]:
    """How many items a useful interval would take: its width goes with the root of their number."""
    half = (metrics["eval/pass@1/high"] - metrics["eval/pass@1/low"]) / 2
    if half > WIDE:
        items = math.ceil(metrics["eval/items_scored"] * (half / USEFUL) ** 2 / 10) * 10
        yield (
            f"[yellow]The interval is wide:[/yellow] the pass rate is known to ±{half:.2f} only. About {items} items "
            f"would give ±{USEFUL:g} (--env.eval_size)."
        )


def _time_text(metrics: Mapping[str, Any]) -> str:
    wall, median, p95 = (metrics[f"eval/seconds/{name}"] for name in ("wall", "rollout_median", "rollout_p95"))
    rollout = "" if median is None else f"; a rollout {median:.1f} s, p95 {p95:.1f} s"
    return f"{wall:.1f} s{rollout}"


def _shown(name: str, report: Mapping[str, Any]) -> bool:
    """Whether a metric is the default evaluation's own, which has its place in the table."""
    estimate = name.removesuffix("/low").removesuffix("/high").removesuffix("/items_left_out")
    kind = name.removeprefix("eval/").partition("/")[0]
    return name in READ or estimate in report["methods"] or estimate.startswith("eval/pass") or kind in KINDS


def _number(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else plain(str(value))


def _counts(metrics: Mapping[str, Any], kind: str) -> list[tuple[str, Any]]:
    """The metrics of a kind by their name in it, the greatest first."""
    prefix = f"eval/{kind}/"
    found = [(name.removeprefix(prefix), value) for name, value in metrics.items() if name.startswith(prefix)]
    return sorted(found, key=lambda pair: -pair[1])


def plain(text: str) -> str:
    """Text that the console shows as it stands."""
    return text.replace("[", r"\[")
