"""What is refused before an engine starts, and what it is told to change."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.training.engines.skyrl import fit
from hermes_rl.training.engines.skyrl.fit import device_memory, fit_engine
from hermes_rl.training.engines.skyrl.process import EngineSettings
from hermes_rl.training.sizing.model_shape import KNOWN

SHAPE = KNOWN["Qwen/Qwen3-8B"]
SETTINGS = EngineSettings("/model", cuda=True)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tensor_parallel": 3}, r"--tensor-parallel 3: 8 \(key-value heads\) .*; use 2, or add --replicate-attention"),
        ({"tensor_parallel": 3, "replicate_attention": True}, r"151,936 \(vocabulary\) .*; use 2"),
        ({"fsdp": 3, "micro_batch": 3, "samples": 3}, r"--fsdp 3: 4,096 \(hidden size\) .*; use 2"),
        ({"fsdp": 4, "micro_batch": 6}, r"--micro-batch 6 must be a multiple of --fsdp 4; use 8"),
        ({"fsdp": 4, "samples": 0}, r"--samples 0 must be a multiple of --fsdp 4; use 4"),
        ({"expert_parallel": 2}, r"--expert-parallel 2 needs a model with experts"),
    ],
)
def test_a_layout_that_skyrl_would_stop_at_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        fit_engine(replace(SETTINGS, **changed), SHAPE, 1e15, None)


def test_a_model_with_few_heads_can_be_split_when_attention_is_not() -> None:
    few = replace(SHAPE, kv_heads=2)
    fit_engine(replace(SETTINGS, tensor_parallel=4, replicate_attention=True), few, 1e15, None)


def test_only_as_many_adapters_as_there_is_room_for() -> None:
    def adapters(memory: float) -> int:
        return fit_engine(SETTINGS, SHAPE, memory, None).settings.adapters

    assert adapters(1e12) == 8
    assert adapters(24e9) < 8
    assert fit_engine(SETTINGS, SHAPE, 1e12, 5).settings.adapters == 5


@pytest.mark.parametrize("memory", [80e9, 48e9, 40e9])
def test_the_settings_that_a_refusal_names_fit(memory: float) -> None:
    asked = replace(SETTINGS, max_length=65_536)
    with pytest.raises(ConfigError, match=rf"and a device has {memory / 1e9:.0f} GB; ") as refusal:
        fit_engine(asked, SHAPE, memory, None)
    options = re.findall(r"--([a-z-]+) ?(\d*)", str(refusal.value).partition(";")[2])
    changes: dict[str, Any] = {name.replace("-", "_"): int(value) if value else True for name, value in options}
    assert "gradient_checkpointing" in changes
    adapters = changes.pop("adapters", None)
    assert fit_engine(replace(asked, **changes), SHAPE, memory, adapters).estimate.total <= memory


def test_weights_alone_that_do_not_fit_need_more_devices() -> None:
    with pytest.raises(ConfigError, match=r"it needs more devices of this size: --fsdp 4"):
        fit_engine(SETTINGS, KNOWN["Qwen/Qwen3-32B"], 40e9, None)


def test_without_a_limit_the_longest_sequence_that_fits_is_shown() -> None:
    shown = str(fit_engine(SETTINGS, SHAPE, 80e9, None))
    assert shown.startswith("estimated memory: ")
    assert re.search(
        r" of 80 GB in all: weights 16 GB, .*; sequences of up to [\d,]+ tokens fit, --max-length refuses", shown
    )


def test_virtual_devices_share_the_memory_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "free_memory", lambda: 8_000)
    assert device_memory(EngineSettings("/model", tensor_parallel=2, fsdp=2)) == 2_000
    monkeypatch.setattr(fit, "free_memory", lambda: None)
    assert device_memory(EngineSettings("/model")) is None


def test_gpus_are_those_that_nvidia_smi_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="the layout needs 2 GPUs, and nvidia-smi lists 0"):
        device_memory(replace(SETTINGS, fsdp=2))
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 81559\necho 40960\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert device_memory(replace(SETTINGS, fsdp=2)) == 40_960 * 2**20 * 0.75
