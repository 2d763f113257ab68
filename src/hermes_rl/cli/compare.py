"""`hermes-rl compare FIRST SECOND`: whether one evaluation is better than another, by a paired test on common items."""

import sys
from pathlib import Path

import click

from hermes_rl import jsontext
from hermes_rl.environment.evaluation.comparison import Compared, Evaluated, compare_evaluations, read_evaluation
from hermes_rl.environment.evaluation.table import estimate_text, plain
from hermes_rl.statistics.intervals import Interval
from hermes_rl.terminal.screen import console


@click.command()
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as one JSON object.")
def compare(first: Path, second: Path, as_json: bool) -> None:
    """Compare two evaluations item by item.

    FIRST and SECOND are folders that `hermes-rl evaluate` wrote, their metrics.json, or files of groups. The difference
    is SECOND minus FIRST, over the items that both have.
    """
    compared = compare_evaluations(read_evaluation(first), read_evaluation(second))
    if as_json:
        sys.stdout.write(jsontext.dumps(compared.summary()).decode() + "\n")
    else:
        show(compared)


def show(compared: Compared) -> None:
    """On standard error, like everything that a person reads."""
    from rich.table import Table

    test, difference = compared.comparison, compared.comparison.difference
    table = Table(
        title=f"compare · {difference.n_items} common items", title_justify="left", show_header=False, min_width=40
    )
    table.add_row("first", plain(_name(compared.first)))
    table.add_row("second", plain(_name(compared.second)))
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
        plain(f"In brackets: {difference.level:.0%} intervals, clustered by item; {', '.join(methods)}."),
        soft_wrap=True,
    )
    for warning in compared.warnings:
        screen.print(f"[yellow]note[/yellow]: {plain(warning)}", soft_wrap=True)


def verdict(compared: Compared) -> str:
    """What the test says, in words, without a claim it does not carry."""
    test = compared.comparison
    if test.p_value >= 1 - test.difference.level:
        return "[bold]No difference can be told[/bold]: what was found is within chance. More items would tell more."
    better = "second" if test.difference.estimate > 0 else "first"
    but = "" if test.difference.low > 0 or test.difference.high < 0 else " The interval is more cautious: it holds 0."
    chance = f"two alike would differ this much with probability {_p(test.p_value)}."
    return f"[bold]The {better} is better[/bold]: {chance}{but}"


def _name(side: Evaluated) -> str:
    temperature = "" if side.temperature is None else f", temperature {side.temperature:g}"
    return f"{side.path}\n{side.model}, {side.samples} samples{temperature}"


def _interval(interval: Interval, *, signed: bool = False) -> str:
    sign = "+" if signed and interval.estimate > 0 else ""
    return plain(sign + estimate_text(interval.estimate, interval.low, interval.high))


def _p(value: float) -> str:
    return "below 0.0001" if value < 0.0001 else f"{value:.4f}"
