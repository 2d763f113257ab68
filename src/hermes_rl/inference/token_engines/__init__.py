"""Engines that take token ids and give them back: one file each, pure, the sockets are elsewhere."""

from hermes_rl.inference.config import APIServerConfig, ServerType
from hermes_rl.inference.token_engines.engine import ABSENT, Route, TokenEngine
from hermes_rl.inference.token_engines.sampling import Logprobs, SamplingRequest, cannot_correct
from hermes_rl.inference.token_engines.sglang import SGLANG
from hermes_rl.inference.token_engines.vllm import VLLM

__all__ = [
    "ABSENT",
    "Logprobs",
    "Route",
    "SamplingRequest",
    "TokenEngine",
    "cannot_correct",
    "engine_for",
    "logprobs_of",
]


def engine_for(server_type: ServerType) -> TokenEngine | None:
    """The engine of that server; None for one that has no exact tokens to give."""
    return {ServerType.VLLM: VLLM, ServerType.SGLANG: SGLANG}.get(server_type)


def logprobs_of(config: APIServerConfig) -> Logprobs | None:
    """What the logprobs of an endpoint are of: what its settings say, else its engine's way; None without an engine."""
    engine = engine_for(config.server_type)
    return engine and (config.logprobs_mode or engine.logprobs)
