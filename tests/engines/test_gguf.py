"""GGUF files of ours in a real llama.cpp, beside what transformers makes of the same models."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from hermes_rl.training.weights.adapter import Adapter
from hermes_rl.training.weights.gguf_file import write_gguf
from hermes_rl.training.weights.merge import MergedModel
from hermes_rl.training.weights.model_folder import ModelFolder
from scripts.hf_model import vllm_python
from tests.support.adapters import random_adapter

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(300)]

MAKING, LLAMA_CPP = (Path(__file__).with_name(name) for name in ("random_models.py", "llama_cpp_model.py"))
each_model = pytest.mark.parametrize("name", ["llama", "llama3", "qwen2", "qwen3"])
# Two programs that add up in another order.
NOISE = 2e-4


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("models")
    subprocess.run([vllm_python(), MAKING, home], check=True, timeout=200, stderr=subprocess.DEVNULL)
    return home


def reference(folder: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((folder / "reference.json").read_text())
    return told


def unmerged(folder: Path, work: Path) -> MergedModel:
    """A base model and an adapter that make up the model of a folder: weights less what the adapter adds."""
    base, adapter = work / "base", Adapter(random_adapter(folder, work / "adapter", seed=1, rank=4, size=0.02))
    base.mkdir()
    for path in folder.iterdir():
        if path.suffix != ".safetensors":
            (base / path.name).write_bytes(path.read_bytes())
    weights = load_file(folder / "model.safetensors")
    for module in adapter.modules:
        weights[f"{module}.weight"] = weights[f"{module}.weight"] - adapter.delta(module)
    save_file(weights, base / "model.safetensors")
    return MergedModel(ModelFolder(base), adapter)


def asked(file: Path, *questions: dict[str, Any]) -> list[dict[str, Any]]:
    lines = "".join(json.dumps(question) + "\n" for question in questions)
    command = [sys.executable, str(LLAMA_CPP), str(file)]
    said = subprocess.run(command, input=lines, stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    return [json.loads(line) for line in said.stdout.splitlines()]


def apart(model: MergedModel, file: Path, kind: str, known: dict[str, Any]) -> float:
    """The largest difference of any token's logprob."""
    write_gguf(model, file, kind, lambda *_: None)
    [said] = asked(file, {"prompt": known["prompt"], "vocabulary": len(known["logprobs"])})
    largest = float(np.abs(np.subtract(said["logprobs"], known["logprobs"])).max())
    print(f"{file.stem} {kind}: {largest:.2g}")
    return largest


@each_model
def test_llama_cpp_gives_each_token_what_transformers_does(models: Path, name: str, tmp_path: Path) -> None:
    known = reference(models / name)
    assert apart(unmerged(models / name, tmp_path), tmp_path / f"{name}.gguf", "f32", known) < NOISE


@each_model
def test_llama_cpp_cuts_text_as_the_tokenizer_does(models: Path, name: str, tmp_path: Path) -> None:
    texts = reference(models / name)["texts"]
    write_gguf(unmerged(models / name, tmp_path), tmp_path / "model.gguf", "f16", lambda *_: None)
    said = asked(tmp_path / "model.gguf", *({"text": text} for text in texts))
    assert [one["tokens"] for one in said] == list(texts.values())


@pytest.mark.parametrize(("kind", "noise"), [("f16", 0.05), ("bf16", 0.5), ("q8_0", 0.5)])
def test_smaller_files_say_nearly_the_same(models: Path, kind: str, noise: float, tmp_path: Path) -> None:
    known = reference(models / "qwen3")
    assert apart(unmerged(models / "qwen3", tmp_path), tmp_path / "qwen3.gguf", kind, known) < noise
