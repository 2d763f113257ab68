"""SkyRL's compute process: takes requests from the database and executes them.

Always true: it wakes on database changes, never steps before its gradients are computed, deletes finished requests, and
unloads the models of disconnected clients.
"""

import argparse
import os
import time
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import jax
import skyrl.tinker.engine as upstream
from skyrl.tinker import types
from skyrl.tinker.config import EngineConfig, add_model
from skyrl.tinker.db_models import FutureDB, RequestStatus, SessionDB
from sqlmodel import Session, col, delete, update

from .adapters import load_trained_adapter, optimizer_state, set_optimizer_state
from .backend import SlottedBackend
from .db_watch import ChangeWatcher
from .jit_cache import write_entries_atomically
from .lora import apply_lora_by_row, keep_adapters_in_float32
from .recovery import checkpoint_path, engine_lock, ready_file
from .segments import attend_within_segments
from .shared_prefill import read_prompts_once
from .token_sum import sum_over_tokens

# A database change ends the wait early; the timeout is for session cleanup.
IDLE_S = 1.0
# Clients fetch results within seconds; after this time the client is gone.
KEEP_RESULTS_S = 1800
# The SDK sends a heartbeat every 10 s.
MISSED_TWO_BEATS_S = 25
# A batch of one sample takes as long as one of many, so requests that arrive together are sampled together. The wait
# for the others is this share of the last batch's time, with a limit.
GATHER_SHARE = 0.03
GATHER_S = 0.5


class PendingRequests(NamedTuple):
    backward: dict[str, Any]
    forward: dict[str, Any]
    samples: dict[str, Any]
    others: dict[str, Any]


class SkyRLEngine(upstream.TinkerEngine):  # type: ignore[misc]
    config: Any
    _last_cleanup_time: float
    _gather_s: float = GATHER_S

    def run(self, ready: Path) -> None:
        """Run forever. Writes this process id to `ready` once requests are taken."""
        changes = ChangeWatcher(self.config.database_url)
        ready.write_text(str(os.getpid()))
        while True:
            self.take_requests()
            if time.time() - self._last_cleanup_time > self.config.session_cleanup_interval_sec:
                self.cleanup_stale_sessions()
                self._last_cleanup_time = time.time()
            changes.wait(IDLE_S)

    def take_requests(self) -> None:
        """Execute all pending requests in SkyRL's order: passes, samples, then requests that change weights."""
        found = self._pending_requests()
        if found.samples and not found.backward and not found.forward:
            time.sleep(self._gather_s)
            found = self._pending_requests()
        self.process_batch_requests(found.backward, self.process_forward_backward, "forward_backward")
        self.process_batch_requests(found.forward, self.process_forward, "forward")
        began = time.monotonic()
        self.process_batch_requests(found.samples, self.process_sample, "sample")
        if found.samples:
            self._gather_s = min(GATHER_S, GATHER_SHARE * (time.monotonic() - began))
        self.process_single_requests(found.others)

    def _pending_requests(self) -> PendingRequests:
        with Session(self.db_engine) as session:
            # One snapshot for all four queries: otherwise a step that arrives together with its gradients, between
            # two SELECTs, would run without them.
            session.connection().exec_driver_sql("BEGIN")
            return PendingRequests(
                backward=self.find_batchable_model_passes(session, types.RequestType.FORWARD_BACKWARD),
                forward=self.find_batchable_model_passes(session, types.RequestType.FORWARD),
                samples=self.find_batchable_sample(session),
                others=self.find_single_requests(session),
            )

    def _complete_futures(self, results: dict[str, Any]) -> None:
        now = datetime.now(UTC)
        rows = [
            {
                "request_id": int(name),
                "result_data": result.model_dump(),
                "status": RequestStatus.FAILED if isinstance(result, types.ErrorResponse) else RequestStatus.COMPLETED,
                "completed_at": now,
                # It holds every training token, which would fill the disk over a run of days.
                "request_data": {},
            }
            for name, result in results.items()
        ]
        with Session(self.db_engine) as session:
            session.execute(update(FutureDB), rows)
            session.commit()

    def cleanup_stale_sessions(self, silent_for: int | None = None) -> int:
        """Unload the models of clients that were silent for `silent_for` seconds; default: the configured timeout."""
        silence = self.config.session_timeout_sec if silent_for is None else silent_for
        now = datetime.now(UTC)
        cutoff = now - timedelta(seconds=silence)
        last_heartbeat = col(SessionDB.last_heartbeat_at)
        with Session(self.db_engine) as session:
            # SkyRL compares with the last heartbeat, which a client that died before its first lacks.
            session.exec(
                update(SessionDB).where(last_heartbeat.is_(None)).values(last_heartbeat_at=SessionDB.created_at)
            )
            # A client that came back may load models again.
            session.exec(
                update(SessionDB)
                .where(col(SessionDB.status) == "expired", last_heartbeat >= cutoff)
                .values(status="active")
            )
            session.exec(
                delete(FutureDB).where(
                    col(FutureDB.status) != RequestStatus.PENDING,
                    col(FutureDB.completed_at) < now - timedelta(seconds=KEEP_RESULTS_S),
                )
            )
            session.commit()
        original = self.config
        self.config = original.model_copy(update={"session_timeout_sec": silence})
        try:
            return int(super().cleanup_stale_sessions())
        finally:
            self.config = original


