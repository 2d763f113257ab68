"""`hermes-rl sandbox check BACKEND`: the conformance suite, on our backends and on anybody's."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import yaml

from hermes_rl import jsontext
from hermes_rl.cli.progress import progress
from hermes_rl.errors import ConfigError
from hermes_rl.sandbox.backends import make_backend, open_backend
from hermes_rl.sandbox.conformance.check import Check
from hermes_rl.sandbox.conformance.suite import GROUPS, Outcome, Report, Row, check_backend, selected
from hermes_rl.sandbox.protocol import Backend
from hermes_rl.terminal.running import on_a_loop
from hermes_rl.terminal.screen import console


@click.command()
@click.argument("backend")
@click.option("--setting", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the backend; repeatable.")
@click.option("--image", help="Image that every sandbox starts from, for a backend that takes one.")
@click.option("--only", metavar="TEXT", help="Only the checks with this text in their group, name or description.")
@click.option("--patience", type=click.FloatRange(min=0.01), default=1.0, help="Stretch every deadline by this factor.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
def check(
    backend: str, settings: Sequence[str], image: str | None, only: str | None, patience: float, as_json: bool
) -> int:
    """Try every promise of the sandbox protocol on BACKEND.

    BACKEND is a name that `hermes-rl sandbox list` shows, or a backend of your own: my_module:MyBackend or
    my_file.py:MyBackend. The exit status is 1 when a check fails. A capability that the backend does not claim is
    counted apart.

    \b
    hermes-rl sandbox check bubblewrap
    hermes-rl sandbox check ssh --setting host=build.example.org --setting username=agent
    hermes-rl sandbox check docker --setting runtime=runsc --image debian:12-slim --patience 4
    """  # noqa: D301 - click's own mark for lines that are kept
    checks = selected(only)
    report = on_a_loop(_check(backend, _settings(settings), image, only, patience, len(checks)))
    _show(report)
    if as_json:
        click.echo(jsontext.dumps(report.as_dict()))
    return 0 if report.passed else 1


async def _check(
    name: str, settings: dict[str, Any], image: str | None, only: str | None, patience: float, total: int
) -> Report:
    backend = await _backend(name, settings)
    done = failed = 0
    with progress(f"check {name}", total) as shown:

        def tell(one: Check, row: Row | None) -> None:
            nonlocal done, failed
            if row is not None:
                done += 1
                failed += row.outcome == Outcome.FAILED
            shown.show(done, f"{failed} failed  {one.description}" if failed else one.description)

        try:
            return await check_backend(backend, image=image, only=only, patience=patience, progress=tell)
        finally:
            await backend.close()


async def _backend(name: str, settings: dict[str, Any]) -> Backend:
    if name == "auto":
        return await open_backend(name, settings)
    place, colon, attribute = name.partition(":")
    if not colon:
        return make_backend(name, settings)
    make: Callable[..., Backend] = _attribute(place, attribute)
    try:
        return make(**settings)
    except TypeError as error:
        raise ConfigError(f"{name} cannot be made: {error}; give its arguments by --setting KEY=VALUE") from error


def _attribute(place: str, attribute: str) -> Any:
    """A class of a file, or of a module that can be imported from here."""
    try:
        if place.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(place).stem, place)
            if spec is None or spec.loader is None or not Path(place).is_file():
                raise ConfigError(f"there is no file {place}")
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            # As `python -m` has it: a module beside the user can be named.
            sys.path.insert(0, str(Path.cwd()))
            module = importlib.import_module(place)
    except ImportError as error:
        raise ConfigError(
            f"the module {place!r} cannot be imported: {error}; run this where `python -c 'import {place}'` works, or "
            "name a file: my_file.py:MyBackend"
        ) from error
    if not hasattr(module, attribute):
        raise ConfigError(f"{place} has no {attribute!r}")
    return getattr(module, attribute)


def _settings(given: Sequence[str]) -> dict[str, Any]:
    settings = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            raise ConfigError(f"--setting {text!r} is not KEY=VALUE, as in --setting port=2222")
        try:
            settings[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            settings[key] = value
    return settings


def _show(report: Report) -> None:
    from rich.markup import escape
    from rich.table import Table

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
        screen.print(f"[red]failed[/red] {row.name}: {escape(row.description)}", soft_wrap=True)
        screen.print(f"       {escape(row.message)}", soft_wrap=True)
    if report.failures:
        screen.print("docs/backends.md describes the protocol; --only NAME tries a check alone.", soft_wrap=True)


def _counts(rows: Sequence[Row]) -> list[str]:
    passed, failed, not_claimed = (
        sum(row.outcome == outcome for row in rows) for outcome in (Outcome.PASSED, Outcome.FAILED, Outcome.NOT_CLAIMED)
    )
    red = f"[red]{failed}[/red]" if failed else ""
    return [str(passed), red, str(not_claimed or ""), f"{sum(row.seconds for row in rows):.1f}"]
