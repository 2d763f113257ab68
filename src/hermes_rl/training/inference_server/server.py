"""The inference server beside a trainer, in its process and on its loop.

Always true: it listens on this machine only, unless it was given a token.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from hermes_rl.api.listening import listen, own_names, serving
from hermes_rl.training.inference_server.app import create_app
from hermes_rl.training.inference_server.settings import Formats, InferenceSettings
from hermes_rl.training.policy import Policy


@asynccontextmanager
async def inference_server(
    policy: Policy, formats: Formats, settings: InferenceSettings, *, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[str]:
    """The URL of a server over the policy, until the end; requests under way are then still answered."""
    names = own_names(host, settings.token, "--tinker.inference_token")
    app = create_app(policy, formats, replace(settings, hosts=names))
    with listen(host, port) as listening:
        async with serving(app, listening) as url:
            yield url
