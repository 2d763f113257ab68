"""The memory of an engine against counts by hand, and against buffers that XLA planned."""

from dataclasses import replace

import pytest

from hermes_rl.training.sizing.memory import EngineLoad, engine_memory, longest_that_fits, training_bytes
from hermes_rl.training.sizing.model_shape import Layout, ModelShape

TINY = ModelShape(64, 2, 4, 2, 16, 128, 320, tied=True, bytes=4)
LOAD = EngineLoad(rank=8, adapters=4, rows=1, length=512)
# Bytes, from docs/reports/training-scale.md: rows, length, checkpointing.
PLANNED = {
    (1, 512, False): 38_421_760,
    (4, 512, False): 154_054_080,
    (1, 1024, False): 137_876_864,
    (4, 1024, False): 553_832_128,
    (1, 512, True): 19_205_000,
    (4, 512, True): 79_654_024,
    (1, 1024, True): 74_441_608,
    (4, 1024, True): 296_858_760,
}


def test_what_is_stored_is_exact() -> None:
    memory = engine_memory(TINY, Layout(), LOAD)
    assert memory.weights == 4 * 94_592
    # Four slots of 8 × 2,048 values in float32; as much for gradients, twice as much for Adam's moments.
    assert (memory.adapters, memory.gradients, memory.optimizer) == (262_144, 262_144, 524_288)
    assert engine_memory(replace(TINY, bytes=2), Layout(), LOAD).optimizer == 524_288


@pytest.mark.parametrize(("rows", "length", "checkpointing"), PLANNED)
def test_a_pass_takes_about_what_xla_plans_for_it(rows: int, length: int, checkpointing: bool) -> None:
    load = replace(LOAD, rows=rows, length=length, gradient_checkpointing=checkpointing)
    assert 1 <= training_bytes(TINY, Layout(), load) / PLANNED[rows, length, checkpointing] < 1.3


def test_with_a_kernel_for_attention_memory_grows_with_the_length_and_not_its_square() -> None:
    load = replace(LOAD, fused_attention=True)
    once = training_bytes(TINY, Layout(), load)
    assert training_bytes(TINY, Layout(), replace(load, length=1024)) == 2 * once


def test_the_longest_sequence_that_fits_fits_and_one_more_token_does_not() -> None:
    longest = longest_that_fits(TINY, Layout(), LOAD, 1e9, 1 << 20)
    fits, beyond = (engine_memory(TINY, Layout(), replace(LOAD, length=longest + more)).total for more in (0, 1))
    assert fits <= 1e9 < beyond
    assert longest_that_fits(TINY, Layout(), LOAD, 1e5, 1 << 20) == 0
