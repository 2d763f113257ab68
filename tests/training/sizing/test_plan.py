"""Times of a step against arithmetic by hand, on a model of round numbers."""

from dataclasses import replace

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.training.sizing.model_shape import KNOWN, ModelShape
from hermes_rl.training.sizing.plan import GPUS, Gpu, PlannedRun, decode_seconds, plan_run, training_seconds

# 40M in attention, 120M in MLPs, 10M in embeddings, 23,000 in norms.
ROUND = ModelShape(1000, 10, 10, 10, 100, 4000, 10_000, tied=True)
RUN = PlannedRun(
    ROUND, Gpu(80e9, 1e12, 1e9), gpus=2, context=2000, rollouts=100, tokens=1000, rank=1, mfu=0.5, bandwidth_use=0.5
)
LARGE = PlannedRun(KNOWN["Qwen/Qwen3-32B"], GPUS["H100"], gpus=8, context=32_768, rollouts=512, tokens=16_384)


def test_training_computes_four_flop_a_parameter_and_six_when_it_recomputes() -> None:
    assert ROUND.parameters == 170_023_000
    # 125,000 padded tokens of (4 × 170.023 + 3 × 20) MFLOP on 2 GPUs at half of 1 TFLOP/s; 0.91 MB read, 0.92 MB sent.
    assert training_seconds(RUN, 2, checkpointing=False) == pytest.approx(92.5115 + 0.006514 + 0.00184, rel=1e-5)
    # (6 × 170.023 + 4 × 20) MFLOP.
    assert training_seconds(RUN, 2, checkpointing=True) == pytest.approx(137.51725 + 0.006514 + 0.00184, rel=1e-5)


def test_decoding_reads_weights_and_caches_once_a_token() -> None:
    # 340.046 MB of weights and 8 caches of 500 tokens × 40 kB, at half of 1 GB/s.
    assert decode_seconds(RUN, 1, 8, held=20e6) == pytest.approx(1.000092)
    assert decode_seconds(RUN, 2, 8, held=20e6) == pytest.approx(0.500046)
    # So many sequences that their arithmetic takes longer: 2 × 170.023 MFLOP × 4 at half of 10 MFLOP/s.
    slow = replace(RUN, gpu=Gpu(80e9, 1e7, 1e12))
    assert decode_seconds(slow, 1, 4, held=1) == pytest.approx(272.0368)


def test_a_node_is_divided_so_that_all_of_it_fits_and_the_slower_half_sets_the_pace() -> None:
    plan = plan_run(LARGE)
    training, sampling = plan.training, plan.sampling
    assert training.layout.devices + sampling.servers * sampling.gpus <= 8
    assert training.memory.stored + training.memory.training <= 0.9 * 80e9
    assert plan.step_seconds == max(training.seconds, sampling.seconds)
    assert plan.steps_per_hour * plan.step_seconds == pytest.approx(3600)


def test_one_gpu_does_both_in_turns() -> None:
    plan = plan_run(replace(RUN, gpus=1))
    assert plan.shared
    assert plan.step_seconds == plan.training.seconds + plan.sampling.seconds


def test_faster_gpus_and_shorter_rollouts_take_less_time() -> None:
    seconds = plan_run(LARGE).step_seconds
    assert plan_run(replace(LARGE, gpu=GPUS["B200"])).step_seconds < seconds
    assert plan_run(replace(LARGE, tokens=8192)).step_seconds < seconds


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"32\.8B parameters and 32,768 tokens do not fit 2 × 80 GB"):
        plan_run(replace(LARGE, gpus=2))
