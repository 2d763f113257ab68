"""The `vision` toolset: questions about an image in the sandbox, answered by a multimodal model of its own.

The image travels as a data URL in an OpenAI chat request. What the endpoint does wrong leaves the rollout unscored; an
image it refuses is the policy's own and is told to the model.
"""

import asyncio
import base64
import struct
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO
from typing import Any

import aiohttp
from pydantic import Field, field_validator

from hermes_rl import jsontext, secrets
from hermes_rl.errors import ConfigError, ToolHostError
from hermes_rl.sandbox.protocol import Sandbox
from hermes_rl.tools.excerpt import excerpt
from hermes_rl.tools.files import read_any
from hermes_rl.tools.session import ToolSession
from hermes_rl.tools.tool import ToolUseError, tool
from hermes_rl.tools.toolset import OpenToolset, Toolset, ToolsetSettings
from hermes_rl.waiting import pause

NAME = "vision"
BODY_SHOWN = 500
ANSWER_SHOWN = 50_000
CONNECT_TIMEOUT = 10.0
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 8.0
# Statuses by which endpoints say that they do not like the image or the question, and not that they are unwell.
REFUSALS = (400, 413, 415, 422)


class VisionSettings(ToolsetSettings):
    base_url: str = Field("", description="Root of an OpenAI-compatible API whose model reads images.")
    model_name: str = Field("", description="Name of that model, as the endpoint knows it.")
    api_key: str | None = Field(None, repr=False, description="env:NAME or file:PATH.")
    timeout: float = Field(120, gt=0, description="Seconds one question may take, retries included.")
    max_retries: int = Field(3, ge=0, description="How often a question is asked again after a 429, a 5xx or a loss.")
    max_requests_at_once: int = Field(64, ge=1, description="Questions in flight.")
    max_image_bytes: int = Field(10 * 1024 * 1024, ge=1, description="Larger images are refused.")
    health_check: bool = Field(True, description="Show the model a small image before the first rollout.")
    extra_body: dict[str, Any] = Field(default_factory=dict, description="Further fields of every request.")

    @field_validator("api_key")
    @classmethod
    def _is_a_reference(cls, value: str | None) -> str | None:
        # These settings are saved with the run.
        if value and secrets.is_literal(value):
            raise ValueError("write env:NAME or file:PATH here, not the key itself")
        return value


@tool
async def vision_analyze(session: ToolSession, path: str, question: str) -> dict[str, Any]:
    """Ask a question about an image file in the sandbox. PNG, JPEG, GIF and WebP are understood.

    Args:
        path: The image; relative paths start in the workspace.
        question: What to find out; ask for a description to learn what it shows.
    """
    endpoint: VisionEndpoint = session.service(NAME)
    image = await _read_image(await session.sandbox(), path, endpoint.settings.max_image_bytes)
    return {"answer": excerpt(await endpoint.ask(image, question), ANSWER_SHOWN)}


