"""The MCP server on a transport: a program that a client starts and speaks to over its pipes, or a server over HTTP.

Always true: over stdio, standard output holds the protocol alone; over HTTP, what others can reach has a token.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hermes_rl.api.door import Door
from hermes_rl.api.listening import listen, own_names, serve
from hermes_rl.errors import ConfigError
from hermes_rl.runs.mcp_server.server import rl_server
from hermes_rl.runs.mcp_server.sessions import PREFIX, fresh_session, session_of
from hermes_rl.runs.places import drafts_home
from hermes_rl.runs.rl_tools.drafts import forget_session

if TYPE_CHECKING:
    from mcp.server import ServerRequestContext

# A draft that no client came back to for so long is gone.
KEPT_DRAFTS = 7 * 86_400.0
PATH = "/mcp"


@dataclass(frozen=True, slots=True)
class _Guard:
    token: str | None
    hosts: frozenset[str] | None


async def run_stdio() -> None:
    """Until the client closes its end. The client is the session, and its draft is gone with it."""
    _require_sdk()
    from mcp.server.stdio import stdio_server

    forget_old_drafts()
    own = fresh_session()
    server = rl_server(lambda _: own)
    try:
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())
    finally:
        forget_session(own)


async def run_http(host: str, port: int, token: str | None, ready: Callable[[str], None]) -> None:
    """Until a signal ends it; `ready` is told the address."""
    _require_sdk()
    from mcp.server.transport_security import TransportSecuritySettings

    guard = _Guard(token, own_names(host, token))
    forget_old_drafts()
    server = rl_server(_session_over_http, names_drafts=True)
    # The door looks at Host and Origin itself, for servers with a token as for those without.
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    await serve(Door(app, guard, always_open=frozenset()), listen(host, port), ready=lambda url: ready(f"{url}{PATH}"))


def forget_old_drafts(now: float | None = None) -> None:
    """Remove the drafts of clients that never came back."""
    oldest = (time.time() if now is None else now) - KEPT_DRAFTS
    for path in drafts_home().glob(f"{PREFIX}*"):
        try:
            if path.stat().st_mtime < oldest:
                path.unlink(missing_ok=True)
        except FileNotFoundError:
            continue


def _session_over_http(context: "ServerRequestContext[Any]") -> str | None:
    headers = getattr(context.request, "headers", {})
    given = headers.get("mcp-session-id")
    return None if given is None else session_of(given)


def _require_sdk() -> None:
    try:
        import mcp  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"the MCP server needs the MCP SDK: pip install 'hermes-rl[mcp]' ({error})") from None
