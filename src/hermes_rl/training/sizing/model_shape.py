"""The tensors of a model as SkyRL's JAX backend lays them out, from config.json or by name.

Always true: every count is exact, for the base weights and for the adapter of one slot; an architecture that is laid
out differently has no shape.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

# Llama has an adapter for each projection; Qwen3 has one for q, k and v together, and one for gate and up.
SEPARATE = ("LlamaForCausalLM",)
FUSED = ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM")
NUMBERS = {"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"}
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class Layout:
    """How the devices share a model. With `replicate_attention` each has all attention heads."""

    tensor_parallel: int = 1
    fsdp: int = 1
    expert_parallel: int = 1
    replicate_attention: bool = False

    @property
    def devices(self) -> int:
        return self.tensor_parallel * self.fsdp * self.expert_parallel


class Tensor(NamedTuple):
    """Tensors of one kind: parameters in all layers, and the axes of the layout that share them."""

    parameters: int
    axes: tuple[str, ...] = ()

    def on_device(self, layout: Layout) -> float:
        shares = 1
        for axis in self.axes:
            shares *= getattr(layout, axis)
        return self.parameters / shares


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The numbers of config.json. `bytes` are those of a parameter; `experts` is 0 for a dense model."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool = False
    bytes: int = 2
    fused: bool = True
    experts: int = 0
    experts_per_token: int = 0

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self | None:
        """None for an architecture that is laid out differently, or without these numbers."""
        architecture = next(iter(config.get("architectures") or ()), "")
        if architecture not in (*SEPARATE, *FUSED) or not config.keys() >= NUMBERS:
            return None
        heads, experts = int(config["num_attention_heads"]), int(config.get("num_experts") or 0)
        dtype = str(config.get("dtype") or config.get("torch_dtype") or "float32")
        return cls(
            hidden=int(config["hidden_size"]),
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
            intermediate=int(config["moe_intermediate_size"] if experts else config["intermediate_size"]),
            vocabulary=int(config["vocab_size"]),
            tied=bool(config.get("tie_word_embeddings", False)),
            bytes=BYTES.get(dtype, 4),
            fused=architecture in FUSED,
            experts=experts,
            experts_per_token=int(config.get("num_experts_per_tok") or 0),
        )

    @property
    def query(self) -> int:
        return self.heads * self.head_dim

    @property
    def key_value(self) -> int:
        """Of keys and values together."""
        return 2 * self.kv_heads * self.head_dim

    @property
    def cache_bytes(self) -> int:
        """Of one token in the KV cache."""
        return self.layers * self.key_value * self.bytes

    @property
    def parameters(self) -> int:
        return sum(tensor.parameters for tensor in self.weights(Layout()))

    @property
    def active_parameters(self) -> int:
        """Those that a token is multiplied with: without the embeddings, and with its own experts only."""
        idle = self.layers * 3 * self.hidden * self.intermediate * (self.experts - self.experts_per_token)
        return self.parameters - max(idle, 0) - (0 if self.tied else self.vocabulary * self.hidden)

    def weights(self, layout: Layout) -> Iterator[Tensor]:
        attention = ("fsdp",) if layout.replicate_attention else ("fsdp", "tensor_parallel")
        width = self.hidden * self.intermediate * self.layers
        yield Tensor(self.vocabulary * self.hidden * (1 if self.tied else 2), ("tensor_parallel",))
        yield Tensor(self.layers * self.hidden * (2 * self.query + self.key_value), attention)
        if self.experts:
            yield Tensor(3 * width * self.experts, ("expert_parallel", "fsdp", "tensor_parallel"))
            yield Tensor(self.layers * self.hidden * self.experts)
        else:
            yield Tensor(3 * width, ("fsdp", "tensor_parallel"))
        norms = 2 * self.hidden + (2 * self.head_dim if self.fused else 0)
        yield Tensor(self.layers * norms + self.hidden)

    def adapter(self, layout: Layout, rank: int) -> Iterator[Tensor]:
        """One slot. Embeddings and head have room for an adapter, though they are never trained."""
        heads = () if layout.replicate_attention else ("tensor_parallel",)
        times, inputs = self.layers * rank, 1 if self.fused else 3
        yield Tensor(times * inputs * self.hidden, ("fsdp",))
        yield Tensor(times * (self.query + self.key_value), heads)
        yield Tensor(times * self.query, heads)
        yield Tensor(times * self.hidden, ("fsdp",))
        experts: tuple[str, ...] = ("expert_parallel",) if self.experts else ()
        times *= max(self.experts, 1)
        yield Tensor(times * (1 if self.fused and not self.experts else 2) * self.hidden, (*experts, "fsdp"))
        yield Tensor(times * 3 * self.intermediate, (*experts, "tensor_parallel"))
        yield Tensor(times * self.hidden, (*experts, "fsdp"))
        yield Tensor(rank * self.vocabulary * (1 if self.tied else 2), ("tensor_parallel",))
        yield Tensor(rank * self.hidden * (1 if self.tied else 2))

    def trained_parameters(self, rank: int) -> int:
        """What a saved adapter has. An adapter that layers share is saved for each of them."""
        inputs = self.layers * rank
        attention = inputs * (4 * self.hidden + 2 * self.query + self.key_value)
        return attention + inputs * max(self.experts, 1) * 3 * (self.hidden + self.intermediate)


# From the config.json of each model on the hub.
KNOWN: Mapping[str, ModelShape] = {
    "Qwen/Qwen3-0.6B": ModelShape(1024, 28, 16, 8, 128, 3072, 151_936, tied=True),
    "Qwen/Qwen3-1.7B": ModelShape(2048, 28, 16, 8, 128, 6144, 151_936, tied=True),
    "Qwen/Qwen3-4B": ModelShape(2560, 36, 32, 8, 128, 9728, 151_936, tied=True),
    "Qwen/Qwen3-8B": ModelShape(4096, 36, 32, 8, 128, 12_288, 151_936),
    "Qwen/Qwen3-14B": ModelShape(5120, 40, 40, 8, 128, 17_408, 151_936),
    "Qwen/Qwen3-32B": ModelShape(5120, 64, 64, 8, 128, 25_600, 151_936),
    "Qwen/Qwen3-30B-A3B": ModelShape(2048, 48, 32, 4, 128, 768, 151_936, experts=128, experts_per_token=8),
    "meta-llama/Llama-3.2-1B": ModelShape(2048, 16, 32, 8, 64, 8192, 128_256, tied=True, fused=False),
    "meta-llama/Llama-3.2-3B": ModelShape(3072, 28, 24, 8, 128, 8192, 128_256, tied=True, fused=False),
    "meta-llama/Llama-3.1-8B": ModelShape(4096, 32, 32, 8, 128, 14_336, 128_256, fused=False),
    "meta-llama/Llama-3.1-70B": ModelShape(8192, 80, 64, 8, 128, 28_672, 128_256, fused=False),
}


def known_shape(name: str) -> tuple[str, ModelShape] | None:
    """By its name on the hub, or by the end of it: `32B` is Qwen/Qwen3-32B, the first of the table that matches."""
    wanted = name.lower().removesuffix("-instruct").removesuffix("-base")
    exact = [(known, shape) for known, shape in KNOWN.items() if known.lower() == wanted]
    ends = [(known, shape) for known, shape in KNOWN.items() if known.lower().endswith(f"-{wanted}")]
    return next(iter(exact or ends), None)