class VisionEndpoint:
    """The multimodal model. Every failure is a ToolHostError with a stable cause, or a ToolUseError for a refusal."""

    def __init__(self, settings: VisionSettings, session: aiohttp.ClientSession) -> None:
        self.settings = settings
        self._url = settings.base_url.rstrip("/") + "/chat/completions"
        self._session = session
        self._slots = asyncio.Semaphore(settings.max_requests_at_once)
        self._headers = {"Content-Type": "application/json"}
        self._key = secrets.resolved_key(settings.api_key, "tool_settings.vision.api_key") if settings.api_key else ""
        if self._key:
            self._headers["Authorization"] = f"Bearer {self._key}"

    async def ask(self, image: bytes, question: str) -> str:
        url = f"data:{media_type(image)};base64,{base64.b64encode(image).decode()}"
        parts = [{"type": "text", "text": question}, {"type": "image_url", "image_url": {"url": url}}]
        body = {
            "model": self.settings.model_name,
            "messages": [{"role": "user", "content": parts}],
            **self.settings.extra_body,
        }
        data = jsontext.dumps(body)
        try:
            async with asyncio.timeout(self.settings.timeout), self._slots:
                return _answer_in(await self._post(data))
        except TimeoutError:
            raise self._error("timeout", f"did not answer within {self.settings.timeout:g} s") from None
        except ValueError as error:
            raise self._error("bad_response", f"gave no answer: {error}") from None

    async def _post(self, data: bytes) -> bytes:
        attempt = 0
        while True:
            try:
                # As a stream: megabytes given as bytes are sent in one piece, which holds up the event loop.
                async with self._session.post(self._url, data=BytesIO(data), headers=self._headers) as response:
                    raw = await response.read()
            except (aiohttp.ClientError, OSError) as error:
                failure = self._error("connection", f"cannot be reached: {str(error) or type(error).__name__}")
            else:
                if response.status == 200:
                    return raw
                shown = raw[:BODY_SHOWN].decode(errors="replace").strip() or "(empty body)"
                failure = self._error(f"http_{response.status}", f"answered HTTP {response.status}: {shown}")
                if response.status in REFUSALS:
                    raise ToolUseError(f"the vision model refused the image or the question: {failure}")
                if response.status != 429 and response.status < 500:
                    raise failure
            if attempt >= self.settings.max_retries:
                raise failure
            await asyncio.sleep(pause(attempt, first=FIRST_PAUSE, longest=LONGEST_PAUSE))
            attempt += 1

    def _error(self, cause: str, what: str) -> ToolHostError:
        text = f"{self.settings.base_url} (model {self.settings.model_name}) {what}"
        return ToolHostError(cause, secrets.without(text, [self._key]))


@asynccontextmanager
async def _open(settings: VisionSettings) -> AsyncIterator[OpenToolset]:
    if not settings.base_url.startswith(("http://", "https://")) or not settings.model_name:
        raise ConfigError(
            "the vision toolset needs a model that reads images: set tool_settings.vision.base_url (http://…/v1) and "
            "tool_settings.vision.model_name, and api_key as env:NAME or file:PATH where the endpoint wants one"
        )
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        endpoint = VisionEndpoint(settings, session)
        if settings.health_check:
            try:
                await endpoint.ask(_grey_square(64), "Which colour is this? Answer with one word.")
            except (ToolHostError, ToolUseError) as error:
                raise ConfigError(
                    f"the vision toolset does not work: {error}. Mend tool_settings.vision, or turn this question off "
                    "with tool_settings.vision.health_check false"
                ) from error
        yield OpenToolset(VISION.tools, endpoint)


VISION = Toolset(NAME, (vision_analyze,), VisionSettings, _open)


def media_type(image: bytes) -> str | None:
    """The media type by the first bytes of a file, whatever its name says; None for what is no image we know."""
    if image.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if image.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if image.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if image[:4] == b"RIFF" and image[8:12] == b"WEBP":
        return "image/webp"
    return None


async def _read_image(sandbox: Sandbox, path: str, max_bytes: int) -> bytes:
    image = await read_any(sandbox, path, max_bytes)
    if media_type(image) is None:
        raise ToolUseError(f"{path} is not a PNG, JPEG, GIF or WebP image; convert it first")
    return image


def _answer_in(raw: bytes) -> str:
    """The text of the first choice; ValueError when there is none."""
    body = jsontext.loads(raw)
    try:
        content = body["choices"][0]["message"]["content"]
    except (LookupError, TypeError):
        raise ValueError(f"no choice in {raw[:BODY_SHOWN].decode(errors='replace')}") from None
    if isinstance(content, list):
        content = "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    if not isinstance(content, str) or not content.strip():
        raise ValueError("its message is empty")
    return content


def _grey_square(side: int) -> bytes:
    """A PNG of one colour."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    rows = (b"\0" + b"\x80" * side) * side
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
