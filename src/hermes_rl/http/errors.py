"""Error responses: JSON with a machine-readable kind, a message, and the field at fault."""

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from hermes_rl.core.errors import HermesRLError


class Problem(BaseModel):
    """Why a request was refused: `kind` for programs, `message` for people, `field` when one is at fault."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str
    message: str
    field: str | None = None


class RefusedError(HermesRLError):
    """Raised by a route that refuses a request. `later` means that a retry may succeed."""

    def __init__(self, status: int, kind: str, message: str, *, field: str | None = None, later: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.field = field
        self.later = later


def error_response(status: int, problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    return Response(problem.model_dump_json(), status, headers=dict(headers or {}), media_type="application/json")
