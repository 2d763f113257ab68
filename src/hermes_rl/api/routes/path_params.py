"""The number of an environment or a batch in a path."""

from typing import Annotated

from fastapi import Path

from hermes_rl.api.schemas import LARGEST

Number = Annotated[int, Path(ge=0, le=LARGEST)]
