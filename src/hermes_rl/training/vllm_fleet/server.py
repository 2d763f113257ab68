"""VllmServer: one vLLM server with runtime LoRA loading, where each version has a unique adapter name.

Measured on vLLM 0.32: `load_inplace` changes the weights under running completions without a trace in their
`weight_versions`, and a path loaded before also reuses the prefix cache of the old weights. With unique names a
completion finishes on the weights it started with. An adapter evicted from its slot is reloaded from its folder between
two tokens, and a missing folder crashes the engine: folders of versions in `loaded` must stay.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes_rl.core.errors import EndpointError
from hermes_rl.inference.endpoint import Endpoint, RetryableEndpointError
from hermes_rl.inference.managed_server import generate
from hermes_rl.inference.token_engines import SamplingRequest
from hermes_rl.inference.tokens.sampled import EngineAnswer
from hermes_rl.training.vllm_fleet.prompt_logprobs import prompt_logprobs, scoring_request

# One prompt token, one completion token: any working model can do it.
PROBE = SamplingRequest.from_parameters({"max_tokens": 1})
PROBE_IDS = (0,)
# For requests that need no computation.
METADATA_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """A policy version: a PEFT folder, or None for the server's base model."""

    version: int
    folder: Path | None

    @classmethod
    def resolve(cls, version: int, folder: Path | None) -> "AdapterWeights":
        return cls(version, folder and folder.resolve())


class VllmServer:
    """`version` answers the next request; None while the server is out of the rotation."""

    def __init__(self, endpoint: Endpoint, run: str, session: str) -> None:
        self.endpoint = endpoint
        self.version: int | None = None
        self.running: Counter[int] = Counter()
        """Completions in flight, by version."""
        self.generation = 0
        """Number of times the server joined the rotation."""
        self.failures = 0
        """Consecutive failures."""
        self.problem = ""
        self.context_tokens: int | None = None
        self.lock = asyncio.Lock()
        """Held while loading and unloading."""
        self._run, self._session = run, session
        self._model = ""
        self._names: dict[int, str] = {}

    @property
    def address(self) -> str:
        return self.endpoint.root

    @property
    def load(self) -> int:
        return self.running.total()

    @property
    def loaded(self) -> frozenset[int]:
        return frozenset(self._names)

    @contextmanager
    def in_flight(self, version: int, completions: int) -> Iterator[None]:
        self.running[version] += completions
        try:
            yield
        finally:
            self.running[version] -= completions
            if not self.running[version]:
                del self.running[version]

    async def refresh_models(self) -> None:
        """Read the base model and this session's adapters; unload adapters of the run's previous sessions."""
        answer = await self.endpoint.get("/models", timeout=METADATA_TIMEOUT_S)
        rows = answer.get("data") if isinstance(answer, Mapping) else None
        models = [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
        base = next((row for row in models if not row.get("parent")), None)
        if base is None:
            raise RetryableEndpointError("bad_response", f"{self.address}/v1/models lists no model: {answer!r:.200}")
        self._model, length = str(base.get("id")), base.get("max_model_len")
        self.context_tokens = length if isinstance(length, int) else None
        names = {str(row.get("id")) for row in models}
        self._names = {version: name for version, name in self._names.items() if name in names}
        for name in names:
            if name.startswith(f"{self._run}@") and not name.startswith(f"{self._run}@{self._session}-"):
                await self._unload(name, METADATA_TIMEOUT_S)

    async def load_weights(self, weights: AdapterWeights, timeout: float) -> None:
        """Load the weights, in addition to those already loaded."""
        version, name = weights.version, self._model
        if version in self._names:
            return
        if weights.folder is not None:
            name = f"{self._run}@{self._session}-v{version}"
            await self._load(name, weights.folder, timeout)
        self._names[version] = name

    async def probe(self, version: int, timeout: float) -> None:
        """Sample a token: a server with a hanging engine still lists its models."""
        await generate(self.endpoint, PROBE_IDS, PROBE, self._names[version], "train", timeout)

    async def unload(self, version: int, timeout: float) -> None:
        """Unload an adapter; if that fails, later adapters evict it."""
        # First, so that no request is sent to it meanwhile.
        name = self._names.pop(version)
        if name != self._model:
            await self._unload(name, timeout)

    async def sample(self, version: int, ids: Sequence[int], request: SamplingRequest, timeout: float) -> EngineAnswer:
        return await generate(self.endpoint, ids, request, self._names[version], "train", timeout)

    async def logprobs(self, version: int, ids: Sequence[int], timeout: float) -> list[float | None]:
        body = scoring_request(self._names[version], ids)
        raw: Any = await self.endpoint.post("/completions", body, split="train", timeout=timeout)
        return prompt_logprobs(raw, ids)

    async def _load(self, name: str, folder: Path, timeout: float) -> None:
        try:
            await self.endpoint.command(
                "/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)}, timeout=timeout
            )
        except EndpointError as error:
            # An earlier load whose response was lost succeeded; the name is unique to these weights.
            if error.cause != "http_400" or "already been loaded" not in str(error):
                raise

    async def _unload(self, name: str, timeout: float) -> None:
        try:
            await self.endpoint.command("/unload_lora_adapter", {"lora_name": name}, timeout=timeout)
        except EndpointError:
            return
