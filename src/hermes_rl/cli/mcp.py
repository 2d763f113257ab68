"""`hermes-rl mcp`: the ten tools for any client that speaks MCP."""

import logging
import sys

import click

from hermes_rl import jsontext
from hermes_rl.secrets import is_literal, resolved_key
from hermes_rl.terminal.running import on_a_loop


@click.command(context_settings={"show_default": True, "max_content_width": 110})
@click.option("--http", is_flag=True, help="Serve streamable HTTP instead of standard input and output.")
@click.option(
    "--host", default="127.0.0.1", help="With --http, where to listen. Anything but this machine needs --token."
)
@click.option(
    "--port",
    default=8010,
    type=click.IntRange(0, 65_535),
    help="With --http; 0 takes any that is free, and says which.",
)
@click.option("--token", help="With --http, what clients must send as `Authorization: Bearer`; env:NAME or file:PATH.")
@click.option("--json", "as_json", is_flag=True, help="With --http, print {url} as one JSON object when it is ready.")
def mcp(http: bool, host: str, port: int, token: str | None, as_json: bool) -> None:
    """Let an agent find, configure, start, watch and stop training runs, through the ten rl_* tools over MCP.

    Without options a client starts this as a program and speaks to it over standard input and output, for instance
    `claude mcp add hermes-rl -- hermes-rl mcp`. Runs go on when the client leaves.
    """
    from hermes_rl.runs.mcp_server.running import run_http, run_stdio

    # Standard output is the protocol's.
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING, stream=sys.stderr)
    if not http:
        if token is not None:
            raise click.UsageError("--token goes with --http; over standard input and output nobody else can call")
        on_a_loop(run_stdio())
        return
    if token is not None and is_literal(token):
        click.echo(
            "warning: --token holds the token itself, which other users of this machine can see; use env:NAME", err=True
        )

    def ready(url: str) -> None:
        if as_json:
            click.echo(jsontext.dumps({"url": url}).decode())
            sys.stdout.flush()
        else:
            click.echo(f"the MCP server listens on {url}; Ctrl-C ends it", err=True)

    on_a_loop(run_http(host, port, None if token is None else resolved_key(token, "--token"), ready))
