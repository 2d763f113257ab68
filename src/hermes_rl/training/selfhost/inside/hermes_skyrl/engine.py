"""SkyRL's engine: takes requests from the database and computes them.

Always true: it looks for work when there may be some, takes no step before its gradients, keeps no request that is
done, and unloads the models of clients that are gone.
"""

import argparse
import os
import time
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import skyrl.tinker.engine as upstream
from skyrl.tinker import types
from skyrl.tinker.config import EngineConfig, add_model
from skyrl.tinker.db_models import FutureDB, RequestStatus, SessionDB
from sqlmodel import Session, col, delete, update

from .backend import SlottedBackend
from .changes import Changes
from .compiled import write_whole_entries
from .ledger import alone, checkpoint_path, ready_mark
from .lora import multiply_by_rows

# A change ends the wait; the rest is for looking after sessions.
IDLE_S = 1.0
# A client asks for a result within seconds; one that comes later than this is gone.
KEEP_RESULTS_S = 1800
# The SDK sends a heartbeat every 10 s.
MISSED_TWO_BEATS_S = 25


class Engine(upstream.TinkerEngine):  # type: ignore[misc]
    config: Any
    _last_cleanup_time: float

    def run(self, ready: Path) -> None:
        """For good. `ready` is written once requests are taken, with this process's id."""
        changes = Changes(self.config.database_url)
        ready.write_text(str(os.getpid()))
        while True:
            self.take_requests()
            if time.time() - self._last_cleanup_time > self.config.session_cleanup_interval_sec:
                self.cleanup_stale_sessions()
                self._last_cleanup_time = time.time()
            changes.wait(IDLE_S)

    def take_requests(self) -> None:
        """All that wait now, in SkyRL's order: passes, samples, then whatever changes weights."""
        with Session(self.db_engine) as session:
            # One moment for all four: by itself each SELECT sees what came in since the one before, and a step that
            # came in with its gradients was taken without them.
            session.connection().exec_driver_sql("BEGIN")
            backward = self.find_batchable_model_passes(session, types.RequestType.FORWARD_BACKWARD)
            forward = self.find_batchable_model_passes(session, types.RequestType.FORWARD)
            samples = self.find_batchable_sample(session)
            others = self.find_single_requests(session)
        self.process_batch_requests(backward, self.process_forward_backward, "forward_backward")
        self.process_batch_requests(forward, self.process_forward, "forward")
        self.process_batch_requests(samples, self.process_sample, "sample")
        self.process_single_requests(others)

    def _complete_futures(self, results: dict[str, Any]) -> None:
        now = datetime.now(UTC)
        rows = [
            {
                "request_id": int(name),
                "result_data": result.model_dump(),
                "status": RequestStatus.FAILED if isinstance(result, types.ErrorResponse) else RequestStatus.COMPLETED,
                "completed_at": now,
                # It holds every token that was trained on; a run of days would fill the disk with them.
                "request_data": {},
            }
            for name, result in results.items()
        ]
        with Session(self.db_engine) as session:
            session.execute(update(FutureDB), rows)
            session.commit()

    def cleanup_stale_sessions(self, silent_for: int | None = None) -> int:
        """Unload the models of clients not heard of for so long, as the configuration says when it is left out."""
        silence = self.config.session_timeout_sec if silent_for is None else silent_for
        now = datetime.now(UTC)
        cutoff = now - timedelta(seconds=silence)
        heard = col(SessionDB.last_heartbeat_at)
        with Session(self.db_engine) as session:
            # SkyRL compares with the last heartbeat, and one that died before its first has none.
            session.exec(update(SessionDB).where(heard.is_(None)).values(last_heartbeat_at=SessionDB.created_at))
            # One that was away and is back may have models again.
            session.exec(
                update(SessionDB).where(col(SessionDB.status) == "expired", heard >= cutoff).values(status="active")
            )
            session.exec(
                delete(FutureDB).where(
                    col(FutureDB.status) != RequestStatus.PENDING,
                    col(FutureDB.completed_at) < now - timedelta(seconds=KEEP_RESULTS_S),
                )
            )
            session.commit()
        whole = self.config
        self.config = whole.model_copy(update={"session_timeout_sec": silence})
        try:
            return int(super().cleanup_stale_sessions())
        finally:
            self.config = whole


class SlottedEngine(Engine):
    """With the slotted backend: what was saved can be drawn from, whether or not its model is still loaded."""

    def process_single_request(self, request_type: Any, model_id: str, request_data: dict[str, Any]) -> Any:
        if request_type == types.RequestType.OPTIM_STEP:
            self.backend.clip = request_data.get("grad_clip_norm", 0.0)
        return super().process_single_request(request_type, model_id, request_data)

    def process_create_model(self, model_id: str, request_data: Any) -> Any:
        if not self.backend.has_room:
            # A trainer that was killed and started again several times finds its own models in the way.
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
                errors[name] = types.ErrorResponse(error=f"there is no sampler checkpoint {path}", status="failed")
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
            # The form that the SDK's other calls read; SkyRL's own has two parts.
            result.path = f"tinker://{model_id}/sampler_weights/{request_data.path}"
        return result


def run_engine(arguments: list[str], without: Collection[str]) -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_model(parser, EngineConfig)
    config = EngineConfig.model_validate(vars(parser.parse_args(arguments)))
    engine = Engine
    if "slots" not in without:
        classes = upstream.get_backend_classes
        upstream.get_backend_classes = lambda name, use_ray=False: (SlottedBackend, classes(name, use_ray)[1])
        engine = SlottedEngine
        multiply_by_rows()
    write_whole_entries()
    checkpoints = Path(config.checkpoints_base)
    with alone(checkpoints):
        engine(config).run(ready_mark(checkpoints))
