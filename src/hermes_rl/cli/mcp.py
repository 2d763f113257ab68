"""`hermes-rl mcp` (Serve): serve the rl_* tools over MCP."""

import sys
from pathlib import Path

import click

from hermes_rl.console.output import echo, log_to_stderr
from hermes_rl.console.run_command import run_async
from hermes_rl.core import fast_json
from hermes_rl.core.secrets import is_literal


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
@click.option("--token", help="With --http: require this bearer token; env:NAME or file:PATH. [generated and printed]")
@click.option(
    "--allow-path",
    "allow_paths",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Let clients also load environments from this file or folder; repeatable. Over HTTP, other paths are refused.",
)
@click.option("--json", "as_json", is_flag=True, help="With --http: print {url, token} as one JSON object when ready.")
def mcp(http: bool, host: str, port: int, token: str | None, allow_paths: tuple[Path, ...], as_json: bool) -> None:
    """Serve the rl_* tools over MCP, so that an agent can configure, start, watch and stop training runs.

    Without options it speaks over standard input and output, for instance
    `claude mcp add hermes-rl -- hermes-rl mcp`. Runs continue when the client disconnects.
    """
    from hermes_rl.http.auth import require_token
    from hermes_rl.orchestration.discovery.allowed_files import AllowedFiles
    from hermes_rl.orchestration.mcp_server.transport import run_http, run_stdio

    # Standard output belongs to the protocol.
    log_to_stderr()
    allowed_files = AllowedFiles(tuple(path.expanduser().absolute() for path in allow_paths))
    if not http:
        if token is not None:
            raise click.UsageError("--token needs --http; standard input and output are reachable only by the client")
        # The client is a program of the same user, who could run any file without this server.
        run_async(run_stdio(allowed_files if allow_paths else None))
        return
    if token is not None and is_literal(token):
        echo(
            "warning: --token holds the token itself, which other users of this machine can see; use env:NAME", err=True
        )
    required = require_token(token, host)

    def ready(url: str) -> None:
        if as_json:
            echo(fast_json.dumps({"url": url, "token": None if token else required}).decode())
            sys.stdout.flush()
            return
        generated = "" if token else f"; token, generated for this run: {required}"
        echo(f"MCP server listening on {url}{generated}; press Ctrl-C to stop", err=True)

    run_async(run_http(host, port, required, allowed_files, ready))
