"""Reads a GGUF file: its metadata, and its tensors as float32.

Always true: the file is mapped, and one tensor is in memory at a time. The gguf package's own reader makes an array of
each string, which takes seconds for a vocabulary of 50,000.
"""

import math
import mmap
import struct
from pathlib import Path
from typing import Any

import numpy as np

from hermes_rl.core.errors import ConfigError
from hermes_rl.training.weights.tensors import Floats

try:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize
except ImportError as missing:
    raise ConfigError("reading GGUF files needs a package: pip install 'hermes-rl[gguf]'") from missing

MAGIC, VERSIONS = b"GGUF", (2, 3)
# struct's characters by GGUF's numbers of types.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
DEFAULT_ALIGNMENT = 32


class GgufFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            self._at = 0
            self._read_header()
        except (OSError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError, struct.error) as error:
            raise ConfigError(f"{path} is not a complete GGUF file: {error}") from error

    def tensor(self, name: str) -> Floats:
        """Its values, with rows as the outer dimension."""
        shape, kind, offset = self._tensors[name]
        raw = np.frombuffer(self._data, np.uint8, _size(shape, kind), offset).reshape(*shape[:-1], -1)
        return np.asarray(dequantize(raw, kind), np.float32).reshape(shape)

    @property
    def names(self) -> list[str]:
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name][0]

    def _read_header(self) -> None:
        if bytes(self._data[:4]) != MAGIC:
            raise ValueError("it does not begin with GGUF")
        self._at = 4
        version, tensors, pairs = self._scalars("IQQ")
        if version not in VERSIONS:
            raise ValueError(f"version {version} is not supported")
        self.metadata: dict[str, Any] = {}
        for _ in range(pairs):
            name = self._string()
            [kind] = self._scalars("I")
            self.metadata[name] = self._value(kind)
        declared = [self._tensor_info() for _ in range(tensors)]
        alignment = int(self.metadata.get("general.alignment", DEFAULT_ALIGNMENT))
        start = -(-self._at // alignment) * alignment
        self._tensors = {name: (shape, kind, start + offset) for name, shape, kind, offset in declared}
        for name, (shape, kind, offset) in self._tensors.items():
            if offset + _size(shape, kind) > len(self._data):
                raise ValueError(f"the tensor {name} goes beyond its end")

    def _tensor_info(self) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int]:
        name = self._string()
        [dimensions] = self._scalars("I")
        # The innermost dimension comes first.
        shape = tuple(reversed(self._scalars(f"{dimensions}Q")))
        kind, offset = self._scalars("IQ")
        return name, shape, GGMLQuantizationType(kind), offset

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind != ARRAY:
            return self._scalars(SCALARS[kind])[0]
        kind, count = self._scalars("IQ")
        if kind in SCALARS:
            return list(self._scalars(f"{count}{SCALARS[kind]}"))
        return [self._value(kind) for _ in range(count)]

    def _string(self) -> str:
        [length] = self._scalars("Q")
        begin, self._at = self._at, self._at + length
        if self._at > len(self._data):
            raise ValueError(f"a text of {length} bytes goes beyond its end")
        return str(self._data[begin : self._at], "utf-8")

    def _scalars(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from(f"<{form}", self._data, self._at)
        self._at += struct.calcsize(f"<{form}")
        return values


def _size(shape: tuple[int, ...], kind: GGMLQuantizationType) -> int:
    """In bytes."""
    block, width = GGML_QUANT_SIZES[kind]
    if not shape or shape[-1] % block:
        raise ValueError(f"rows of {shape} do not divide into blocks of {kind.name}")
    return math.prod(shape) // block * width
