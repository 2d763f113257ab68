"""One step of the engine's backend on several devices, in several passes, and on a model in half precision."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hermes_rl.core import fast_json
from hermes_rl.training.sizing.memory import EngineLoad, training_bytes
from hermes_rl.training.sizing.model_shape import Layout, ModelShape
from tests.support.skyrl_backend import backend_process

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(2400)]
LARGEST_ERROR = 1e-4


def updates(arrays: Path) -> dict[str, NDArray[np.float32]]:
    """Each variant's update as one vector."""
    with np.load(arrays) as file:
        variants = dict.fromkeys(name.split("/")[0] for name in file)
        return {
            variant: np.concatenate([file[name].ravel() for name in sorted(file) if name.startswith(f"{variant}/")])
            for variant in variants
        }


def distance(update: NDArray[np.float32], reference: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(update - reference) / np.linalg.norm(reference))


def test_every_layout_takes_the_step_of_one_device(tiny_model: Path, tmp_path: Path) -> None:
    said = backend_process("layouts", tiny_model, tmp_path / "out.npz", devices=8)
    made = updates(tmp_path / "out.npz")
    errors = {name: distance(update, made["one device"]) for name, update in made.items()}
    print(errors)
    assert len(errors) == 7
    assert {name: error for name, error in errors.items() if not error <= LARGEST_ERROR} == {}
    for name, each in said.items():
        assert each["losses"] == pytest.approx(said["one device"]["losses"], rel=LARGEST_ERROR), name
    assert said["checkpointing"]["bytes"] < said["one device"]["bytes"]


def test_passes_by_length_have_the_gradient_of_one_padded_batch(tiny_model: Path, tmp_path: Path) -> None:
    said = backend_process("buckets", tiny_model, tmp_path / "out.npz")
    made = updates(tmp_path / "out.npz")
    metrics = said["passes"]["metrics"]
    assert metrics["tokens:sum"] == sum(said["lengths"])
    # 4 × 320 and 4 × 64, instead of 8 × 384.
    assert metrics["padded_tokens:sum"] == 1536
    assert said["passes"]["losses"] == pytest.approx(said["whole"]["losses"], rel=LARGEST_ERROR)
    assert distance(made["passes"], made["whole"]) <= LARGEST_ERROR


def test_sequences_with_the_same_beginning_have_the_same_gradient_when_they_share_it(
    tiny_model: Path, tmp_path: Path
) -> None:
    said = backend_process("prefixes", tiny_model, tmp_path / "out.npz")
    made = updates(tmp_path / "out.npz")
    losses = ("importance_sampling", "ppo", "cispo", "cross_entropy")
    errors = {loss: distance(made[f"{loss}, shared"], made[f"{loss}, separate"]) for loss in losses}
    print(errors)
    assert {loss: error for loss, error in errors.items() if not error <= LARGEST_ERROR} == {}
    for loss in losses:
        shared, separate = said[f"{loss}, shared"], said[f"{loss}, separate"]
        assert shared["losses"] == pytest.approx(separate["losses"], rel=LARGEST_ERROR), loss
        assert shared["shapes"] == separate["shapes"]
        for ours, theirs in zip(shared["logprobs"], separate["logprobs"], strict=True):
            assert ours == pytest.approx(theirs, abs=1e-4)
        # Two rows of 320, two of 320 and one of 96 in passes of two rows, instead of 8 x 192 and 8 x 128.
        assert shared["metrics"]["tokens:sum"] == separate["metrics"]["tokens:sum"]
        assert shared["metrics"]["padded_tokens:sum"] < 0.6 * separate["metrics"]["padded_tokens:sum"]


def test_samples_of_a_prompt_that_is_read_once_are_those_of_rows_that_read_it_themselves(tiny_model: Path) -> None:
    said = backend_process("samples", tiny_model)
    shared, separate = said["shared"], said["separate"]
    assert (shared["read"], separate["read"]) == ([4], [16])
    assert shared["tokens"] == separate["tokens"]
    for ours, theirs in zip(shared["logprobs"], separate["logprobs"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)
    # Greedy rows of the adapter and of the model itself differ, and so do two samples of one prompt.
    assert shared["tokens"][0] != shared["tokens"][6]
    assert shared["tokens"][1] != shared["tokens"][3]


def test_a_model_in_half_precision_takes_the_steps_of_float32(tiny_model: Path, tmp_path: Path) -> None:
    said = backend_process("precision", tiny_model, tmp_path / "out.npz")
    made = updates(tmp_path / "out.npz")
    norms = {name: float(np.linalg.norm(update)) for name, update in made.items()}
    errors = {name: distance(update, made["float32"]) for name, update in made.items()}
    print(norms, errors)
    # What SkyRL does: most of lora_A does not move.
    assert "bfloat16" in said["bfloat16, SkyRL"]["dtypes"]
    assert said["bfloat16, SkyRL"]["unmoved"]["lora_A"] > 0.5
    assert errors["bfloat16, SkyRL"] > 0.5
    assert said["bfloat16"]["dtypes"] == ["float32"]
    assert said["bfloat16"]["unmoved"]["lora_A"] < 0.01
    assert norms["bfloat16"] == pytest.approx(norms["float32"], rel=0.02)
    assert errors["bfloat16"] <= 0.1


def test_the_estimate_is_near_the_buffers_that_xla_plans(tiny_model: Path) -> None:
    shape = ModelShape.from_config(fast_json.loads((tiny_model / "config.json").read_bytes()))
    assert shape is not None
    said = backend_process("memory", tiny_model)
    ratios = {name: estimated(shape, name) / planned for name, planned in said.items()}
    print(ratios)
    assert {name: ratio for name, ratio in ratios.items() if not 0.8 <= ratio <= 1.6} == {}


def estimated(shape: ModelShape, name: str) -> float:
    size, kind = name.split(", ")
    rows, length = map(int, size.split(" x "))
    options: dict[str, Any] = {"rank": 8, "adapters": 4, "rows": rows, "length": length}
    return training_bytes(shape, Layout(), EngineLoad(**options, gradient_checkpointing=kind == "checkpointing"))
