"""Steps of the engine's own backend in one process, for `scripts/engine_environment skyrl`: MODE MODEL [OUT.npz].

    layouts     one device, then the model shared by several; and with gradient checkpointing
    buckets     passes by length, then everything padded to the longest
    prefixes    sequences with the same beginning as one row, then each sequence by itself
    samples     several samples of a prompt, whose prompt is read once, then each by itself
    precision   a model in float32, in bfloat16 as SkyRL has its adapters, in bfloat16 as this engine does
    memory      the buffers that XLA plans for passes of several sizes
    layer       one layer in bfloat16: what a step moves of its adapter as SkyRL has it, and as this engine does

Prints JSON. OUT gets the update of each variant as `VARIANT/TENSOR`.
"""

import itertools
import json
import sys
import tempfile
import typing
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import typing_extensions

# pydantic takes no other before Python 3.12.
typing.TypedDict = typing_extensions.TypedDict
import_module("hermes_skyrl.stubs").hide_torch()
import_module("hermes_skyrl.stubs").install_stubs()

jax: Any = import_module("jax")
jnp: Any = import_module("jax.numpy")
nnx: Any = import_module("flax.nnx")
upstream: Any = import_module("skyrl.backends.jax")
engine: Any = import_module("skyrl.tinker.engine")
types: Any = import_module("skyrl.tinker.types")
lora: Any = import_module("hermes_skyrl.lora")
backend: Any = import_module("hermes_skyrl.backend")
segments: Any = import_module("hermes_skyrl.segments")
shared_prefill: Any = import_module("hermes_skyrl.shared_prefill")
safetensors: Any = import_module("safetensors.numpy")
import_module("hermes_skyrl.token_sum").sum_over_tokens()

VOCABULARY, RANK = 320, 8
LAYOUTS: dict[str, dict[str, Any]] = {
    "one device": {},
    "checkpointing": {"gradient_checkpointing": True},
    "tp 2": {"tensor_parallel_size": 2},
    "fsdp 2": {"fully_sharded_data_parallel_size": 2},
    "fsdp 4": {"fully_sharded_data_parallel_size": 4},
    "tp 2, fsdp 2": {"tensor_parallel_size": 2, "fully_sharded_data_parallel_size": 2},
    "tp 2, fsdp 4": {"tensor_parallel_size": 2, "fully_sharded_data_parallel_size": 4},
}
# Of one shape, so that each layout compiles once: two passes of four rows, the second with two of them empty.
LENGTHS = [40, 34, 48, 36, 33, 47]


def batch(lengths: list[int], seed: int = 7) -> Any:
    """Sequences of these lengths, of which the second half is sampled, as one request of the model `m`."""
    random = np.random.default_rng(seed)
    data = []
    for length in lengths:
        tokens = random.integers(3, VOCABULARY, length + 1)
        sampled = np.arange(length) >= length // 2
        tensors = {
            "target_tokens": tokens[1:].tolist(),
            "weights": [1.0] * length,
            "logprobs": (-2.0 * sampled).tolist(),
            "advantages": (random.normal() * sampled / length).tolist(),
        }
        data.append(
            types.Datum(
                model_input=types.ModelInput(chunks=[types.EncodedTextChunk(tokens=tokens[:-1].tolist())]),
                loss_fn_inputs=types.LossFnInputs(
                    **{name: types.TensorData(data=column) for name, column in tensors.items()}
                ),
            )
        )
    request = types.ForwardBackwardInput(data=data, loss_fn="importance_sampling", loss_fn_config=None)
    return engine.prepare_model_pass_batch({"r": ("m", request)})


def opened(model: str, **options: Any) -> Any:
    sizes = {"max_lora_adapters": 4, "max_lora_rank": RANK, "train_micro_batch_size": 4, "sample_max_num_sequences": 4}
    made = backend.SlottedBackend(model, upstream.JaxBackendConfig(**sizes | options))
    made.create_model("m", types.LoraConfig(rank=RANK, alpha=32.0, seed=3))
    return made


