"""Runs the viewer until a signal."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

from hermes_rl.http.server import allowed_hosts, is_loopback, listen, serve
from hermes_rl.viewer.app import create_app
from hermes_rl.viewer.service import ViewerService
from hermes_rl.viewer.sources.source import RunAccess
from hermes_rl.viewer.token_text import TokenTexts


async def run_viewer(
    targets: Sequence[str],
    runs: RunAccess,
    *,
    host: str,
    port: int,
    ready: Callable[[str], None],
    tokenizer: Path | None = None,
) -> None:
    """Serve the targets; `ready` is called with the URL including the token. ConfigError when there is nothing."""
    token = secrets.token_urlsafe(24)
    # A server that other machines can reach has unknown host names; there the token alone protects it.
    hosts = allowed_hosts(host, None) if is_loopback(host) else None
    service = ViewerService(targets, runs, TokenTexts(tokenizer))
    try:
        with listen(host, port) as listening:
            await asyncio.to_thread(service.find)
            app = create_app(service, token=token, hosts=hosts, port=listening.getsockname()[1])
            await serve(app, listening, ready=lambda url: ready(f"{url}/?token={token}"))
    finally:
        await asyncio.to_thread(service.close)
