"""The table of an evaluation: metrics with their intervals, then remarks on how to read them.

Fits 80 columns. Printed to stderr, like all live display.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes_rl.console.live_display import console, shorten
from hermes_rl.evaluation.evaluated_policy import policy_text

if TYPE_CHECKING:
    from rich.text import Text

# Half-widths of an interval: above the first it is called wide, the second is the proposed target.
WIDE, USEFUL = 0.1, 0.05
# Counts by name, each with a row: its label and style.
COUNT_ROWS = {
    "model_failure": ("  stopped", ""),
    "failure": ("not scored", "red"),
    "retried": ("retried", ""),
    "charged": ("charged to the policy", "yellow"),
    "items_left_out": ("items left out", "yellow"),
}
ROW_KINDS = (*COUNT_ROWS, "time_share", "stop_reason")
ROW_METRICS = frozenset(
    f"eval/{name}"
    for name in "items items_scored samples_per_item temperature rollouts scored model_failures failures "
    "unscored_share mean_reward standard_error tool_calls tool_errors tokens/prompt tokens/completion "
    "tokens/per_rollout cost seconds/wall seconds/rollout_mean seconds/rollout_median seconds/rollout_p95".split()
)


def evaluation_table(report: Mapping[str, Any], folder: Path) -> None:
    """Print the report: with intervals for the default evaluation, metrics alone for a custom one."""
    from rich.table import Table

    # A custom evaluate_log may have replaced the metrics.
    measured = "items" in report and report["metrics"].keys() >= {*ROW_METRICS, *report["methods"]}
    policy = f" · {policy_text(report['policy'])}" if report["policy"] else ""
    title = f"{report['task']} · {report['model']}{policy}"
    table = Table(title=title, title_justify="left", show_header=not measured)
    table.add_column("metric")
    table.add_column("value", justify="left" if measured else "right")
    if measured:
        for row in _evaluation_rows(report):
            table.add_row(*row)
    else:
        for name, value in report["metrics"].items():
            table.add_row(name, _format_value(value))
    screen = console()
    screen.print(table)
    for line in evaluation_remarks(report) if measured else ():
        screen.print(line, soft_wrap=True)
    screen.print(
        f"written: {folder}/metrics.json, {folder}/samples.jsonl ({report['samples']} samples)", soft_wrap=True
    )


def decoding_text(temperature: Any) -> str:
    """Named, because a sampled pass rate rises by sharpening alone and a greedy one does not."""
    if not isinstance(temperature, int | float):
        return "temperature unknown"
    return f"sampled at temperature {temperature:g}" if temperature else "greedy"


def estimate_text(estimate: float, low: float | None, high: float | None) -> str:
    """0.62 [0.55, 0.69], with more digits for a narrow interval."""
    if low is None or high is None or not math.isfinite(high - low):
        return f"{estimate:.2f} [unknown]"
    digits = 2 if high - low >= 0.02 or high == low else 4
    return f"{estimate:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def _evaluation_rows(report: Mapping[str, Any]) -> Iterator[tuple["str | Text", "str | Text"]]:
    from hermes_rl.console.escaping_console import styled

    metrics = report["metrics"]
    samples = report["samples_per_item"]
    yield "items", f"{metrics['eval/items']}, {samples} {'sample' if samples == 1 else 'samples'} each"
    yield "decoding", decoding_text(report["generation_parameters"].get("temperature"))
    if metrics["eval/mean_reward"] is None:
        yield "eval/mean_reward", styled(("no rollout was scored", "red"))
    for name in report["methods"]:
        estimate = estimate_text(metrics[name], metrics[f"{name}/low"], metrics[f"{name}/high"])
        yield name, estimate
        if name == "eval/pass@1":
            yield "  with unscored as 0", f"{metrics['eval/pass@1/unscored_as_0']:.2f}"
    yield "rollouts", f"{metrics['eval/rollouts']}, {metrics['eval/scored']} scored"
    passed = metrics["eval/scored"] - metrics["eval/model_failures"]
    yield "passed", f"{passed}, {metrics['eval/model_failures']} failed by the model"
    for kind, (label, style) in COUNT_ROWS.items():
        for name, count in _counts_by_name(metrics, kind):
            yield styled((f"{label}: {name}", style)), str(count)
    yield "tool calls", f"{metrics['eval/tool_calls']}, {metrics['eval/tool_errors']} with an error"
    yield "time", _time_text(metrics)
    if shares := [f"{span} {share:.0%}" for span, share in _counts_by_name(metrics, "time_share") if share >= 0.005]:
        yield "spent in", ", ".join(shares)
    if metrics["eval/tokens/per_rollout"]:
        prompt, completion = metrics["eval/tokens/prompt"], metrics["eval/tokens/completion"]
        yield "tokens", f"{prompt:,} prompt, {completion:,} completion"
    if metrics["eval/cost"] is not None:
        yield "cost", f"{metrics['eval/cost']:.4f}"
    for name, value in metrics.items():
        if not _has_own_row(name, report):
            yield name, _format_value(value)


def evaluation_remarks(report: Mapping[str, Any]) -> Iterator["str | Text"]:
    """Remarks on how to read the metrics."""
    from hermes_rl.console.escaping_console import styled

    metrics = report["metrics"]
    if not metrics["eval/scored"]:
        nothing = ("No rollout was scored: this says nothing about the model.", "red")
        yield styled(nothing, " Fix the failures listed above.")
    else:
        methods = ", ".join(sorted(set(report["methods"].values())))
        yield f"In brackets: {report['confidence']:.0%} intervals, clustered by item; {methods}."
        yield from _width_remarks(metrics)
    for name in report["methods"]:
        if count := metrics.get(f"{name}/items_left_out"):
            yield f"{count} items have too few scored samples for {name} and are not in it."
    if metrics["eval/failures"] and metrics["eval/scored"]:
        share = metrics["eval/failures"] / metrics["eval/rollouts"]
        yield styled((f"{share:.0%} of the rollouts have no score", "yellow"), " and are in none of the means.")
    if report["limit"]:
        yield styled(("stopped early", "yellow"), f" by {report['limit']}; raise it and continue with --resume")
    if report.get("diagnosis"):
        yield styled(("problem", "red"), f": {report['diagnosis']}")
    if report["resumed_items"]:
        yield f"{report['resumed_items']} items are from an earlier run; the wall time is of this run"
    for cause, message in report["failure_examples"].items():
        yield styled((cause, "red"), f", for example: {shorten(message)}")


def _width_remarks(metrics: Mapping[str, Any]) -> Iterator["str | Text"]:
    """The number of items for a useful interval: its width scales with the inverse square root of the items."""
    from hermes_rl.console.escaping_console import styled

    half = (metrics["eval/pass@1/high"] - metrics["eval/pass@1/low"]) / 2
    if half > WIDE:
        items = math.ceil(metrics["eval/items_scored"] * (half / USEFUL) ** 2 / 10) * 10
        yield styled(
            ("The interval is wide:", "yellow"),
            f" the pass rate is known only to ±{half:.2f}. About {items} items would give ±{USEFUL:g} "
            "(--env.eval_size).",
        )


def _time_text(metrics: Mapping[str, Any]) -> str:
    wall, median, p95 = (metrics[f"eval/seconds/{name}"] for name in ("wall", "rollout_median", "rollout_p95"))
    rollout = "" if median is None else f"; a rollout {median:.1f} s, p95 {p95:.1f} s"
    return f"{wall:.1f} s{rollout}"


def _has_own_row(name: str, report: Mapping[str, Any]) -> bool:
    """Whether a metric of the default evaluation already has a row in the table."""
    estimate = name.removesuffix("/low").removesuffix("/high").removesuffix("/items_left_out")
    kind = name.removeprefix("eval/").partition("/")[0]
    return name in ROW_METRICS or estimate in report["methods"] or estimate.startswith("eval/pass") or kind in ROW_KINDS


def _format_value(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _counts_by_name(metrics: Mapping[str, Any], kind: str) -> list[tuple[str, Any]]:
    """The metrics of a kind by name, largest first."""
    prefix = f"eval/{kind}/"
    found = [(name.removeprefix(prefix), value) for name, value in metrics.items() if name.startswith(prefix)]
    return sorted(found, key=lambda pair: -pair[1])
