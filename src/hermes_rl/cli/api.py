"""`hermes-rl api`: the trajectory API, from here until it is stopped."""

import logging
from dataclasses import replace
from pathlib import Path

import click

from hermes_rl import jsontext
from hermes_rl.home import rl_home
from hermes_rl.secrets import is_literal, resolved_key
from hermes_rl.store.database.groups import Retention
from hermes_rl.terminal.running import on_a_loop, warn
from hermes_rl.terminal.sections import TRACE
from hermes_rl.tracing.opening import Tracing, traced

DAY = 86_400.0
GIGABYTE = 10**9


@click.command(context_settings={"show_default": True, "max_content_width": 110})
@click.option("--host", default="127.0.0.1", help="Where to listen. Anything but this machine needs --token.")
@click.option("--port", default=8000, type=click.IntRange(0, 65_535), help="0 takes any that is free, and says which.")
@click.option(
    "--database",
    help="A SQLite file, or postgresql://USER@HOST/NAME. Several APIs may share one PostgreSQL. env:NAME and file:PATH "
    "stand for what they hold.",
    show_default="trajectories.db in the home of hermes-rl",
)
@click.option("--token", help="What callers must send as `Authorization: Bearer`; env:NAME or file:PATH.")
@click.option("--max-queued", default=1_000_000, type=click.IntRange(1), help="Rollouts that may wait for a trainer.")
@click.option("--max-body", default=256, type=click.IntRange(1), help="The largest group that is taken, in megabytes.")
@click.option("--keep-days", type=click.FloatRange(0), help="Let go of tokens so long after their group was used.")
@click.option("--keep-gigabytes", type=click.FloatRange(0), help="Let go of the oldest used tokens beyond this size.")
@click.option("--trace", metavar="URL", help=TRACE)
@click.option("--json", "as_json", is_flag=True, help="Print {url, database} as one JSON object when it is ready.")
def api(
    host: str,
    port: int,
    database: str | None,
    token: str | None,
    max_queued: int,
    max_body: int,
    keep_days: float | None,
    keep_gigabytes: float | None,
    trace: str | None,
    as_json: bool,
) -> None:
    """Take finished groups from environments and lend them to trainers.

    Groups are on disk before they are answered for, come out oldest first, and are trained on once. Environments and
    trainers made for Atropos' run-api work here too. Rows of rollouts stay; --keep-* lets go of their tokens.
    """
    from hermes_rl.api.server import run_api
    from hermes_rl.api.settings import MEGABYTE, ApiSettings

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    if token is not None and is_literal(token):
        click.echo(
            "warning: --token holds the token itself, which other users of this machine can see; use env:NAME", err=True
        )
    address = resolved_key(database, "--database") if database else str(rl_home() / "trajectories.db")
    settings = ApiSettings(
        token=None if token is None else resolved_key(token, "--token"),
        max_queued=max_queued,
        max_body=max_body * MEGABYTE,
    )
    settings = replace(settings, max_bodies=max(settings.max_bodies, 2 * settings.max_body))
    if keep_days is not None or keep_gigabytes is not None:
        settings = replace(
            settings,
            retention=Retention(
                seconds=None if keep_days is None else keep_days * DAY,
                bytes=None if keep_gigabytes is None else int(keep_gigabytes * GIGABYTE),
            ),
        )

    def ready(url: str) -> None:
        where = shown(address)
        if as_json:
            click.echo(jsontext.dumps({"url": url, "database": where}).decode())
        else:
            click.echo(f"the trajectory API listens on {url}, over {where}; Ctrl-C ends it", err=True)

    with traced(Tracing.of(trace), "api", {}, report=warn):
        on_a_loop(run_api(address, settings, host=host, port=port, ready=ready))


def shown(address: str) -> str:
    """The address without the password it may hold."""
    scheme, mark, rest = address.partition("://")
    if not mark:
        return str(Path(address))
    account, at, place = rest.rpartition("@")
    return f"{scheme}://{account.partition(':')[0]}{at}{place}"
