"""The MCP server over stdio, as a client's child process, or over HTTP.

Always true: over stdio, standard output carries only the protocol; over HTTP, a reachable address requires a token.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hermes_rl.core.errors import ConfigError
from hermes_rl.http.auth import AuthMiddleware
from hermes_rl.http.server import allowed_hosts, listen, serve
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
    token: str | None
    hosts: frozenset[str] | None


async def run_stdio() -> None:
    """Serve until the client closes the connection; its draft is then deleted."""
    _require_sdk()
    from mcp.server.stdio import stdio_server

    delete_old_drafts()
    session = new_session()
    server = rl_server(lambda _: session)
    try:
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())
    finally:
        delete_session(session)


async def run_http(host: str, port: int, token: str | None, ready: Callable[[str], None]) -> None:
    """Serve until a signal; `ready` is called with the URL."""
    _require_sdk()
    from mcp.server.transport_security import TransportSecuritySettings

    auth = _AuthSettings(token, allowed_hosts(host, token))
    delete_old_drafts()
    server = rl_server(_session_over_http, names_drafts=True)
    # AuthMiddleware checks Host and Origin, with or without a token.
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    await serve(
        AuthMiddleware(app, auth, always_open=frozenset()), listen(host, port), ready=lambda url: ready(f"{url}{PATH}")
    )


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
