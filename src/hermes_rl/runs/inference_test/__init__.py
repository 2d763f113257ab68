"""A few groups of an environment with several models, before a training run is paid for: does it work at all?"""

from hermes_rl.runs.inference_test.testing import run_test as test_inference

__all__ = ["test_inference"]
