"""`hermes-rl mcp`: the ten rl_* tools over MCP."""

import sys

import click

from hermes_rl.console.output import echo, log_to_stderr
from hermes_rl.console.run_command import run_async
from hermes_rl.core import fast_json
from hermes_rl.core.secrets import is_literal, resolve_key


@click.command(context_settings={"show_default": True, "max_content_width": 110})
@click.option("--http", is_flag=True, help="Serve streamable HTTP instead of standard input and output.")
@click.option(
    "--host", default="127.0.0.1", help="With --http: listen on this address. Other than loopback needs --token."
)
@click.option(
    "--port",
    default=8010,
    type=click.IntRange(0, 65_535),
    help="With --http: listen on this port; 0 picks a free one.",
)
@click.option("--token", help="With --http: require this bearer token; env:NAME or file:PATH.")
@click.option("--json", "as_json", is_flag=True, help="With --http: print {url} as one JSON object when ready.")
def mcp(http: bool, host: str, port: int, token: str | None, as_json: bool) -> None:
    """Serve the ten rl_* tools over MCP, so that an agent can configure, start, watch and stop training runs.

    Without options it speaks over standard input and output, for instance
    `claude mcp add hermes-rl -- hermes-rl mcp`. Runs continue when the client disconnects.
    """
    from hermes_rl.orchestration.mcp_server.transport import run_http, run_stdio

    # Standard output belongs to the protocol.
    log_to_stderr()
    if not http:
        if token is not None:
            raise click.UsageError("--token needs --http; standard input and output are reachable only by the client")
        run_async(run_stdio())
        return
    if token is not None and is_literal(token):
        echo(
            "warning: --token holds the token itself, which other users of this machine can see; use env:NAME", err=True
        )

    def ready(url: str) -> None:
        if as_json:
            echo(fast_json.dumps({"url": url}).decode())
            sys.stdout.flush()
        else:
            echo(f"MCP server listening on {url}; press Ctrl-C to stop", err=True)

    run_async(run_http(host, port, None if token is None else resolve_key(token, "--token"), ready))
