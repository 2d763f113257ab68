"""The MCP server over stdio, as a client's child process, or over HTTP.

Always true: over stdio, standard output carries only the protocol; over HTTP, every request needs the token, and
clients load only files in known folders.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hermes_rl.core.errors import ConfigError
from hermes_rl.http.auth import AuthMiddleware
from hermes_rl.http.server import listen, serve
from hermes_rl.orchestration.discovery.allowed_files import AllowedFiles
from hermes_rl.orchestration.mcp_server.draft_choice import PREFIX, hashed_session, new_session
from hermes_rl.orchestration.mcp_server.server import rl_server
from hermes_rl.orchestration.rl_tools.session_draft import delete_session
from hermes_rl.orchestration.run_paths import drafts_home

if TYPE_CHECKING:
    from mcp.server import ServerRequestContext

# Drafts unused for this long are deleted.
DRAFT_TTL = 7 * 86_400.0
PATH = "/mcp"


@dataclass(frozen=True, slots=True)
class _AuthSettings:
    token: str
    hosts: None = None


async def run_stdio(allowed_files: AllowedFiles | None = None) -> None:
    """Serve until the client closes the connection; its draft is then deleted."""
    _require_sdk()
    from mcp.server.stdio import stdio_server

    delete_old_drafts()
    session = new_session()
    server = rl_server(lambda _: session, allowed_files=allowed_files)
    try:
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())
    finally:
        delete_session(session)


async def run_http(host: str, port: int, token: str, allowed_files: AllowedFiles, ready: Callable[[str], None]) -> None:
    """Serve until a signal; `ready` is called with the URL."""
    _require_sdk()
    from mcp.server.transport_security import TransportSecuritySettings

    delete_old_drafts()
    server = rl_server(_session_over_http, names_drafts=True, allowed_files=allowed_files)
    # A web page does not know the token, so Host and Origin need no check.
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    guarded = AuthMiddleware(app, _AuthSettings(token), always_open=frozenset())
    await serve(guarded, listen(host, port), ready=lambda url: ready(f"{url}{PATH}"))


def delete_old_drafts(now: float | None = None) -> None:
    """Delete the drafts of clients that never came back."""
    oldest = (time.time() if now is None else now) - DRAFT_TTL
    for path in drafts_home().glob(f"{PREFIX}*"):
        try:
            if path.stat().st_mtime < oldest:
                path.unlink(missing_ok=True)
        except FileNotFoundError:
            continue


def _session_over_http(context: "ServerRequestContext[Any]") -> str | None:
    headers = getattr(context.request, "headers", {})
    session_id = headers.get("mcp-session-id")
    return None if session_id is None else hashed_session(session_id)


def _require_sdk() -> None:
    try:
        import mcp  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"the MCP server needs the MCP SDK: pip install 'hermes-rl[mcp]' ({error})") from None
