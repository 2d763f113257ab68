"""`hermes-rl board FOLDER` (Look): show evaluations over time, and find regressions among them."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_rl.console.live_display import console
from hermes_rl.console.output import echo
from hermes_rl.core import fast_json

if TYPE_CHECKING:
    from hermes_rl.evaluation.board.series import Board


@click.command(context_settings={"max_content_width": 110})
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--output", "-o", type=click.Path(path_type=Path), help="Write the page to this file. [FOLDER/board.html]"
)
@click.option("--json", "as_json", is_flag=True, help="Print the board as one JSON object.")
def board(folder: Path, output: Path | None, as_json: bool) -> int:
    """Show evaluations over time, and find regressions among them.

    FOLDER holds output folders of `hermes-rl evaluate`, at any depth. Evaluations of the same environment with the same
    decoding form a series; each is compared with the one before it, on the items that both scored. Writes one HTML page
    that needs no network, for instance as an artifact of CI. The exit code is 1 if the newest evaluation of a series is
    significantly worse than the one before it.
    """
    from hermes_rl.evaluation.board.page import board_page
    from hermes_rl.evaluation.board.series import read_board

    found = read_board(folder)
    page = output or folder / "board.html"
    page.write_text(board_page(found, f"Evaluations in {folder.resolve().name}"), encoding="utf-8")
    _show(found, page)
    if as_json:
        echo(fast_json.dumps({**found.as_dict(), "page": str(page)}).decode())
    return 1 if found.regressions else 0


def _show(found: "Board", page: Path) -> None:
    from rich.table import Table

    from hermes_rl.evaluation.table import estimate_text

    screen = console()
    for series in found.series:
        table = Table("finished", "model", "mean score", "change", "p", title=series.name, title_justify="left")
        for entry in series.entries:
            mean, change, p_value = entry.mean, "", ""
            if entry.change is not None:
                test = entry.change.comparison
                moved = test.difference
                change = ("+" if moved.estimate > 0 else "") + estimate_text(moved.estimate, moved.low, moved.high)
                p_value = f"{test.p_value:.4f}"
            style = "red" if entry.regression else "green" if entry.improvement else None
            table.add_row(
                entry.evaluation.finished_at[:16].replace("T", " "),
                entry.evaluation.model,
                estimate_text(mean.estimate, mean.low, mean.high),
                change,
                p_value,
                style=style,
            )
        screen.print(table)
    for reason in found.unreadable:
        echo(f"left out: {reason}", err=True)
    echo(f"page: {page}", err=True)
