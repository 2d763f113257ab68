"""The `vision` toolset: questions about an image in the sandbox, answered by a separate multimodal model.

The image is sent as a data URL in an OpenAI chat request. If the endpoint fails, the rollout is unscored; if it rejects
the image, the model sees the error.
"""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO
from typing import Any

import aiohttp
from pydantic import Field, field_validator

from hermes_rl.core import fast_json, secrets
from hermes_rl.core.backoff import backoff_seconds
from hermes_rl.core.errors import ConfigError, ToolHostError
from hermes_rl.core.png import encode_png
from hermes_rl.sandbox.protocol import Sandbox
from hermes_rl.tools.files import read_any
from hermes_rl.tools.session import ToolSession
from hermes_rl.tools.tool import ToolUseError, tool
from hermes_rl.tools.toolset import OpenToolset, Toolset, ToolsetSettings
from hermes_rl.tools.truncate import truncate_middle
from hermes_rl.tools.web.remote import read_limited

NAME = "vision"
MAX_BODY_CHARS = 500
MAX_ANSWER_CHARS = 50_000
MAX_RESPONSE_BYTES = 16 * 2**20
CONNECT_TIMEOUT = 10.0
INITIAL_BACKOFF, MAX_BACKOFF = 0.5, 8.0
# Statuses that mean a rejected image or question, and not a failing endpoint.
REFUSALS = (400, 413, 415, 422)


class VisionSettings(ToolsetSettings):
    base_url: str = Field(default="", description="Base URL of an OpenAI-compatible API with a multimodal model.")
    model_name: str = Field(default="", description="Name of that model at the endpoint.")
    api_key: str | None = Field(default=None, repr=False, description="env:NAME or file:PATH.")
    timeout: float = Field(default=120, gt=0, description="Timeout of a question in seconds, including retries.")
    max_retries: int = Field(
        default=3, ge=0, description="Retries of a question after a 429, a 5xx or a lost connection."
    )
    max_requests_at_once: int = Field(default=64, ge=1, description="Maximum questions in flight.")
    max_image_bytes: int = Field(default=10 * 1024 * 1024, ge=1, description="Maximum size of an image.")
    health_check: bool = Field(default=True, description="Test the model with a small image before the first rollout.")
    extra_body: dict[str, Any] = Field(default_factory=dict, description="Extra fields of every request.")

    @field_validator("api_key")
    @classmethod
    def _require_reference(cls, value: str | None) -> str | None:
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
    return {"answer": truncate_middle(await endpoint.ask(image, question), MAX_ANSWER_CHARS)}


class VisionEndpoint:
    """The multimodal model. A failure raises ToolHostError with a stable cause; a rejected image, ToolUseError."""

    def __init__(self, settings: VisionSettings, session: aiohttp.ClientSession) -> None:
        self.settings = settings
        self._url = settings.base_url.rstrip("/") + "/chat/completions"
        self._session = session
        self._slots = asyncio.Semaphore(settings.max_requests_at_once)
        self._headers = {"Content-Type": "application/json"}
        self._key = secrets.resolve_key(settings.api_key, "tool_settings.vision.api_key") if settings.api_key else ""
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
        data = fast_json.dumps(body)
        try:
            async with asyncio.timeout(self.settings.timeout), self._slots:
                return _extract_answer(await self._post(data))
        except TimeoutError:
            raise self._error("timeout", f"did not answer within {self.settings.timeout:g} s") from None
        except ValueError as error:
            raise self._error("bad_response", f"returned no answer: {error}") from None

    async def _post(self, data: bytes) -> bytes:
        attempt = 0
        while True:
            try:
                # As a stream: megabytes passed as bytes are sent in one piece, which blocks the event loop.
                # The author named this host; a redirect could lead to any other.
                async with self._session.post(
                    self._url, data=BytesIO(data), headers=self._headers, allow_redirects=False
                ) as response:
                    raw = await read_limited(response, MAX_RESPONSE_BYTES)
            except (aiohttp.ClientError, OSError) as error:
                failure = self._error("connection", f"cannot be reached: {str(error) or type(error).__name__}")
            else:
                if response.status == 200:
                    return raw
                body_text = raw[:MAX_BODY_CHARS].decode(errors="replace").strip() or "(empty body)"
                failure = self._error(f"http_{response.status}", f"answered HTTP {response.status}: {body_text}")
                if response.status in REFUSALS:
                    raise ToolUseError(f"the vision model refused the image or the question: {failure}")
                if response.status != 429 and response.status < 500:
                    raise failure
            if attempt >= self.settings.max_retries:
                raise failure
            await asyncio.sleep(backoff_seconds(attempt, initial=INITIAL_BACKOFF, maximum=MAX_BACKOFF))
            attempt += 1

    def _error(self, cause: str, what: str) -> ToolHostError:
        text = f"{self.settings.base_url} (model {self.settings.model_name}) {what}"
        return ToolHostError(cause, secrets.redact(text, [self._key]))


@asynccontextmanager
async def _open(settings: VisionSettings) -> AsyncIterator[OpenToolset]:
    if not settings.base_url.startswith(("http://", "https://")) or not settings.model_name:
        raise ConfigError(
            "the vision toolset needs a multimodal model: set tool_settings.vision.base_url (http://…/v1) and "
            "tool_settings.vision.model_name, and api_key as env:NAME or file:PATH if the endpoint needs one"
        )
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        endpoint = VisionEndpoint(settings, session)
        if settings.health_check:
            try:
                await endpoint.ask(_grey_square(64), "Which colour is this? Answer with one word.")
            except (ToolHostError, ToolUseError) as error:
                raise ConfigError(
                    f"the vision toolset does not work: {error}. Fix tool_settings.vision, or skip this check with "
                    "tool_settings.vision.health_check false"
                ) from error
        yield OpenToolset(VISION.tools, endpoint)


VISION = Toolset(NAME, (vision_analyze,), VisionSettings, _open)


def media_type(image: bytes) -> str | None:
    """The media type from the first bytes of a file; None for an unknown format."""
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


def _extract_answer(raw: bytes) -> str:
    """The text of the first choice; ValueError when there is none."""
    body = fast_json.loads(raw)
    try:
        content = body["choices"][0]["message"]["content"]
    except (LookupError, TypeError):
        raise ValueError(f"no choice in {raw[:MAX_BODY_CHARS].decode(errors='replace')}") from None
    if isinstance(content, list):
        content = "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    if not isinstance(content, str) or not content.strip():
        raise ValueError("its message is empty")
    return content


def _grey_square(side: int) -> bytes:
    return encode_png(side, side, 1, b"\x80" * side * side)
