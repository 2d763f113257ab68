"""Counts of parameters against models whose counts are known."""

import pytest

from hermes_rl.training.sizing.model_shape import KNOWN, Layout, ModelShape, known_shape

# 94,592 parameters, as the hub's own code counts them; PEFT's adapter of rank 8 for it has 16,384.
TINY = ModelShape(64, 2, 4, 2, 16, 128, 320, tied=True, bytes=4)
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "vocab_size": 320,
    "tie_word_embeddings": True,
    "dtype": "float32",
}


def test_a_config_has_all_numbers() -> None:
    assert ModelShape.from_config(CONFIG) == TINY
    assert ModelShape.from_config(CONFIG | {"architectures": ["DeepseekV3ForCausalLM"]}) is None
    assert ModelShape.from_config({"architectures": ["Qwen3ForCausalLM"]}) is None


def test_parameters_of_the_tiny_model_are_exact() -> None:
    assert TINY.parameters == 94_592
    assert TINY.trained_parameters(8) == 16_384


@pytest.mark.parametrize(
    ("layout", "parameters"),
    [
        # Norms (384) are on every device, embeddings (20,480) are split but not sharded.
        (Layout(tensor_parallel=2), 94_208 / 2 + 384),
        (Layout(fsdp=2), 20_480 + 73_728 / 2 + 384),
        (Layout(2, 2), 20_480 / 2 + 73_728 / 4 + 384),
        (Layout(2, 4), 20_480 / 2 + 73_728 / 8 + 384),
        # Attention (24,576) stays whole.
        (Layout(4, replicate_attention=True), 20_480 / 4 + 24_576 + 49_152 / 4 + 384),
    ],
)
def test_a_device_has_its_share_of_the_weights(layout: Layout, parameters: float) -> None:
    assert sum(tensor.on_device(layout) for tensor in TINY.weights(layout)) == parameters


def test_a_slot_has_a_shared_a_and_room_for_the_embeddings() -> None:
    # By layer: qkv 64 + 128, o 64 + 64, gate and up 64 + 256, down 128 + 64; embeddings 320 + 64.
    assert sum(tensor.parameters for tensor in TINY.adapter(Layout(), 1)) == 2 * 832 + 384


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("Qwen/Qwen3-8B", 8.19, 7.57),
        ("Qwen/Qwen3-32B", 32.76, 31.98),
        ("Qwen/Qwen3-30B-A3B", 30.53, 3.04),
        ("meta-llama/Llama-3.1-8B", 8.03, 7.50),
        ("meta-llama/Llama-3.1-70B", 70.55, 69.50),
    ],
)
def test_published_models_have_their_published_size(name: str, billions: float, active: float) -> None:
    assert KNOWN[name].parameters / 1e9 == pytest.approx(billions, abs=0.01)
    assert KNOWN[name].active_parameters / 1e9 == pytest.approx(active, abs=0.01)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("32B", "Qwen/Qwen3-32B"),
        ("qwen3-8b", None),
        ("70b", "meta-llama/Llama-3.1-70B"),
        ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B"),
        ("7B", None),
    ],
)
def test_a_model_is_found_by_its_name_or_its_size(given: str, name: str | None) -> None:
    found = known_shape(given)
    assert (found and found[0]) == name
