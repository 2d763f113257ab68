import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from hermes_rl.core.errors import ConfigError
from hermes_rl.training.weights.tensors import Tensor, TensorFile, TensorInfo, to_float32, to_tensor, write_tensors


def test_files_of_the_safetensors_library_are_read(tmp_path: Path) -> None:
    values: dict[str, Any] = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(4, np.float16)}
    save_file(values, tmp_path / "x.safetensors")
    file = TensorFile(tmp_path / "x.safetensors")
    assert {name: to_float32(file[name]).tolist() for name in file.infos} == {
        name: value.tolist() for name, value in values.items()
    }


def test_the_safetensors_library_reads_what_is_written(tmp_path: Path) -> None:
    values: dict[str, Any] = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(4, np.float16)}
    kinds = {"a": "F32", "b": "F16"}
    tensors = {name: to_tensor(value.astype(np.float32), kinds[name]) for name, value in values.items()}
    infos = {name: TensorInfo.for_shape(one.dtype, one.shape) for name, one in tensors.items()}
    write_tensors(tmp_path / "x.safetensors", infos, tensors.__getitem__)
    read = load_file(tmp_path / "x.safetensors")
    assert {name: (value.dtype, value.tolist()) for name, value in read.items()} == {
        name: (value.dtype, value.tolist()) for name, value in values.items()
    }


def test_integers_pass_through_as_they_are(tmp_path: Path) -> None:
    save_file({"steps": np.arange(3, dtype=np.int64)}, tmp_path / "x.safetensors")
    file = TensorFile(tmp_path / "x.safetensors")
    write_tensors(tmp_path / "y.safetensors", file.infos, file.__getitem__)
    assert load_file(tmp_path / "y.safetensors")["steps"].tolist() == [0, 1, 2]


def test_weights_that_cannot_be_computed_with_are_named() -> None:
    with pytest.raises(ConfigError, match="F8_E4M3"):
        to_float32(Tensor("F8_E4M3", (1,), b"\0"))


HEADER = b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff" * 40, struct.pack("<Q", 2) + b"[]", struct.pack("<Q", len(HEADER)) + HEADER],
    ids=["empty", "noise", "no object", "cut off"],
)
def test_a_file_that_is_not_whole_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(ConfigError, match=r"x\.safetensors"):
        TensorFile(tmp_path / "x.safetensors")


def bfloat16(value: float) -> float:
    [back] = to_float32(to_tensor(np.array([value], np.float32), "BF16")).tolist()
    return float(back)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_bfloat16_is_the_nearest_there_is_and_even_on_a_tie(value: float) -> None:
    bits = struct.unpack("<I", struct.pack("<f", value))[0] & 0xFFFF0000
    below = struct.unpack("<f", struct.pack("<I", bits))[0]
    above = struct.unpack("<f", struct.pack("<I", bits + 0x10000))[0]
    # Beyond the largest there is, the next would be as far away again.
    reach = 2.0**128 * math.copysign(1, value) if math.isinf(above) else above
    apart = abs(value - below), abs(reach - value)
    nearest = below if apart[0] < apart[1] or (apart[0] == apart[1] and not bits & 0x10000) else above
    assert bfloat16(value) == nearest


@pytest.mark.parametrize("value", [math.inf, -math.inf, 0.0])
def test_bfloat16_keeps_what_is_no_ordinary_number(value: float) -> None:
    assert bfloat16(value) == value


def test_bfloat16_keeps_what_is_no_number() -> None:
    assert math.isnan(bfloat16(math.nan))
