"""`hermes-rl sandbox check BACKEND`: run the conformance suite on a built-in or custom backend."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from hermes_rl.cli.progress import progress
from hermes_rl.console.live_display import console
from hermes_rl.console.output import echo
from hermes_rl.console.run_command import run_async
from hermes_rl.core import fast_json, yaml_text
from hermes_rl.core.errors import ConfigError
from hermes_rl.sandbox.backends.registry import make_backend, open_backend
from hermes_rl.sandbox.conformance.check import Check
from hermes_rl.sandbox.conformance.suite import (
    GROUPS,
    CheckOutcome,
    CheckResult,
    ConformanceReport,
    check_backend,
    select_checks,
)
from hermes_rl.sandbox.protocol import Backend

if TYPE_CHECKING:
    from rich.text import Text


@click.command()
@click.argument("backend")
@click.option("--setting", "settings", multiple=True, metavar="KEY=VALUE", help="Set a backend setting; repeatable.")
@click.option("--image", help="Start every sandbox from this image, for a backend that takes one.")
@click.option("--only", metavar="TEXT", help="Run only checks with this text in group, name or description.")
@click.option(
    "--patience", type=click.FloatRange(min=0.01), default=1.0, help="Multiply every deadline by this factor."
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
def check(
    backend: str, settings: Sequence[str], image: str | None, only: str | None, patience: float, as_json: bool
) -> int:
    """Check that BACKEND conforms to the sandbox protocol.

    BACKEND is a name of `hermes-rl sandbox list`, or your own: my_module:MyBackend or my_file.py:MyBackend. The exit
    code is 1 if a check fails. Checks of capabilities that the backend does not claim are counted separately.

    \b
    hermes-rl sandbox check bubblewrap
    hermes-rl sandbox check ssh --setting host=build.example.org --setting username=agent
    hermes-rl sandbox check docker --setting runtime=runsc --image debian:12-slim --patience 4
    """  # noqa: D301 - click's own mark for lines that are kept
    checks = select_checks(only)
    report = run_async(_check(backend, _settings(settings), image, only, patience, len(checks)))
    _show(report)
    if as_json:
        echo(fast_json.dumps(report.as_dict()))
    return 0 if report.passed else 1


async def _check(
    name: str, settings: dict[str, Any], image: str | None, only: str | None, patience: float, total: int
) -> ConformanceReport:
    backend = await _backend(name, settings)
    done = failed = 0
    with progress(f"check {name}", total) as shown:

        def show_check(check: Check, row: CheckResult | None) -> None:
            nonlocal done, failed
            if row is not None:
                done += 1
                failed += row.outcome == CheckOutcome.FAILED
            shown.show(done, f"{failed} failed  {check.description}" if failed else check.description)

        try:
            return await check_backend(backend, image=image, only=only, patience=patience, progress=show_check)
        finally:
            await backend.close()


async def _backend(name: str, settings: dict[str, Any]) -> Backend:
    if name == "auto":
        return await open_backend(name, settings)
    return make_backend(name, settings)


def _settings(given: Sequence[str]) -> dict[str, Any]:
    settings = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            raise ConfigError(f"--setting {text!r} is not KEY=VALUE, such as --setting port=2222")
        try:
            settings[key] = yaml_text.loads(value)
        except yaml_text.BadYamlError:
            settings[key] = value
    return settings


def _show(report: ConformanceReport) -> None:
    from rich.table import Table

    from hermes_rl.console.escaping_console import styled

    table = Table(title=f"sandbox check · {report.backend}", title_justify="left")
    for column in ("", "passed", "failed", "not claimed", "seconds"):
        table.add_column(column, justify="left" if not column else "right")
    for group in GROUPS:
        if rows := [row for row in report.rows if row.group == group.name]:
            table.add_row(group.name, *_counts(rows))
    table.add_section()
    table.add_row("all", *_counts(report.rows))
    screen = console()
    screen.print(table)
    for row in report.failures:
        screen.print(styled(("failed", "red"), f" {row.name}: {row.description}"), soft_wrap=True)
        screen.print(f"       {row.message}", soft_wrap=True)
    if report.failures:
        screen.print("docs/extending.md describes the protocol; run a single check with --only NAME.", soft_wrap=True)


def _counts(rows: Sequence[CheckResult]) -> list["str | Text"]:
    from hermes_rl.console.escaping_console import styled

    passed, failed, not_claimed = (
        sum(row.outcome == outcome for row in rows)
        for outcome in (CheckOutcome.PASSED, CheckOutcome.FAILED, CheckOutcome.NOT_CLAIMED)
    )
    red = styled((str(failed), "red")) if failed else ""
    return [str(passed), red, str(not_claimed or ""), f"{sum(row.seconds for row in rows):.1f}"]