def adapter(made: Any) -> dict[str, Any]:
    state = jax.tree.leaves_with_path(made.lora_params)
    slot = made.models["m"].adapter_index
    index = backend.upstream.get_adapter_idx
    return {
        jax.tree_util.keystr(path): np.asarray(value[index(path, slot)], np.float32)
        for path, value in state
        if "embed" not in jax.tree_util.keystr(path)
    }


def step(made: Any, given: Any, *, rate: float, eps: float) -> tuple[float, dict[str, float]]:
    output = made.forward_backward(given)["r"]
    adam = types.AdamParams(learning_rate=rate, beta1=0.9, beta2=0.95, eps=eps, weight_decay=0.0)
    made.optim_step("m", types.OptimStepInput(adam_params=adam))
    return sum(sum(each["elementwise_loss"]["data"]) for each in output.loss_fn_outputs), output.metrics


def measured(made: Any) -> list[int]:
    """The bytes that XLA plans for intermediate results of each pass from now on."""
    run, planned = made._forward_backward_and_accumulate, list[int]()

    def passing(*arguments: Any) -> Any:
        planned.append(run.lower(*arguments).compile().memory_analysis().temp_size_in_bytes)
        return run(*arguments)

    made._forward_backward_and_accumulate = passing
    return planned


def two_steps(made: Any, given: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    planned, before = measured(made), adapter(made)
    results = [step(made, given, rate=1e-2, eps=1e-2) for _ in range(2)]
    said = {"losses": [loss for loss, _ in results], "metrics": results[0][1], "bytes": max(planned)}
    return said, {name: value - before[name] for name, value in adapter(made).items()}


def fix_adapters() -> None:
    lora.apply_lora_by_row()
    lora.keep_adapters_in_float32()


def layouts(model: str) -> tuple[dict[str, Any], dict[str, Any]]:
    fix_adapters()
    made = {}
    for name, options in LAYOUTS.items():
        made[name] = two_steps(opened(model, **options), batch(LENGTHS))
        print(f"{name}: {json.dumps(made[name][0])}", file=sys.stderr, flush=True)
    return {name: said for name, (said, _) in made.items()}, {name: update for name, (_, update) in made.items()}


def buckets(model: str) -> tuple[dict[str, Any], dict[str, Any]]:
    fix_adapters()
    # Two passes of four, in any order: three shapes are compiled in all.
    lengths = [300, 60, 290, 50, 280, 45, 270, 40]
    made = opened(model)
    passes, by_length = two_steps(made, batch(lengths))
    plain = backend.SlottedBackend._model_pass
    del backend.SlottedBackend._model_pass
    whole, padded = two_steps(opened(model), batch(lengths))
    backend.SlottedBackend._model_pass = plain
    return {"lengths": lengths, "passes": passes, "whole": whole}, {"passes": by_length, "whole": padded}


def prompts(groups: list[tuple[int, list[int]]], loss: str) -> Any:
    """A batch of groups: each has one prompt of some tokens, and sampled continuations of these lengths."""
    random = np.random.default_rng(11)
    data = []
    for prompt_length, continuations in groups:
        prompt = random.integers(3, VOCABULARY, prompt_length)
        for length in continuations:
            tokens = np.concatenate([prompt, random.integers(3, VOCABULARY, length + 1)])
            sampled = np.arange(len(tokens) - 1) >= prompt_length - 1
            tensors = {
                "target_tokens": tokens[1:].tolist(),
                "weights": [1.0] * len(sampled) if loss != "cross_entropy" else (sampled / length).tolist(),
                "logprobs": [] if loss == "cross_entropy" else (random.normal(-5, 1, len(sampled)) * sampled).tolist(),
                "advantages": [] if loss == "cross_entropy" else (random.normal() * sampled / length).tolist(),
            }
            data.append(
                types.Datum(
                    model_input=types.ModelInput(chunks=[types.EncodedTextChunk(tokens=tokens[:-1].tolist())]),
                    loss_fn_inputs=types.LossFnInputs(
                        **{name: types.TensorData(data=column) for name, column in tensors.items()}
                    ),
                )
            )
    request = types.ForwardBackwardInput(data=data, loss_fn=loss, loss_fn_config=None)
    return engine.prepare_model_pass_batch({"r": ("m", request)})


def prefixes(model: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two groups with a prompt each, and a sequence that nothing else begins like."""
    fix_adapters()
    segments.attend_within_segments()
    groups = [(120, [30, 12, 25, 40, 8, 17]), (100, [33, 20, 41, 9]), (60, [30])]
    said, made = {}, {}
    for loss in ("importance_sampling", "ppo", "cispo", "cross_entropy"):
        given = prompts(groups, loss)
        for name, share in (("shared", segments.can_share), ("separate", lambda _model: False)):
            backend.can_share = share
            opened_backend = opened(model, train_micro_batch_size=8)
            logprobs = opened_backend.forward(given)["r"].loss_fn_outputs
            answer, update = two_steps(opened_backend, given)
            answer["logprobs"] = [each["logprobs"]["data"] for each in logprobs]
            answer["shapes"] = [each["logprobs"]["shape"] for each in logprobs]
            said[f"{loss}, {name}"], made[f"{loss}, {name}"] = answer, update
    backend.can_share = segments.can_share
    return said, made


def samples(model: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Sixteen rows: a trained adapter with two prompts and the model itself with one of them, greedy and sampled."""
    fix_adapters()
    segments.attend_within_segments()
    shared_prefill.read_prompts_once()
    made, random = opened(model, sample_max_num_sequences=16), np.random.default_rng(5)
    step(made, batch(LENGTHS), rate=1e-1, eps=1e-8)
    long, short = (random.integers(3, VOCABULARY, size).tolist() for size in (90, 41))
    said, few = {}, shared_prefill.prompts
    with tempfile.TemporaryDirectory() as folder:
        made.save_sampler_checkpoint(Path(folder) / "trained", "m")
        trained = str(Path(folder) / "trained")
        rows = [(long, trained)] * 6 + [(long, "")] * 4 + [(short, trained)] * 6
        given = types.PreparedSampleBatch(
            all_model_inputs=[types.ModelInput(chunks=[types.EncodedTextChunk(tokens=tokens)]) for tokens, _ in rows],
            all_sampling_params=[
                types.SamplingParams(temperature=float(index % 2), max_tokens=12, seed=index) for index in range(16)
            ],
            all_model_ids=["m"] * 16,
            all_checkpoint_ids=[Path(path).name for _, path in rows],
            all_checkpoint_paths=[path for _, path in rows],
            all_session_ids=[""] * 16,
            needs_prompt_logprobs=False,
            request_batch_slices=[("r", "m", 0, 16, False)],
        )
        for name, found in (("shared", few), ("separate", lambda *_: None)):
            read = list[int]()

            def counting(*rows: Any, found: Any = found, read: list[int] = read) -> Any:
                prompts = found(*rows)
                read.append(16 if prompts is None else len(prompts[0]))
                return prompts

            shared_prefill.prompts = counting
            sequences = made.sample(given)["r"].sequences
            said[name] = {"read": read, "tokens": [each.tokens for each in sequences]}
            said[name]["logprobs"] = [each.logprobs for each in sequences]
    shared_prefill.prompts = few
    return said, {}


def copied(model: str, folder: Path, dtype: str) -> str:
    """The model in this type, with layers that keep the scale of what passes through them.

    The weights of the tests' model have a deviation of 0.3, for confident samples. What passes through grows fivefold
    in a layer, and rounding it to bfloat16 alone changes the gradient by a few per cent.
    """
    folder.mkdir()
    for file in Path(model).iterdir():
        if file.suffix == ".safetensors":
            tensors = safetensors.load_file(file)
            for name, each in tensors.items():
                scaled = each / (each.std() * np.sqrt(each.shape[1])) if "proj" in name else each
                tensors[name] = scaled.astype(dtype)
            safetensors.save_file(tensors, folder / file.name)
        elif file.name == "config.json":
            config = json.loads(file.read_text()) | {"dtype": dtype, "torch_dtype": dtype}
            (folder / file.name).write_text(json.dumps(config))
        else:
            (folder / file.name).symlink_to(file)
    return str(folder)


def twenty_steps(model: str) -> tuple[dict[str, Any], dict[str, Any]]:
    made, given, still = opened(model), batch(LENGTHS), {}
    start = before = adapter(made)
    for _ in range(20):
        step(made, given, rate=4e-5, eps=1e-8)
        now = adapter(made)
        for part in ("lora_A", "lora_B"):
            moved = [before[name] != now[name] for name in now if part in name]
            still[part] = 1 - sum(each.sum() for each in moved) / sum(each.size for each in moved)
        before = now
    update = {name: value - start[name] for name, value in before.items()}
    norm = {part: float(np.sqrt(sum((v**2).sum() for n, v in update.items() if part in n))) for part in still}
    dtypes = {str(leaf.dtype) for leaf in jax.tree.leaves(made.optimizers["m"].opt_state) if leaf.ndim > 1}
    return {"unmoved": still, "norm": norm, "dtypes": sorted(dtypes)}, update


def precision(model: str) -> tuple[dict[str, Any], dict[str, Any]]:
    lora.apply_lora_by_row()
    with tempfile.TemporaryDirectory() as folder:
        exact, rounded = (copied(model, Path(folder, dtype), dtype) for dtype in ("float32", "bfloat16"))
        made = {"float32": twenty_steps(exact), "bfloat16, SkyRL": twenty_steps(rounded)}
        lora.keep_adapters_in_float32()
        made["bfloat16"] = twenty_steps(rounded)
    return {name: said for name, (said, _) in made.items()}, {name: update for name, (_, update) in made.items()}


def memory(model: str) -> tuple[dict[str, Any], dict[str, Any]]:
    fix_adapters()
    said = {}
    for checkpointing, (rows, length) in itertools.product((False, True), ((1, 512), (4, 512), (1, 1024), (4, 1024))):
        made = opened(model, gradient_checkpointing=checkpointing, train_micro_batch_size=rows)
        planned = measured(made)
        made.forward_backward(batch([length] * rows))
        said[f"{rows} x {length}, {'checkpointing' if checkpointing else 'plain'}"] = max(planned)
    return said, {}


def layer(_model: str) -> tuple[dict[str, Any], dict[str, Any]]:
    linear: Any = import_module("skyrl.tx.layers.lora").LoRALinear

    def unmoved() -> float:
        with jax.set_mesh(jax.make_mesh((1, 1, 1), ("fsdp", "ep", "tp"))):
            made = linear(
                64,
                64,
                sharding=("fsdp", "tp"),
                max_lora_adapters=2,
                max_lora_rank=RANK,
                dtype=jnp.bfloat16,
                use_bias=False,
                kernel_init=nnx.initializers.lecun_normal(),
                rngs=nnx.Rngs(0),
            )
            weights = nnx.initializers.he_uniform()(jax.random.key(1), made.lora_A[...].shape, made.lora_A[...].dtype)
            moved = weights - jnp.asarray(4e-5, weights.dtype) * jnp.sign(weights)
            made.lora_A[...] = moved
            output = made(jnp.ones((2, 3, 64), jnp.bfloat16), jnp.array([0, 1]))
            assert output.dtype == jnp.bfloat16
            return float((moved == weights).mean())

    lora.apply_lora_by_row()
    before = unmoved()
    lora.keep_adapters_in_float32()
    return {"SkyRL": before, "kept": unmoved()}, {}


MODES = {each.__name__: each for each in (layouts, buckets, prefixes, samples, precision, memory, layer)}

if __name__ == "__main__":
    mode, model_folder, *out = sys.argv[1:]
    answer, updates = MODES[mode](model_folder)
    if out:
        np.savez(out[0], **{f"{name}/{key}": each for name, update in updates.items() for key, each in update.items()})
    print(json.dumps(answer))
