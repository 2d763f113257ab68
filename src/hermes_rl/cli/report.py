"""`hermes-rl report RUN|FILE|FOLDER…` (Look): write a run, an evaluation or groups as one self-contained HTML file."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click

from hermes_rl.cli.progress import ProgressSteps, progress
from hermes_rl.console.live_display import console
from hermes_rl.console.output import echo
from hermes_rl.core import fast_json
from hermes_rl.core.secrets import resolve_key


@click.command(context_settings={"max_content_width": 110})
@click.argument("targets", nargs=-1, required=True, metavar="RUN|FILE|FOLDER|ADDRESS…")
@click.option(
    "-o",
    "--output",
    "out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write this HTML file. [FILE.html, FOLDER/report.html, RUN.html; report.html for several]",
)
@click.option(
    "--groups",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Include this many groups of each source.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def report(targets: tuple[str, ...], out: Path | None, groups: int, as_json: bool) -> None:
    """Write a self-contained HTML report of a run, an evaluation or a file of groups.

    The report has the pages of `hermes-rl view` and needs no network or server. Its groups are sampled evenly from the
    source; figures and curves cover all groups. Two evaluations are compared.
    """
    from hermes_rl.cli.last import targets_with_last
    from hermes_rl.cli.run_access import viewed_runs
    from hermes_rl.viewer.report.builder import write_report

    targets = targets_with_last(targets)
    addresses = [
        resolve_key(target, "ADDRESS") if target.startswith(("env:", "file:")) else target for target in targets
    ]
    with _bars() as show:
        made = write_report(addresses, viewed_runs(), out or _default_path(targets), groups=groups, on_step=show)
    screen = console()
    screen.print(f"{made.groups_held:,} of {made.groups:,} groups, {made.bytes / 1e6:.1f} MB", soft_wrap=True)
    screen.print(f"written: {made.path}", soft_wrap=True)
    if as_json:
        echo(fast_json.dumps({**made._asdict(), "path": str(made.path)}))


@contextmanager
def _bars() -> Iterator[Callable[[str, int, int], None]]:
    """One progress bar per stage."""
    now: tuple[str, int] | None = None
    steps: ProgressSteps | None = None
    with ExitStack() as bar:

        def show(what: str, done: int, total: int) -> None:
            nonlocal now, steps
            if steps is None or now != (what, total):
                bar.close()
                now, steps = (what, total), bar.enter_context(progress(what, total))
            steps.show(done, "")

        yield show


def _default_path(targets: tuple[str, ...]) -> Path:
    [first, *others] = targets
    path = Path(first)
    if others or not path.exists():
        run = first if not others and path.name == first and ":" not in first else "report"
        return Path(f"{run}.html")
    return path / "report.html" if path.is_dir() else path.with_suffix(".html")
