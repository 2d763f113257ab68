"""VllmServer: one vLLM whose adapters come and go while it runs, each version of the weights under a name of its own.

Measured on vLLM 0.32: loading in place (`load_inplace`) changes the weights under completions that are under way, and
their `weight_versions` do not tell; from a path that was loaded before it also goes on from the old weights' prefix
cache. Under a name of its own, a completion ends on the weights it began with. An adapter that others pushed out of its
slot is read from its folder again, between two tokens; where the folder is gone, that is the end of the engine. So
`loaded` names the versions whose folders must stay.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes_rl.errors import EndpointError
from hermes_rl.inference.endpoint import Endpoint, RetryableEndpointError
from hermes_rl.inference.managed_server import generate
from hermes_rl.inference.token_engines import SamplingRequest
from hermes_rl.tokens.exchange import Answer
from hermes_rl.training.vllm_fleet.scoring import prompt_logprobs, scoring_request

# One token after one token: what any model can do.
PROOF = SamplingRequest.of({"max_tokens": 1})
PROOF_IDS = (0,)
# Seconds for an answer that takes no computing.
LOOK_TIME = 10.0


@dataclass(frozen=True, slots=True)
class Weights:
    """A version of the policy: a PEFT folder, or none for the model that the server was started with."""

    version: int
    folder: Path | None

    @classmethod
    def at(cls, version: int, folder: Path | None) -> "Weights":
        return cls(version, folder and folder.resolve())


class VllmServer:
    """`version` is what the next request is answered from; None while the server is out of the rotation."""

    def __init__(self, endpoint: Endpoint, run: str, life: str) -> None:
        self.endpoint = endpoint
        self.version: int | None = None
        self.running: Counter[int] = Counter()
        """Completions under way, by version."""
        self.joined = 0
        """How often it came into the rotation."""
        self.failures = 0
        """In a row: a request that it answers ends them."""
        self.trouble = ""
        self.context_tokens: int | None = None
        self.changing = asyncio.Lock()
        """Held by whoever loads and unloads."""
        self._run, self._life = run, life
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
    def under_way(self, version: int, completions: int) -> Iterator[None]:
        self.running[version] += completions
        try:
            yield
        finally:
            self.running[version] -= completions
            if not self.running[version]:
                del self.running[version]

    async def look(self) -> None:
        """See what it has: its model, and adapters of this life. Those of the run's earlier lives are unloaded."""
        answer = await self.endpoint.get("/models", timeout=LOOK_TIME)
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
            if name.startswith(f"{self._run}@") and not name.startswith(f"{self._run}@{self._life}-"):
                await self._unload(name, LOOK_TIME)

    async def take(self, weights: Weights, timeout: float) -> None:
        """Have the weights where they can be sampled from, beside those that are there."""
        version, name = weights.version, self._model
        if version in self._names:
            return
        if weights.folder is not None:
            name = f"{self._run}@{self._life}-v{version}"
            await self._load(name, weights.folder, timeout)
        self._names[version] = name

    async def prove(self, version: int, timeout: float) -> None:
        """Sample a token: a server whose engine hangs still answers for its list of models."""
        await generate(self.endpoint, PROOF_IDS, PROOF, self._names[version], "train", timeout)

    async def drop(self, version: int, timeout: float) -> None:
        """Let an adapter go; one that cannot be unloaded is pushed out by those that come after it."""
        name = self._names[version]
        if name != self._model:
            await self._unload(name, timeout)
        del self._names[version]

    async def sample(self, version: int, ids: Sequence[int], request: SamplingRequest, timeout: float) -> Answer:
        return await generate(self.endpoint, ids, request, self._names[version], "train", timeout)

    async def logprobs(self, version: int, ids: Sequence[int], timeout: float) -> list[float | None]:
        body = scoring_request(self._names[version], ids)
        raw: Any = await self.endpoint.post("/completions", body, split="train", timeout=timeout)
        return prompt_logprobs(raw, ids)

    async def _load(self, name: str, folder: Path, timeout: float) -> None:
        try:
            await self.endpoint.tell(
                "/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)}, timeout=timeout
            )
        except EndpointError as error:
            # A load whose answer was lost has been done all the same; no other weights have this name.
            if error.cause != "http_400" or "already been loaded" not in str(error):
                raise

    async def _unload(self, name: str, timeout: float) -> None:
        try:
            await self.endpoint.tell("/unload_lora_adapter", {"lora_name": name}, timeout=timeout)
        except EndpointError:
            return
