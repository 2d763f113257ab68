"""Safetensors files: mapped to read, and written tensor by tensor, so that a large model never lies in memory whole.

Always true: a tensor that is not computed with leaves byte for byte as it came. bfloat16, which numpy does not know, is
read as float32 and rounded to the nearest, ties to even, as torch does.
"""

import json
import mmap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hermes_rl.errors import ConfigError

Floats = NDArray[np.float32]

ALIGNMENT = 8
# The format's own bound on its header.
LONGEST_HEADER = 100_000_000
BFLOAT16 = "BF16"
NUMPY_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
FLOATING = frozenset({*NUMPY_TYPES, BFLOAT16})


class Tensor(NamedTuple):
    """A tensor as it is stored: its type in safetensors' words, its shape, and its bytes."""

    kind: str
    shape: tuple[int, ...]
    data: bytes | memoryview


class Form(NamedTuple):
    """What a file's header says of a tensor; `size` is in bytes."""

    kind: str
    shape: tuple[int, ...]
    size: int

    @classmethod
    def of(cls, kind: str, shape: tuple[int, ...]) -> "Form":
        width = 2 if kind == BFLOAT16 else np.dtype(NUMPY_TYPES[kind]).itemsize
        return cls(kind, shape, int(np.prod(shape, dtype=np.int64)) * width)


class TensorFile:
    """One file, open for as long as it is referred to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            self.forms, self._begins = _header(self._data)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} is no whole safetensors file: {error}") from error

    def __getitem__(self, name: str) -> Tensor:
        kind, shape, size = self.forms[name]
        return Tensor(kind, shape, self._data[self._begins[name] : self._begins[name] + size])


def floats(tensor: Tensor) -> Floats:
    if tensor.kind == BFLOAT16:
        wide = np.frombuffer(tensor.data, "<u2").astype(np.uint32) << 16
        return wide.view(np.float32).reshape(tensor.shape)
    if tensor.kind not in NUMPY_TYPES:
        raise ConfigError(
            f"weights of type {tensor.kind} cannot be computed with; use the model as it was before it was quantised"
        )
    return np.frombuffer(tensor.data, NUMPY_TYPES[tensor.kind]).astype(np.float32).reshape(tensor.shape)


def stored(values: Floats, kind: str) -> Tensor:
    """The values in one of the types above."""
    if kind == BFLOAT16:
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        halves = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
        # Adding to a NaN's bits could make it infinity.
        halves[np.isnan(values)] = 0x7FC0
        return Tensor(kind, values.shape, halves.tobytes())
    return Tensor(kind, values.shape, values.astype(NUMPY_TYPES[kind]).tobytes())


def write_tensors(path: Path, forms: Mapping[str, Form], tensor: Callable[[str], Tensor]) -> None:
    """Write tensors of those forms; `tensor` is asked for each in turn."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (kind, shape, size) in forms.items():
        begin, end = end, end + size
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(ALIGNMENT, "little") + text)
        for name in forms:
            file.write(tensor(name).data)


def _header(data: memoryview) -> tuple[dict[str, Form], dict[str, int]]:
    """The forms of a file's tensors, and where each begins."""
    length = int.from_bytes(data[:ALIGNMENT], "little")
    if length > min(LONGEST_HEADER, len(data)):
        raise ValueError(f"its header claims {length} bytes")
    header = json.loads(bytes(data[ALIGNMENT : ALIGNMENT + length]))
    if not isinstance(header, Mapping):
        raise TypeError("its header is no object")
    start = ALIGNMENT + length
    forms, begins = {}, {}
    for name, told in header.items():
        if name == "__metadata__":
            continue
        begin, end = (start + int(offset) for offset in told["data_offsets"])
        forms[name] = form = Form(str(told["dtype"]), tuple(map(int, told["shape"])), end - begin)
        begins[name] = begin
        if not start <= begin <= end <= len(data):
            raise ValueError(f"{name} lies outside of it")
        if form.kind in FLOATING and form != Form.of(form.kind, form.shape):
            raise ValueError(f"{name} has {form.size} bytes, which is not its shape's")
    return forms, begins
