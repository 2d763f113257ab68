"""The viewer as a process: from here until a signal ends it."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

from hermes_rl.api.listening import is_loopback, listen, own_names, serve
from hermes_rl.viewer.app import create_app
from hermes_rl.viewer.desk import Desk
from hermes_rl.viewer.pieces import Pieces
from hermes_rl.viewer.sources.source import Runs


async def run_viewer(
    targets: Sequence[str],
    runs: Runs,
    *,
    host: str,
    port: int,
    ready: Callable[[str], None],
    tokenizer: Path | None = None,
) -> None:
    """Serve what the targets name; `ready` is told the address with its token. ConfigError when there is nothing."""
    token = secrets.token_urlsafe(24)
    # A socket that others can reach is called by names we cannot know; there the token alone decides.
    hosts = own_names(host, None) if is_loopback(host) else None
    desk = Desk(targets, runs, Pieces(tokenizer))
    try:
        with listen(host, port) as listening:
            await asyncio.to_thread(desk.find)
            app = create_app(desk, token=token, hosts=hosts, port=listening.getsockname()[1])
            await serve(app, listening, ready=lambda url: ready(f"{url}/?token={token}"))
    finally:
        await asyncio.to_thread(desk.close)
