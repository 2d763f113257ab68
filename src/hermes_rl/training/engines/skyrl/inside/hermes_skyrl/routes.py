"""Routes that replace SkyRL's: health, models, steps, checkpoints, end of session."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import skyrl.tinker.api as upstream
from fastapi import APIRouter, Depends, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field
from skyrl.tinker import types
from skyrl.tinker.db_models import CheckpointDB, CheckpointStatus, ModelDB, SessionDB
from sqlmodel import select
from sqlmodel.ext.asyncio.session import AsyncSession

from .adapter_archive import adapter_settings
from .recovery import atomic_path, checkpoint_path, ready_file, remove

# The session of uploaded adapters, which no client has.
ADAPTERS = "session_adapters"
# Those of SkyRL that its JAX backend has, as our own trainer sends them.
LOSSES = ["cispo", "cross_entropy", "importance_sampling", "ppo"]
KINDS = {"weights": types.CheckpointType.TRAINING, "sampler_weights": types.CheckpointType.SAMPLER}

routes = APIRouter(prefix="/api/v1")
Database = Annotated[AsyncSession, Depends(upstream.get_session)]


class CreateModelRequest(upstream.CreateModelRequest):  # type: ignore[misc]
    model_seq_id: int | None = None


class AdamParams(upstream.AdamParams):  # type: ignore[misc]
    grad_clip_norm: float = Field(default=0.0, ge=0.0)


class OptimStepRequest(upstream.OptimStepRequest):  # type: ignore[misc]
    adam_params: AdamParams
    seq_id: int | None = None


class OptimStepInput(types.OptimStepInput):  # type: ignore[misc]
    grad_clip_norm: float


class SaveWeightsRequest(upstream.SaveWeightsRequest):  # type: ignore[misc]
    seq_id: int | None = None


class LoadWeightsRequest(upstream.LoadWeightsRequest):  # type: ignore[misc]
    seq_id: int | None = None
    optimizer: bool = True


class LoadWeightsInput(types.LoadWeightsInput):  # type: ignore[misc]
    optimizer: bool


@routes.get("/healthz")
async def healthz(request: Request) -> Response:
    """503 until the engine takes requests."""
    state = request.app.state
    engine = state.background_engine
    mark = ready_file(Path(state.engine_config.checkpoints_base))
    ready = engine.returncode is None and mark.exists() and mark.read_text() == str(engine.pid)
    return JSONResponse({"status": "ok" if ready else "starting"}, status_code=200 if ready else 503)


@routes.get("/get_server_capabilities")
async def get_server_capabilities(request: Request) -> Any:
    state = request.app.state
    model = {"model_name": state.engine_config.base_model, "max_context_length": state.max_length}
    return {"supported_models": [model | {"trainable": True, "sampleable": True}], "losses": LOSSES}


@routes.post("/create_model")
async def create_model(body: CreateModelRequest, request: Request, database: Database) -> Any:
    served = request.app.state.engine_config.base_model
    if body.base_model != served:
        # SkyRL ignores the name and would train the model it has.
        raise HTTPException(400, f"this engine trains {served}, not {body.base_model}")
    key = ("create_model", body.session_id, body.model_seq_id)
    return await request.app.state.request_cache.answer(key, lambda: upstream.create_model(body, database))


@routes.post("/optim_step")
async def optim_step(body: OptimStepRequest, request: Request, database: Database) -> Any:
    async def submit() -> Any:
        await upstream.get_model(database, body.model_id)
        number = await upstream.create_future(
            session=database,
            request_type=types.RequestType.OPTIM_STEP,
            model_id=body.model_id,
            request_data=OptimStepInput(
                adam_params=body.adam_params.to_types(), grad_clip_norm=body.adam_params.grad_clip_norm
            ),
        )
        await database.commit()
        return upstream.FutureResponse(future_id=str(number), request_id=str(number))

    return await request.app.state.request_cache.answer(("optim_step", body.model_id, body.seq_id), submit)


@routes.post("/save_weights")
async def save_weights(body: SaveWeightsRequest, request: Request, database: Database) -> Any:
    key = ("save_weights", body.model_id, body.seq_id)
    with _conflict_is_final():
        return await request.app.state.request_cache.answer(key, lambda: upstream.save_weights(body, database))


@routes.post("/save_weights_for_sampler")
async def save_weights_for_sampler(
    body: upstream.SaveWeightsForSamplerRequest, request: Request, database: Database
) -> Any:
    key = ("save_weights_for_sampler", body.model_id, body.seq_id)
    with _conflict_is_final():
        return await request.app.state.request_cache.answer(
            key, lambda: upstream.save_weights_for_sampler(body, database)
        )


@routes.post("/load_weights")
async def load_weights(body: LoadWeightsRequest, request: Request, database: Database) -> Any:
    path = types.TinkerPath.parse(body.path)
    if path is None or path.kind != "weights":
        raise HTTPException(400, f"{body.path} is not a training state; it must be like tinker://MODEL/weights/NAME")

    async def submit() -> Any:
        await upstream.get_model(database, body.model_id)
        kind = types.CheckpointType.TRAINING
        await upstream.validate_checkpoint(request, path.primary_id, path.secondary_id, kind, database)
        number = await upstream.create_future(
            session=database,
            request_type=types.RequestType.LOAD_WEIGHTS,
            model_id=body.model_id,
            request_data=LoadWeightsInput(
                source_model_id=path.primary_id, checkpoint_id=path.secondary_id, optimizer=body.optimizer
            ),
        )
        await database.commit()
        return upstream.FutureResponse(future_id=str(number), request_id=str(number))

    return await request.app.state.request_cache.answer(("load_weights", body.model_id, body.seq_id), submit)


@routes.post("/adapters")
async def add_adapter(request: Request, database: Database) -> Any:
    """Store an uploaded adapter archive as a training state without an optimizer, and return its path."""
    config = request.app.state.engine_config
    model_id, name, kind = f"adapter_{uuid4().hex[:8]}", "adapter", types.CheckpointType.TRAINING
    try:
        with atomic_path(checkpoint_path(Path(config.checkpoints_base), model_id, name, kind)) as temporary:
            with temporary.open("wb") as file:
                async for chunk in request.stream():
                    file.write(chunk)
            settings = adapter_settings(temporary)
    except ValueError as error:
        raise HTTPException(400, str(error)) from error
    lora = types.LoraConfig(rank=settings["r"], alpha=settings["lora_alpha"], seed=0)
    await database.merge(SessionDB(session_id=ADAPTERS, sdk_version="", status="expired"))
    database.add(
        ModelDB(
            model_id=model_id,
            base_model=config.base_model,
            lora_config=lora.model_dump(),
            status="unloaded",
            request_id=0,
            session_id=ADAPTERS,
        )
    )
    database.add(
        CheckpointDB(
            model_id=model_id,
            checkpoint_id=name,
            checkpoint_type=kind,
            status=CheckpointStatus.COMPLETED,
            completed_at=datetime.now(UTC),
        )
    )
    await database.commit()
    return {"path": f"tinker://{model_id}/weights/{name}"}


@routes.post("/sessions/{session_id}/finish")
async def finish_session(session_id: str, database: Database) -> Response:
    """Called by a client that exits cleanly: unload its models without waiting for the session timeout."""
    models = select(ModelDB).where(ModelDB.session_id == session_id, ModelDB.status != "unloaded")
    for model in (await database.exec(models)).all():
        await upstream.unload_model(upstream.UnloadModelRequest(model_id=model.model_id), database)
    return Response(status_code=204)


@routes.delete("/training_runs/{model_id}/checkpoints/{kind}/{checkpoint_id}")
async def delete_checkpoint(
    model_id: str, kind: str, checkpoint_id: str, request: Request, database: Database
) -> Response:
    """Deleting a missing checkpoint succeeds."""
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
def _conflict_is_final() -> Iterator[None]:
    """Turn 409 into 400: the SDK retries a 409 for five minutes, and a taken name stays taken."""
    try:
        yield
    except HTTPException as error:
        if error.status_code != 409:
            raise
        raise HTTPException(400, error.detail) from None
