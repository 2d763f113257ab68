"""`hermes-rl compare FIRST SECOND` (Run): compare two evaluations item by item."""

from typing import TYPE_CHECKING

import click

from hermes_rl.console.live_display import console
from hermes_rl.console.output import echo
from hermes_rl.core import fast_json

if TYPE_CHECKING:
    from rich.text import Text

    from hermes_rl.evaluation.compare import EvaluationComparison, LoadedEvaluation
    from hermes_rl.evaluation.statistics.intervals import Interval


@click.command()
@click.argument("first")
@click.argument("second")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as one JSON object.")
def compare(first: str, second: str, as_json: bool) -> None:
    """Compare two evaluations item by item.

    FIRST and SECOND are output folders of `hermes-rl evaluate`, their metrics.json, or files of groups; `last` is
    the newest folder. The difference is SECOND minus FIRST, over the items in both.
    """
    from hermes_rl.environment.last_output import named_path
    from hermes_rl.evaluation.compare import compare_evaluations, read_evaluation

    before, after = (read_evaluation(named_path(text, "evaluation")) for text in (first, second))
    compared = compare_evaluations(before, after)
    if as_json:
        echo(fast_json.dumps(compared.summary()).decode())
    else:
        show(compared)


def show(compared: "EvaluationComparison") -> None:
    """Print to standard error; standard output is for --json."""
    from rich.table import Table

    from hermes_rl.console.escaping_console import styled

    test, difference = compared.comparison, compared.comparison.difference
    table = Table(
        title=f"compare · {difference.n_items} common items", title_justify="left", show_header=False, min_width=40
    )
    table.add_row("first", _name(compared.first))
    table.add_row("second", _name(compared.second))
    table.add_row("mean reward, first", _interval(compared.first_mean))
    table.add_row("mean reward, second", _interval(compared.second_mean))
    table.add_row("difference", _interval(difference, signed=True))
    table.add_row("p-value", f"{_p(test.p_value)} ({test.method}, paired by item)")
    table.add_row("items: second better", str(test.wins))
    table.add_row("items: second worse", str(test.losses))
    table.add_row("items: the same", str(test.ties))
    screen = console()
    screen.print(table)
    screen.print(verdict(compared), soft_wrap=True)
    methods = sorted({compared.first_mean.method, compared.second_mean.method, difference.method})
    screen.print(
        f"In brackets: {difference.level:.0%} intervals, clustered by item; {', '.join(methods)}.",
        soft_wrap=True,
    )
    for warning in compared.warnings:
        screen.print(styled(("note", "yellow"), f": {warning}"), soft_wrap=True)


def verdict(compared: "EvaluationComparison") -> "Text":
    """The result of the test in words."""
    from hermes_rl.console.escaping_console import styled

    test = compared.comparison
    if test.p_value >= 1 - test.difference.level:
        return styled(("No significant difference", "bold"), "; evaluate more items to detect a smaller one.")
    better = "second" if test.difference.estimate > 0 else "first"
    caveat = (
        ""
        if test.difference.low > 0 or test.difference.high < 0
        else " The interval is more conservative: it includes 0."
    )
    chance = f"equal models would differ this much with probability {_p(test.p_value)}."
    return styled((f"The {better} is better", "bold"), f": {chance}{caveat}")


def _name(side: "LoadedEvaluation") -> str:
    from hermes_rl.evaluation.table import decoding_text

    return f"{side.path}\n{side.model}, {side.samples} samples, {decoding_text(side.temperature)}"


def _interval(interval: "Interval", *, signed: bool = False) -> str:
    from hermes_rl.evaluation.table import estimate_text

    sign = "+" if signed and interval.estimate > 0 else ""
    return sign + estimate_text(interval.estimate, interval.low, interval.high)


def _p(value: float) -> str:
    return "below 0.0001" if value < 0.0001 else f"{value:.4f}"
