"""Bodies of the Atropos routes: JSON, optionally gzipped, within a size limit.

The limit applies to the decompressed size. Invalid JSON and invalid fields are refused with the field's name.
"""

import zlib
from typing import Annotated, Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hermes_rl.core import fast_json
from hermes_rl.http.errors import RefusedError

# wbits for zlib: gzip framing.
GZIP = 31
MAX_SMALL_BODY = 2**20
CHUNK_BYTES = 2**20

ShortText = Annotated[str, Field(max_length=10_000)]
Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Fraction = Annotated[float, Field(ge=0, le=1)]


class AtroposBody(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class Registration(AtroposBody):
    """A trainer's registration."""

    wandb_group: ShortText
    wandb_project: ShortText
    batch_size: Annotated[int, Field(ge=1, lt=2**31)]
    max_token_len: Int64
    checkpoint_dir: ShortText
    save_checkpoint_interval: Int64
    starting_step: Int64
    num_steps: Int64


class RegisterEnv(AtroposBody):
    """An environment's registration."""

    max_token_length: Int64
    desired_name: Annotated[str, Field(max_length=200)] | None = None
    weight: Annotated[float, Field(ge=0, le=1e9)]
    group_size: Annotated[int, Field(ge=1, lt=2**16)]
    min_batch_allocation: Fraction | None = None


class EnvIdentifier(AtroposBody):
    env_id: Int64


BodyT = TypeVar("BodyT", bound=AtroposBody)


async def read_body(request: Request, kind: type[BodyT]) -> BodyT:
    """Parse a small body. The BodyLimit middleware refuses larger ones."""
    text = decode_body(await request.body(), request.headers.get("content-encoding", ""), MAX_SMALL_BODY)
    try:
        return kind.model_validate(fast_json.loads(text))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "body"
        raise RefusedError(422, "invalid", f"{field}: {first['msg']}", field=field) from None
    except ValueError as error:
        raise RefusedError(422, "invalid", f"the body is not JSON: {error}", field="body") from None


def decode_body(data: bytes, encoding: str, limit: int) -> bytes:
    if encoding.strip().lower() in {"", "identity"}:
        return _within(data, limit)
    if "gzip" not in encoding.lower():
        raise RefusedError(
            415, "wrong_encoding", f"content encoding {encoding[:50]!r} is not supported; use gzip or none"
        )
    pieces: list[bytes] = []
    size = 0
    while data:
        member = zlib.decompressobj(GZIP)
        while not member.eof:
            try:
                piece = member.decompress(data, CHUNK_BYTES)
            except zlib.error as error:
                raise RefusedError(400, "bad_gzip", f"the body is not gzip: {error}") from None
            data = member.unconsumed_tail
            if not piece and not data and not member.eof:
                raise RefusedError(400, "bad_gzip", "the gzip body is truncated")
            size += len(piece)
            if size > limit:
                raise RefusedError(413, "too_large", f"the body decompresses to more than {limit} bytes")
            pieces.append(piece)
        # Some writers pad with zeros.
        data = member.unused_data.lstrip(b"\0")
    return b"".join(pieces)


def _within(data: bytes, limit: int) -> bytes:
    if len(data) > limit:
        raise RefusedError(413, "too_large", f"the body has {len(data)} bytes; the limit is {limit}")
    return data


def body_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """The OpenAPI description for a route that reads its body itself."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
