"""`hermes-rl report FILE`: recorded groups as one page of HTML."""

from pathlib import Path

import click

from hermes_rl import jsontext
from hermes_rl.cli.progress import progress
from hermes_rl.environment.display import console
from hermes_rl.environment.report.page import GROUPS_SHOWN, write_report
from hermes_rl.store.export import count_lines


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-o", "--output", "out", type=click.Path(dir_okay=False, path_type=Path), help="HTML file. [FILE.html]")
@click.option("--groups", type=click.IntRange(min=1), default=GROUPS_SHOWN, show_default=True, help="Groups to show.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def report(file: Path, out: Path | None, groups: int, as_json: bool) -> None:
    """Make a page of a JSONL file of groups, for a browser.

    The page is one file: figures of the whole run, a table of groups, and the rollouts with their conversations. It
    needs no network and runs no script.
    """
    done = 0
    with progress("report", count_lines(file)) as shown:

        def advance() -> None:
            nonlocal done
            done += 1
            shown.show(done, "")

        made = write_report(file, out, shown=groups, on_group=advance)
    screen = console()
    screen.print(f"{made.conversations:,} of {made.groups:,} groups shown", soft_wrap=True)
    screen.print(f"written: {made.path}", soft_wrap=True, markup=False)
    if as_json:
        click.echo(jsontext.dumps({**made._asdict(), "path": str(made.path)}))
