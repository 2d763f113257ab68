"""vLLM servers as the sampler: each new set of weights is loaded into them while they run."""

from hermes_rl.training.vllm_fleet.choosing import Standing
from hermes_rl.training.vllm_fleet.fleet import VllmFleet
from hermes_rl.training.vllm_fleet.membership import FleetTimes

__all__ = ["FleetTimes", "Standing", "VllmFleet"]
