"""The teacher of on-policy distillation: other weights that give each sampled token its logprob.

It is a sampler at the training engine, by path or by the run that saved it, or a server with prompt logprobs: one of
hermes-rl, or vLLM. Always true: its token ids mean the same as the student's, as far as this can be known.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from hermes_rl.core.errors import ConfigError, EndpointError
from hermes_rl.core.paths import rl_home
from hermes_rl.core.secrets import resolve_key
from hermes_rl.inference.config import APIServerConfig, ServerType
from hermes_rl.inference.endpoint import Endpoint, RetryableEndpointError
from hermes_rl.inference.tokens.tokenizer import differing_id
from hermes_rl.training.config import TrainerSettings
from hermes_rl.training.engines.protocol import TrainingEngine
from hermes_rl.training.vllm_fleet.prompt_logprobs import prompt_logprobs, scoring_request
from hermes_rl.training.weights.run_metadata import read_run

METADATA_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 1200.0
# Two tokenizers that split this in the same way, into the same ids, are the same.
TEST_TEXT = "The 3 quick-brown foxes' naïve code: def f(x):\n\treturn {'é': 12345.678e-9}  # 你好, мир! 🙂 <|im_end|>"


class TokenScorer(Protocol):
    async def logprobs(self, ids: Sequence[int]) -> list[float | None]:
        """The logprob of each token given its prefix; None for the first. Raises EndpointError on failure."""
        ...


class Teacher(Protocol):
    def open(self, engine: TrainingEngine) -> AbstractAsyncContextManager[TokenScorer]: ...

    async def check(self, tokenizer: Any, base_model: str) -> None:
        """ConfigError if its token ids are known to differ from those of the student."""
        ...


@dataclass(frozen=True, slots=True)
class WeightsAtEngine:
    """Saved sampler weights, or the base model for None. `base_model` is theirs, if known."""

    path: str | None
    base_model: str | None = None

    @asynccontextmanager
    async def open(self, engine: TrainingEngine) -> AsyncIterator[TokenScorer]:
        yield await engine.sampler(self.path)

    async def check(self, tokenizer: Any, base_model: str) -> None:
        if self.base_model in (None, base_model):
            return
        token = differing_id(tokenizer, str(self.base_model))
        if token is not None:
            raise ConfigError(
                f"the teacher is a {self.base_model}, whose token {token} is not that of {base_model}; choose one with "
                "the same tokenizer"
            )


@dataclass(frozen=True, slots=True)
class TeacherServer:
    url: str
    token: str | None = None

    @asynccontextmanager
    async def open(self, engine: TrainingEngine | None = None) -> AsyncIterator["ServerScorer"]:
        config = APIServerConfig(
            base_url=self.url.rstrip("/").removesuffix("/v1") + "/v1", api_key=self.token, server_type=ServerType.VLLM
        )
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
            endpoint = Endpoint(config, session)
            match await endpoint.get("/models", timeout=METADATA_TIMEOUT_S):
                case {"data": [{"id": str(model), **about}, *_]}:
                    yield ServerScorer(endpoint, model, ours=about.get("owned_by") == "hermes-rl")
                case other:
                    raise RetryableEndpointError("bad_response", f"{self.url} lists no model: {other!r:.200}")

    async def check(self, tokenizer: Any, base_model: str) -> None:
        async with self.open() as scorer:
            theirs = await scorer.encode(TEST_TEXT)
        if theirs is not None and theirs != tokenizer.encode(TEST_TEXT, add_special_tokens=False):
            raise ConfigError(
                f"the teacher {scorer.model} at {self.url} has another tokenizer than {base_model}; choose a teacher "
                "with the same one"
            )


class ServerScorer:
    """`ours`: the server is one of hermes-rl, which has a route for logprobs; vLLM has prompt logprobs."""

    def __init__(self, endpoint: Endpoint, model: str, *, ours: bool) -> None:
        self.model = model
        self._endpoint, self._ours = endpoint, ours

    async def logprobs(self, ids: Sequence[int]) -> list[float | None]:
        if not self._ours:
            return prompt_logprobs(await self._post("/v1/completions", scoring_request(self.model, ids)), ids)
        match await self._post("/logprobs", {"token_ids": list(ids)}):
            case {"logprobs": [*values]} if len(values) == len(ids):
                return values
            case other:
                raise RetryableEndpointError("bad_response", f"no logprobs for {len(ids)} tokens in {other!r:.200}")

    async def encode(self, text: str) -> list[int] | None:
        """The text as token ids; None if the server cannot tell."""
        request = (
            ("/logprobs", {"text": text})
            if self._ours
            else ("/tokenize", {"model": self.model, "prompt": text, "add_special_tokens": False})
        )
        try:
            match await self._post(*request):
                case {"token_ids": [*ids]} | {"tokens": [*ids]}:
                    return ids
        except EndpointError as error:
            if not error.cause.startswith("http_4"):
                raise
        return None

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        return await self._endpoint.post(path, body, split="train", timeout=ANSWER_TIMEOUT_S, at_root=True)


def find_teacher(settings: TrainerSettings) -> WeightsAtEngine | TeacherServer | None:
    """The teacher that the settings name; ConfigError if there is none of that name."""
    name = settings.teacher
    if name is None:
        return None
    if name.startswith(("http://", "https://")):
        token = settings.teacher_token
        return TeacherServer(name, None if token is None else resolve_key(token, "--tinker.teacher_token"))
    if name.startswith("tinker://"):
        if "/weights/" in name:
            raise ConfigError(f"teacher {name} is a training state; pass the path of its sampler weights")
        return WeightsAtEngine(name)
    return _run_teacher(name, settings)


async def check_teacher(settings: TrainerSettings, tokenizer: Any) -> None:
    """Find the teacher, if there is one, and refuse it if its token ids are known to differ."""
    if teacher := find_teacher(settings):
        await teacher.check(tokenizer, settings.base_model)


def _run_teacher(name: str, settings: TrainerSettings) -> WeightsAtEngine:
    places = (rl_home() / "runs" / name, Path(name).expanduser())
    folder = next((place for place in places if (place / "lineage.jsonl").is_file()), None)
    if folder is None:
        raise ConfigError(f"teacher {name!r} is neither a run in {rl_home() / 'runs'}, nor a tinker:// path, nor a URL")
    run = read_run(folder)
    if (run.settings.get("base_url") is None) != (settings.base_url is None):
        raise ConfigError(f"the teacher {name} is not at this engine; pass its URL, or train at the same engine")
    base = run.settings.get("base_model")
    return WeightsAtEngine(run.weights(None).sampler, str(base) if base else None)
