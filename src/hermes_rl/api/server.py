"""The API as a process of its own, from here until a signal ends it."""

from collections.abc import Callable
from dataclasses import replace

from hermes_rl.api.app import create_app
from hermes_rl.api.listening import listen, own_names, serve
from hermes_rl.api.settings import ApiSettings
from hermes_rl.store.database.store import open_store


def guarded(settings: ApiSettings, host: str) -> ApiSettings:
    """The settings for listening on this host; ConfigError when others could reach it without a token."""
    return settings if settings.token is not None else replace(settings, hosts=own_names(host, None))


async def run_api(address: str, settings: ApiSettings, *, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve the store at this address; `ready` is told the URL."""
    settings = guarded(settings, host)
    with listen(host, port) as listening:
        async with open_store(address) as store:
            await serve(create_app(store, settings), listening, ready=ready)
