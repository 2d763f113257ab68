"""Engines that take token ids and give them back: one file each, pure, the sockets are elsewhere."""

from hermes_rl.inference.config import ServerType
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
]


def engine_for(server_type: ServerType) -> TokenEngine | None:
    """The engine of that server; None for one that has no exact tokens to give."""
    return {ServerType.VLLM: VLLM, ServerType.SGLANG: SGLANG}.get(server_type)
