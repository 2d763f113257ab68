"""The inference server as one application over one policy: its routes, and the door before them."""

from fastapi import FastAPI
from starlette.middleware import Middleware

from hermes_rl.api.door import Door, SmallBodies
from hermes_rl.api.measures import Measured, Requests
from hermes_rl.api.traced import traced
from hermes_rl.training.coalescing import Coalesced
from hermes_rl.training.inference_server.drawing import Drawing
from hermes_rl.training.inference_server.measures import Tally
from hermes_rl.training.inference_server.problems import add_handlers, turned_away
from hermes_rl.training.inference_server.routes.chat import chat_routes
from hermes_rl.training.inference_server.routes.completions import completion_routes
from hermes_rl.training.inference_server.routes.logprobs import logprob_routes
from hermes_rl.training.inference_server.routes.sglang_form import sglang_routes
from hermes_rl.training.inference_server.routes.vllm_form import vllm_routes
from hermes_rl.training.inference_server.routes.watching import watching_routes
from hermes_rl.training.inference_server.settings import Formats, InferenceSettings
from hermes_rl.training.policy import Policy
from hermes_rl.version import __version__

# For whoever watches over the process.
OPEN = frozenset({"/health", "/ping"})


def create_app(policy: Policy, formats: Formats, settings: InferenceSettings) -> FastAPI:
    """The server over a policy, which outlives it."""
    requests, tally = Requests(), Tally()
    joined = Coalesced(policy, settings.window)
    drawing = Drawing(joined, settings, tally)
    app = FastAPI(
        title="hermes-rl inference",
        version=__version__,
        # Of pages that would load scripts from elsewhere there is none.
        docs_url=None,
        redoc_url=None,
        middleware=[
            *traced(),
            Middleware(Measured, requests),
            Middleware(Door, settings, turned_away, OPEN),
            Middleware(SmallBodies, frozenset(), settings.max_body),
        ],
    )
    add_handlers(app)
    for routes in (chat_routes, completion_routes, vllm_routes, sglang_routes, logprob_routes):
        app.include_router(routes(drawing, formats))
    app.include_router(watching_routes(joined, settings, requests, tally))
    return app
