"""The engine looks for work while gradients and their step come in; for `scripts/engine_environment skyrl`.

Takes the folder of our `hermes_skyrl` and one for a database. Writes, as JSON, what each of two looks took.
"""

import json
import sys
import typing
from importlib import import_module
from typing import Any

import typing_extensions

# pydantic takes no other before Python 3.12.
typing.TypedDict = typing_extensions.TypedDict

inside, folder = sys.argv[1:]
sys.path.insert(0, inside)
stubs: Any = import_module("hermes_skyrl.stubs")
stubs.hide_torch()
stubs.install_stubs()
ours: Any = import_module("hermes_skyrl.engine")
types: Any = import_module("skyrl.tinker.types")
tables: Any = import_module("skyrl.tinker.db_models")
sqlmodel: Any = import_module("sqlmodel")


class Looking(ours.SkyRLEngine):  # type: ignore[misc]
    """An engine that only takes requests. In its first look the two come in after it has looked for gradients."""

    def __init__(self) -> None:
        self.db_engine = sqlmodel.create_engine(f"sqlite:///{folder}/requests.db")
        tables.enable_sqlite_wal(self.db_engine)
        sqlmodel.SQLModel.metadata.create_all(self.db_engine)
        self.taken: list[str] = []
        self._late = [types.RequestType.FORWARD_BACKWARD, types.RequestType.OPTIM_STEP]

    def find_batchable_model_passes(self, session: Any, request_type: Any) -> Any:
        found = super().find_batchable_model_passes(session, request_type)
        with sqlmodel.Session(self.db_engine) as other:
            while self._late:
                other.add(tables.FutureDB(request_type=self._late.pop(0), model_id="policy", request_data=REQUEST))
                other.commit()
        return found

    def find_batchable_sample(self, session: Any) -> dict[str, Any]:
        return {}

    def process_batch_requests(self, requests: dict[str, Any], processor: Any, name: str) -> None:
        self.taken += [name] * len(requests)

    def process_single_requests(self, requests: dict[str, Any]) -> None:
        self.taken += [str(kind.value) for _, kind, _ in requests.values()]

    def look(self) -> list[str]:
        self.taken = []
        self.take_requests()
        return self.taken


REQUEST = {"data": [], "loss_fn": "importance_sampling"}
engine = Looking()
print(json.dumps([engine.look(), engine.look()]))
