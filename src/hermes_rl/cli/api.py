"""`hermes-rl api` (Serve): run the trajectory API: groups from environments in, batches for trainers out."""

from dataclasses import replace
from pathlib import Path

import click

from hermes_rl.console.config_options import TRACE
from hermes_rl.console.live_display import warn
from hermes_rl.console.output import echo, log_to_stderr
from hermes_rl.console.run_command import run_async
from hermes_rl.core import fast_json
from hermes_rl.core.paths import rl_home
from hermes_rl.core.redaction import has_password
from hermes_rl.core.secrets import is_literal, resolve_key
from hermes_rl.store.database.groups import Retention
from hermes_rl.tracing.setup import Tracing, traced

DAY = 86_400.0
GIGABYTE = 10**9


@click.command(context_settings={"show_default": True, "max_content_width": 110})
@click.option("--host", default="127.0.0.1", help="Listen on this address. Other than loopback needs --token.")
@click.option("--port", default=8000, type=click.IntRange(0, 65_535), help="Listen on this port; 0 picks a free one.")
@click.option(
    "--database",
    help="Store groups in this SQLite file or postgresql://USER@HOST/NAME; also env:NAME or file:PATH. "
    "Several APIs may share one PostgreSQL.",
    show_default="trajectories.db in the hermes-rl home",
)
@click.option("--token", help="Require this bearer token; env:NAME or file:PATH.")
@click.option("--max-queued", default=1_000_000, type=click.IntRange(1), help="Limit the queue to this many rollouts.")
@click.option("--max-body", default=256, type=click.IntRange(1), help="Limit the size of a posted group, in MiB.")
@click.option("--keep-days", type=click.FloatRange(0), help="Delete tokens this many days after their group was used.")
@click.option(
    "--keep-gigabytes", type=click.FloatRange(0), help="Delete the oldest used tokens beyond this size, in GB."
)
@click.option("--trace", metavar="URL", help=TRACE)
@click.option("--json", "as_json", is_flag=True, help="Print {url, database} as one JSON object when ready.")
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
    """Run the trajectory API: environments post groups, trainers lease batches.

    A group is on disk before its post is answered. Batches come out oldest first, and each is trained on once. Also
    serves environments and trainers of Atropos' run-api. --keep-* deletes tokens, but keeps the rows of rollouts.
    """
    from hermes_rl.api.config import MEGABYTE, ApiSettings
    from hermes_rl.api.server import run_api

    log_to_stderr()
    if token is not None and is_literal(token):
        echo(
            "warning: --token holds the token itself, which other users of this machine can see; use env:NAME", err=True
        )
    if database is not None and is_literal(database) and has_password(database):
        warn("--database holds a password, which other users of this machine can see; use env:NAME or file:PATH")
    address = resolve_key(database, "--database") if database else str(rl_home() / "trajectories.db")
    settings = ApiSettings(
        token=None if token is None else resolve_key(token, "--token"),
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
        location = redact_address(address)
        if as_json:
            echo(fast_json.dumps({"url": url, "database": location}).decode())
        else:
            echo(f"trajectory API listening on {url}, database {location}; press Ctrl-C to stop", err=True)

    with traced(Tracing.from_option(trace), "api", {}, report=warn):
        run_async(run_api(address, settings, host=host, port=port, ready=ready))


def redact_address(address: str) -> str:
    """The address without its password."""
    scheme, separator, rest = address.partition("://")
    if not separator:
        return str(Path(address))
    account, at, host = rest.rpartition("@")
    return f"{scheme}://{account.partition(':')[0]}{at}{host}"
