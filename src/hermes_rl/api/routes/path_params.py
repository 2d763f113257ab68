"""The number of an environment or a batch in a path."""

from typing import Annotated

from fastapi import Path

from hermes_rl.api.schemas import MAX_SAFE_INTEGER

Number = Annotated[int, Path(ge=0, le=MAX_SAFE_INTEGER)]
