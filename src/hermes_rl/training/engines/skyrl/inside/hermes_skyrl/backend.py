"""SkyRL's JAX backend with a separate LoRA slot for every sampler checkpoint in use.

Always true: neither sampling nor another model's step changes a slot in training; a sampler uses the weights it was
saved with; a reused slot starts without old gradients; a checkpoint's path exists only once it is complete.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import skyrl.backends.jax as upstream
from skyrl.backends.utils import pad_to_fsdp
from skyrl.tinker.types import (
    EncodedTextChunk,
    ForwardBackwardOutput,
    LoraConfig,
    ModelInput,
    PreparedModelPassBatch,
    PreparedSampleBatch,
)
from skyrl.tx.utils.models import round_up_seq_len
from skyrl.utils.log import logger

from .adapters import copy_adapter, load_adapter, step_slot
from .buckets import passes
from .recovery import atomic_path
from .segments import can_share
from .shared_prefixes import Row, Sample, SharedPass, joined, segments, separated, shared_passes

# Reserved for samplers: the newest version and the previous one.
SAMPLER_SLOTS = 2
BASE_SLOT = 0
# The columns of a batch, with one entry for each sequence; and the one request that a pass of it has.
COLUMNS = tuple(name for name in PreparedModelPassBatch.model_fields if name.startswith("all_"))
# Those with a number for each token.
TOKEN_COLUMNS = ("all_targets", "all_token_weights", "all_sampling_logprobs", "all_advantages")
PART = "pass"


class SlottedBackend(upstream.JaxBackend):  # type: ignore[misc]
    """Models take slots from the bottom, samplers from the top; the least recently used sampler is evicted."""

    accumulated_grads: Any
    _shape: tuple[int, int] | None = None
    """Rows and length of the training pass at work, which replace those that SkyRL would choose."""

    def __init__(self, base_model: str, config: Any) -> None:
        self._samplers: OrderedDict[str, int] = OrderedDict()
        # Gradient norm limit of the next step; 0 for none.
        self.clip = 0.0
        upstream.pad_to_fsdp = lambda array, size: pad_to_fsdp(array, self._shape[0] if self._shape else size)
        upstream.round_up_seq_len = lambda size: self._shape[1] if self._shape else round_up_seq_len(size)
        super().__init__(base_model, config)

    @property
    def sampler_slots(self) -> int:
        """Maximum number of sampler checkpoints in use at once."""
        return int(self.config.max_lora_adapters) - 1 - len(self.models)

    @property
    def has_room(self) -> bool:
        """Whether one more model can be trained."""
        return self.sampler_slots > SAMPLER_SLOTS

    def create_model(self, model_id: str, lora_config: LoraConfig, model_role: str = "policy") -> None:
        if not self.has_room:
            raise ValueError(
                f"this engine trains {len(self.models)} models, its maximum; stop one, or start the engine with "
                f"--adapters {self.config.max_lora_adapters + 1} or more"
            )
        slot = min(set(range(1, self.config.max_lora_adapters)) - self._slots_in_training())
        for path in [path for path, sampler in self._samplers.items() if sampler == slot]:
            del self._samplers[path]
        super().create_model(model_id, lora_config, model_role)
        self._drop_gradients(slot)

    def load_checkpoint(self, checkpoint_path: Any, model_id: str) -> None:
        super().load_checkpoint(checkpoint_path, model_id)
        self._drop_gradients(self.models[model_id].adapter_index)

    def _drop_gradients(self, slot: int) -> None:
        if self.accumulated_grads.counts[slot] != 0:
            with jax.set_mesh(self.mesh):
                self.accumulated_grads = self.accumulated_grads.reset_adapter(jnp.int32(slot))

    def _create_loss_and_grad_fn(self) -> None:
        super()._create_loss_and_grad_fn()
        self._compute_grads_and_update = lambda *arguments: step_slot(*arguments, jnp.float32(self.clip))

    def _model_pass(self, batch: PreparedModelPassBatch, run: Callable[..., Any]) -> dict[str, Any]:
        """SkyRL computes every sequence whole and pads all to the longest.

        Here sequences that begin with the same tokens share a row, and each pass has rows of similar length.
        """
        lengths = [len(_tokens(each)) for each in batch.all_model_inputs]
        outputs: list[Any] = [None] * len(lengths)
        padded = [0.0] * len(lengths)
        for indices, results, tokens in self._computed(batch, run, lengths):
            for index, output in zip(indices, results, strict=True):
                outputs[index], padded[index] = output, tokens / len(indices)
        return {
            request: ForwardBackwardOutput(
                loss_fn_output_type="scalar",
                loss_fn_outputs=outputs[begin:end],
                # The SDK adds up the parts of a batch that it sends in several requests.
                metrics={"tokens:sum": sum(lengths[begin:end]), "padded_tokens:sum": sum(padded[begin:end])},
            )
            for request, _, begin, end in batch.request_batch_slices
        }

    def _computed(
        self, batch: PreparedModelPassBatch, run: Callable[..., Any], lengths: Sequence[int]
    ) -> Iterator[tuple[list[int], list[Any], int]]:
        """For each pass its sequences, their outputs and the number of padded tokens."""
        rows, unit = self.config.train_micro_batch_size, self.config.fully_sharded_data_parallel_size
        left = list(range(len(lengths)))
        if can_share(self.model):
            for each in shared_passes(_samples(batch), rows, unit, self.model.config.hidden_size):
                made = self._run(_joined(batch, each.chosen), each.rows, each.length, _segmented(run, each, lengths))
                results = [
                    output
                    for row, result in zip(each.chosen, made, strict=True)
                    for output in _separated(row, _of(lengths, row), result)
                ]
                indices = [index for row in each.chosen for index in row.indices]
                left = [index for index in left if index not in set(indices)]
                yield indices, results, each.rows * each.length
        for chosen in passes([lengths[index] for index in left], rows, unit):
            indices = [left[index] for index in chosen.indices]
            yield indices, self._run(_part(batch, indices), chosen.rows, chosen.length, run), chosen.tokens

    def _run(self, batch: PreparedModelPassBatch, rows: int, length: int, run: Callable[..., Any]) -> list[Any]:
        """One pass of this shape."""
        self._shape = rows, length
        try:
            result: ForwardBackwardOutput = super()._model_pass(batch, run)[PART]
        finally:
            self._shape = None
        return list(result.loss_fn_outputs)

    def save_checkpoint(self, output_path: Any, model_id: str) -> None:
        with atomic_path(output_path) as temporary:
            super().save_checkpoint(temporary, model_id)

    def save_sampler_checkpoint(self, output_path: Any, model_id: str, persist: bool = True) -> None:
        with atomic_path(output_path) as temporary:
            super().save_sampler_checkpoint(temporary, model_id, persist)
            temporary.with_name(f"{temporary.name}.probe").unlink()
        # A saved sampler is about to be used, and copying it is faster than reading it back.
        slot = self._slot_for(str(output_path), in_use=set())
        with jax.set_mesh(self.mesh):
            copy_adapter(self.model, self.models[model_id].adapter_index, slot)

    def sample(self, prepared_batch: PreparedSampleBatch) -> Any:
        # SkyRL pads a batch with empty prompts, which never stop; copies of the last prompt stop when it does.
        rows = len(prepared_batch.all_model_inputs)
        missing = -rows % (self.config.sample_max_num_sequences or rows or 1)
        lists = ("model_inputs", "sampling_params", "model_ids", "checkpoint_ids", "checkpoint_paths", "session_ids")
        padded = {}
        for name in lists:
            column = getattr(prepared_batch, f"all_{name}")
            padded[f"all_{name}"] = column + column[-1:] * missing
        return super().sample(prepared_batch.model_copy(update=padded))

    def load_sampler_weights(self, prepared_batch: PreparedSampleBatch) -> list[int]:
        """The slot of each sample in the batch; checkpoints of unloaded models work too."""
        paths = prepared_batch.all_checkpoint_paths
        in_use = {path for path in paths if path}
        for path in in_use:
            if path in self._samplers:
                self._samplers.move_to_end(path)
            else:
                self._load_sampler(path, self._slot_for(path, in_use))
        return [self._samplers[path] if path else BASE_SLOT for path in paths]

    def _load_sampler(self, path: str, slot: int) -> None:
        try:
            with jax.set_mesh(self.mesh):
                load_adapter(self.model, Path(path), slot)
        except BaseException:
            del self._samplers[path]
            raise
        logger.info(f"Loaded sampler checkpoint {path} into slot {slot}")

    def _slot_for(self, path: str, in_use: set[str]) -> int:
        """Assign a slot to this checkpoint, evicting another if needed."""
        self._samplers.pop(path, None)
        taken = self._slots_in_training() | set(self._samplers.values())
        free = set(range(1, self.config.max_lora_adapters)) - taken
        if not free:
            free = {self._samplers.pop(next(other for other in self._samplers if other not in in_use))}
        self._samplers[path] = max(free)
        return self._samplers[path]

    def _slots_in_training(self) -> set[int]:
        return {model.adapter_index for model in self.models.values()}


def _part(batch: PreparedModelPassBatch, indices: Sequence[int]) -> PreparedModelPassBatch:
    """These sequences of a batch, as one request."""
    columns = {name: [getattr(batch, name)[index] for index in indices] for name in COLUMNS}
    return batch.model_copy(update={**columns, "request_batch_slices": [(PART, "", 0, len(indices))]})


def _joined(batch: PreparedModelPassBatch, rows: Sequence[Row]) -> PreparedModelPassBatch:
    """Each row as one sequence."""
    part = _part(batch, [row.indices[0] for row in rows])
    columns = {name: [joined(row, _of(getattr(batch, name), row)) for row in rows] for name in TOKEN_COLUMNS}
    tokens = [joined(row, [_tokens(each) for each in _of(batch.all_model_inputs, row)]) for row in rows]
    inputs = [ModelInput(chunks=[EncodedTextChunk(tokens=each)]) for each in tokens]
    return part.model_copy(update={**columns, "all_model_inputs": inputs})


def _segmented(run: Callable[..., Any], each: SharedPass, lengths: Sequence[int]) -> Callable[..., Any]:
    """The pass with an attention mask that says to which sequence a token belongs."""
    marks = np.zeros((each.rows, each.length), np.int32)
    for index, row in enumerate(each.chosen):
        marks[index] = segments(row, _of(lengths, row))

    def passing(gradients: Any, adapters: Any, others: Any, tokens: Any, mask: Any, *columns: Any) -> Any:
        return run(gradients, adapters, others, tokens, jax.device_put(marks, mask.sharding), *columns)

    return passing


def _separated(row: Row, lengths: Sequence[int], output: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What the client gets for each sequence of a row."""
    columns = {name: list(separated(row, lengths, tensor["data"])) for name, tensor in output.items()}
    for index, length in enumerate(lengths):
        yield {name: {**tensor, "data": columns[name][index], "shape": [length]} for name, tensor in output.items()}


def _samples(batch: PreparedModelPassBatch) -> list[Sample]:
    samples = []
    for index, each in enumerate(batch.all_model_inputs):
        tokens = np.array(_tokens(each), np.int64)
        columns = [np.array(getattr(batch, name)[index]) for name in TOKEN_COLUMNS]
        targets, weights, _, advantages = columns
        # A loss may do without a column, which is empty then.
        empty = [column.size == 0 for column in columns]
        loss, config = batch.all_loss_fns[index], batch.all_loss_fn_configs[index]
        kind = batch.all_model_ids[index], loss, repr(config), tuple(empty)
        inert = np.zeros(len(tokens), bool)
        if all(column.size in (0, len(tokens)) for column in columns) and not (empty[0] or empty[1]):
            inert = weights == 0
            if loss != "cross_entropy" and advantages.size:
                inert |= advantages == 0
        samples.append(Sample(kind, tokens, targets, inert))
    return samples


def _of(column: Sequence[Any], row: Row) -> list[Any]:
    return [column[index] for index in row.indices]


def _tokens(given: ModelInput) -> list[int]:
    return [token for chunk in given.chunks for token in chunk.tokens]
