"""Safetensors files: memory-mapped for reading, written tensor by tensor, so that no model is ever fully in memory.

Always true: a tensor that is not computed with is copied byte for byte. bfloat16, which numpy lacks, is read as float32
and rounded to nearest even, as torch does.
"""

import json
import mmap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hermes_rl.core.errors import ConfigError

Floats = NDArray[np.float32]

ALIGNMENT = 8
# The limit of the format.
MAX_HEADER_BYTES = 100_000_000
BFLOAT16 = "BF16"
NUMPY_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
FLOATING = frozenset({*NUMPY_TYPES, BFLOAT16})


class Tensor(NamedTuple):
    """A stored tensor; `dtype` is safetensors' name."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview


class TensorInfo(NamedTuple):
    """The header entry of a tensor; `size` is in bytes."""

    dtype: str
    shape: tuple[int, ...]
    size: int

    @classmethod
    def for_shape(cls, dtype: str, shape: tuple[int, ...]) -> "TensorInfo":
        width = 2 if dtype == BFLOAT16 else np.dtype(NUMPY_TYPES[dtype]).itemsize
        return cls(dtype, shape, int(np.prod(shape, dtype=np.int64)) * width)


class TensorFile:
    """One file, mapped while referenced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            self.infos, self._offsets = _read_header(self._data)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} is not a complete safetensors file: {error}") from error

    def __getitem__(self, name: str) -> Tensor:
        dtype, shape, size = self.infos[name]
        return Tensor(dtype, shape, self._data[self._offsets[name] : self._offsets[name] + size])


def to_float32(tensor: Tensor) -> Floats:
    if tensor.dtype == BFLOAT16:
        wide = np.frombuffer(tensor.data, "<u2").astype(np.uint32) << 16
        return wide.view(np.float32).reshape(tensor.shape)
    if tensor.dtype not in NUMPY_TYPES:
        raise ConfigError(f"weights of type {tensor.dtype} are not supported; use the model before quantization")
    return np.frombuffer(tensor.data, NUMPY_TYPES[tensor.dtype]).astype(np.float32).reshape(tensor.shape)


def to_tensor(values: Floats, dtype: str) -> Tensor:
    if dtype == BFLOAT16:
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        upper = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
        # Rounding up the bits of a NaN could give infinity.
        upper[np.isnan(values)] = 0x7FC0
        return Tensor(dtype, values.shape, upper.tobytes())
    return Tensor(dtype, values.shape, values.astype(NUMPY_TYPES[dtype]).tobytes())


def write_tensors(path: Path, infos: Mapping[str, TensorInfo], tensor: Callable[[str], Tensor]) -> None:
    """Write the tensors of `infos`, calling `tensor` for each in order."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape, size) in infos.items():
        begin, end = end, end + size
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(ALIGNMENT, "little") + text)
        for name in infos:
            file.write(tensor(name).data)


def _read_header(data: memoryview) -> tuple[dict[str, TensorInfo], dict[str, int]]:
    """The header entries, and the offset of each tensor."""
    length = int.from_bytes(data[:ALIGNMENT], "little")
    if length > min(MAX_HEADER_BYTES, len(data)):
        raise ValueError(f"the header claims {length} bytes")
    header = json.loads(bytes(data[ALIGNMENT : ALIGNMENT + length]))
    if not isinstance(header, Mapping):
        raise TypeError("the header is not an object")
    start = ALIGNMENT + length
    infos, offsets = {}, {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = (start + int(offset) for offset in entry["data_offsets"])
        infos[name] = info = TensorInfo(str(entry["dtype"]), tuple(map(int, entry["shape"])), end - begin)
        offsets[name] = begin
        if not start <= begin <= end <= len(data):
            raise ValueError(f"{name} is out of bounds")
        if info.dtype in FLOATING and info != TensorInfo.for_shape(info.dtype, info.shape):
            raise ValueError(f"{name} has {info.size} bytes, which does not match its shape")
    return infos, offsets
