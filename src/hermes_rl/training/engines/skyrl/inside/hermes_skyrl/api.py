"""SkyRL's API process: upstream's routes, with some overridden here.

Always true: it listens on an inherited socket, is healthy only while its engine takes requests, and reports failed
requests in the form that the SDK expects.
"""

import argparse
import os
import socket
import sys
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import skyrl.tinker.api as upstream
import uvicorn
from fastapi import FastAPI
from skyrl.tinker.config import EngineConfig, add_model, config_to_argv

from .idempotency import RequestCache
from .recovery import engine_lock, ready_file, recover
from .results import ResultWaiter
from .routes import routes
from .wire_routes import wire_routes


def run_api(arguments: list[str], without: Collection[str], listen: int, max_length: int | None) -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_model(parser, EngineConfig)
    config = EngineConfig.model_validate(vars(parser.parse_args(arguments)))
    checkpoints = Path(config.checkpoints_base)
    with engine_lock(checkpoints):
        ready_file(checkpoints).unlink(missing_ok=True)
        recover(config.database_url, checkpoints)
    if "command" not in without:
        # SkyRL expects to be started by `uv run`, and starts its engine the same way.
        flags = [flag for fix in without for flag in ("--without", fix)]
        upstream._build_uv_run_cmd_engine = lambda _parent, config: [  # noqa: SLF001
            *(sys.executable, "-P", "-m", __package__, "engine", "--parent", str(os.getpid()), *flags),
            *config_to_argv(config),
        ]
    app = application(config, without)
    app.state.max_length = max_length
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=2))
    server.run(sockets=[socket.socket(fileno=listen)])


def application(config: Any, without: Collection[str]) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with upstream.lifespan(upstream.app), ResultWaiter(config.database_url) as results:
            upstream.app.state.results, upstream.app.state.request_cache = results, RequestCache()
            yield

    app = FastAPI(lifespan=lifespan)
    # Upstream's functions read their database and settings from this state.
    app.state = upstream.app.state
    app.state.engine_config = config
    app.include_router(routes)
    if "wire" not in without:
        app.include_router(wire_routes)
    app.mount("/", upstream.app)
    return app
