"""The routes that are answered here and not by SkyRL: health, models, steps, sessions that end, deletion."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import skyrl.tinker.api as upstream
from fastapi import APIRouter, Depends, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field
from skyrl.tinker import types
from skyrl.tinker.db_models import CheckpointDB, ModelDB
from sqlmodel import select
from sqlmodel.ext.asyncio.session import AsyncSession

from .ledger import checkpoint_path, ready_mark, remove

KINDS = {"weights": types.CheckpointType.TRAINING, "sampler_weights": types.CheckpointType.SAMPLER}

routes = APIRouter(prefix="/api/v1")
Database = Annotated[AsyncSession, Depends(upstream.get_session)]


class CreateModelRequest(upstream.CreateModelRequest):  # type: ignore[misc]
    model_seq_id: int | None = None


class AdamParams(upstream.AdamParams):  # type: ignore[misc]
    grad_clip_norm: float = Field(0.0, ge=0.0)


class OptimStepRequest(upstream.OptimStepRequest):  # type: ignore[misc]
    adam_params: AdamParams
    seq_id: int | None = None


class OptimStepInput(types.OptimStepInput):  # type: ignore[misc]
    grad_clip_norm: float


class SaveWeightsRequest(upstream.SaveWeightsRequest):  # type: ignore[misc]
    seq_id: int | None = None


class LoadWeightsRequest(upstream.LoadWeightsRequest):  # type: ignore[misc]
    seq_id: int | None = None


@routes.get("/healthz")
async def healthz(request: Request) -> Response:
    """503 until the engine takes requests."""
    state = request.app.state
    engine = state.background_engine
    mark = ready_mark(Path(state.engine_config.checkpoints_base))
    ready = engine.returncode is None and mark.exists() and mark.read_text() == str(engine.pid)
    return JSONResponse({"status": "ok" if ready else "starting"}, status_code=200 if ready else 503)


@routes.post("/create_model")
async def create_model(asked: CreateModelRequest, request: Request, database: Database) -> Any:
    served = request.app.state.engine_config.base_model
    if asked.base_model != served:
        # SkyRL would train the model it has, whatever name it is called by.
        raise HTTPException(400, f"this engine trains {served}, not {asked.base_model}")
    key = ("create_model", asked.session_id, asked.model_seq_id)
    return await request.app.state.once.answer(key, lambda: upstream.create_model(asked, database))


@routes.post("/optim_step")
async def optim_step(asked: OptimStepRequest, request: Request, database: Database) -> Any:
    async def submit() -> Any:
        await upstream.get_model(database, asked.model_id)
        number = await upstream.create_future(
            session=database,
            request_type=types.RequestType.OPTIM_STEP,
            model_id=asked.model_id,
            request_data=OptimStepInput(
                adam_params=asked.adam_params.to_types(), grad_clip_norm=asked.adam_params.grad_clip_norm
            ),
        )
        await database.commit()
        return upstream.FutureResponse(future_id=str(number), request_id=str(number))

    return await request.app.state.once.answer(("optim_step", asked.model_id, asked.seq_id), submit)


@routes.post("/save_weights")
async def save_weights(asked: SaveWeightsRequest, request: Request, database: Database) -> Any:
    key = ("save_weights", asked.model_id, asked.seq_id)
    with _taken_for_good():
        return await request.app.state.once.answer(key, lambda: upstream.save_weights(asked, database))


@routes.post("/save_weights_for_sampler")
async def save_weights_for_sampler(
    asked: upstream.SaveWeightsForSamplerRequest, request: Request, database: Database
) -> Any:
    key = ("save_weights_for_sampler", asked.model_id, asked.seq_id)
    with _taken_for_good():
        return await request.app.state.once.answer(key, lambda: upstream.save_weights_for_sampler(asked, database))


@routes.post("/load_weights")
async def load_weights(asked: LoadWeightsRequest, request: Request, database: Database) -> Any:
    key = ("load_weights", asked.model_id, asked.seq_id)
    return await request.app.state.once.answer(key, lambda: upstream.load_weights(asked, request, database))


@routes.post("/sessions/{session_id}/finish")
async def finish_session(session_id: str, database: Database) -> Response:
    """What a client says when it ends well; its models need not be waited for."""
    models = select(ModelDB).where(ModelDB.session_id == session_id, ModelDB.status != "unloaded")
    for model in (await database.exec(models)).all():
        await upstream.unload_model(upstream.UnloadModelRequest(model_id=model.model_id), database)
    return Response(status_code=204)


@routes.delete("/training_runs/{model_id}/checkpoints/{kind}/{checkpoint_id}")
async def delete_checkpoint(
    model_id: str, kind: str, checkpoint_id: str, request: Request, database: Database
) -> Response:
    """Gone afterwards, whether or not it was there."""
    if kind not in KINDS:
        raise HTTPException(404, f"checkpoints are {' or '.join(KINDS)}, not {kind}")
    row = await database.get(CheckpointDB, (model_id, checkpoint_id, KINDS[kind]))
    if row is not None:
        await database.delete(row)
        await database.commit()
        checkpoints = Path(request.app.state.engine_config.checkpoints_base)
        remove(checkpoint_path(checkpoints, model_id, checkpoint_id, KINDS[kind]))
    return Response(status_code=204)


@contextmanager
def _taken_for_good() -> Iterator[None]:
    """A name that is taken stays taken, but after a 409 the SDK would go on asking for it, for five minutes."""
    try:
        yield
    except HTTPException as error:
        if error.status_code != 409:
            raise
        raise HTTPException(400, error.detail) from None