class SlottedEngine(SkyRLEngine):
    """With the slotted backend: any saved sampler can be sampled from, even if its model is unloaded."""

    def process_single_request(self, request_type: Any, model_id: str, request_data: dict[str, Any]) -> Any:
        if request_type == types.RequestType.OPTIM_STEP:
            self.backend.clip = request_data.get("grad_clip_norm", 0.0)
        if request_type == types.RequestType.LOAD_WEIGHTS:
            return self.load_weights(model_id, request_data)
        return super().process_single_request(request_type, model_id, request_data)

    def load_weights(self, model_id: str, request_data: dict[str, Any]) -> Any:
        """Load a checkpoint, or an uploaded adapter. SkyRL's own function always loads the optimizer's state too."""
        request = types.LoadWeightsInput.model_validate(request_data)
        path = checkpoint_path(
            Path(self.config.checkpoints_base),
            request.source_model_id,
            request.checkpoint_id,
            types.CheckpointType.TRAINING,
        )
        if not self.backend.has_model(model_id) or (request_data.get("optimizer", True) and path.is_dir()):
            return self.process_load_weights(model_id, request)
        model = self.backend.models[model_id]
        with jax.set_mesh(self.backend.mesh):
            if path.is_file():
                load_trained_adapter(self.backend.model, path, model.adapter_index, model.lora_config)
                return types.LoadWeightsOutput(type="load_weights")
            before = optimizer_state(self.backend, model_id)
            loaded = self.process_load_weights(model_id, request)
            set_optimizer_state(self.backend, model_id, before)
        return loaded

    def process_create_model(self, model_id: str, request_data: Any) -> Any:
        if not self.backend.has_room:
            # A trainer that was killed and restarted several times would be blocked by its own old models.
            self.cleanup_stale_sessions(MISSED_TWO_BEATS_S)
        return super().process_create_model(model_id, request_data)

    def _filter_valid_requests(self, requests: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        saved = {
            name
            for name, (model_id, request) in requests.items()
            if model_id and isinstance(request, types.SampleInput)
        }
        errors, valid = super()._filter_valid_requests({k: v for k, v in requests.items() if k not in saved})
        for name in saved:
            model_id, request = requests[name]
            path = checkpoint_path(
                self.config.checkpoints_base, model_id, request.checkpoint_id, types.CheckpointType.SAMPLER
            )
            if path.exists():
                valid[name] = requests[name]
            else:
                errors[name] = types.ErrorResponse(error=f"sampler checkpoint {path} does not exist", status="failed")
        return errors, valid

    def find_batchable_sample(self, session: Session) -> dict[str, tuple[str, types.SampleInput]]:
        batch: dict[str, tuple[str, types.SampleInput]] = {}
        checkpoints: set[tuple[str, str]] = set()
        for name, (model_id, request) in super().find_batchable_sample(session).items():
            if model_id:
                checkpoints.add((model_id, request.checkpoint_id))
            if len(checkpoints) <= self.backend.sampler_slots:
                batch[name] = (model_id, request)
        return batch

    def process_save_weights_for_sampler(self, model_id: str, request_data: Any) -> Any:
        result = super().process_save_weights_for_sampler(model_id, request_data)
        if isinstance(result, types.SaveWeightsForSamplerOutput) and result.path is not None:
            # The form that the SDK's other calls expect; SkyRL's has two parts.
            result.path = f"tinker://{model_id}/sampler_weights/{request_data.path}"
        return result


def run_engine(arguments: list[str], without: Collection[str]) -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_model(parser, EngineConfig)
    config = EngineConfig.model_validate(vars(parser.parse_args(arguments)))
    engine = SkyRLEngine
    if "slots" not in without:
        classes = upstream.get_backend_classes
        upstream.get_backend_classes = lambda name, use_ray=False: (SlottedBackend, classes(name, use_ray)[1])
        engine = SlottedEngine
        apply_lora_by_row()
        keep_adapters_in_float32()
        sum_over_tokens()
        attend_within_segments()
        read_prompts_once()
    write_entries_atomically()
    checkpoints = Path(config.checkpoints_base)
    with engine_lock(checkpoints):
        engine(config).run(ready_file(checkpoints))
