"""Engines that take and return token ids, one file each. Pure: the I/O is in `managed_server`."""

from hermes_rl.inference.config import APIServerConfig, ServerType
from hermes_rl.inference.token_engines.engine import MISSING_ROUTE, Route, TokenEngine
from hermes_rl.inference.token_engines.sampling import Logprobs, SamplingRequest, uncorrectable_reason
from hermes_rl.inference.token_engines.sglang import SGLANG
from hermes_rl.inference.token_engines.vllm import VLLM

__all__ = [
    "MISSING_ROUTE",
    "Logprobs",
    "Route",
    "SamplingRequest",
    "TokenEngine",
    "engine_for",
    "logprobs_mode",
    "uncorrectable_reason",
]


def engine_for(server_type: ServerType) -> TokenEngine | None:
    """The engine of a server type; None for a server without exact tokens."""
    return {ServerType.VLLM: VLLM, ServerType.SGLANG: SGLANG}.get(server_type)


def logprobs_mode(config: APIServerConfig) -> Logprobs | None:
    """The distribution an endpoint's logprobs come from: as configured, else the engine's default; None without one."""
    engine = engine_for(config.server_type)
    return engine and (config.logprobs_mode or engine.logprobs)
