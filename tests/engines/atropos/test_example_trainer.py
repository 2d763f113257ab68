"""Atropos' own example trainer, with its own code and torch, fed by our API with groups of `hermes-rl serve`."""

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from scripts.hf_model import vllm_python
from tests.engines.atropos.programs import running
from tests.engines.atropos.word_model import UNSAMPLED_MASK, WordModel, sampled_exactly
from tests.engines.conftest import TokenEndpoint

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.parts, pytest.mark.timeout(600)]

STEPS = Path(__file__).with_name("example_trainer_steps.py")
SERVE = ["-m", "hermes_rl", "serve", "terminal_test", "--env.group_size", "4", "--env.terminal_backend", "bubblewrap"]


def packages_of(python: Path) -> str:
    """Where an environment's packages are."""
    return str(next(python.parents[1].glob("lib/python3*/site-packages")))


async def steps_of_the_trainer(
    atropos_python: Path, api: str, served: Sequence[str], folder: Path, *wanted: str, seconds: float = 300.0
) -> list[dict[str, Any]]:
    """What the example trainer said of its steps while `hermes-rl serve` made groups for it.

    Wanted are the number of steps, the batch size, and perhaps a model.
    """
    command = [str(STEPS), packages_of(atropos_python), api, *wanted]
    logs = [folder / "trainer.log", folder / "serve.log"]
    async with (
        running(vllm_python(), *command, folder=folder / "trainer", log=logs[0]) as trainer,
        running(
            Path(sys.executable), *SERVE, "--env.rollout_server_url", api, *served, folder=folder / "run", log=logs[1]
        ),
    ):
        try:
            async with asyncio.timeout(seconds):
                status = await trainer.wait()
        except TimeoutError:
            status = None
    said = [log.read_text() for log in logs]
    assert status == 0, "\n".join(text[-3000:] for text in said)
    return [json.loads(line.removeprefix("step: ")) for line in said[0].splitlines() if line.startswith("step: ")]


async def test_its_call_sequence_ends_in_tensors_of_what_was_sampled(
    atropos_python: Path, our_api: str, word_model: WordModel, tmp_path: Path
) -> None:
    steps = await steps_of_the_trainer(atropos_python, our_api, word_model.flags, tmp_path, "3", "8")
    assert len(steps) == 3
    for step in steps:
        [labels], [logprobs], [tokens] = step["labels"], step["logprobs"], step["tokens"]
        assert len(labels) == 8
        for row in zip(tokens, labels, logprobs, strict=True):
            # A label is the token that follows.
            following = [*row[0][1:], next(label for label in reversed(row[1]) if label != UNSAMPLED_MASK)]
            assert sampled_exactly(following, row[1], row[2])
        assert step["temperatures"] == [[[[1.0]]] * 8]


async def test_it_finds_the_logprobs_of_its_own_model_in_our_rollouts(
    atropos_python: Path, our_api: str, vllm_server: TokenEndpoint, tmp_path: Path
) -> None:
    endpoint = ["--openai.base_url", vllm_server.base_url, "--openai.model_name", vllm_server.model_name]
    flags = [*endpoint, "--openai.server_type", "vllm", "--env.tokenizer_name", str(vllm_server.folder)]
    # Enough for a batch; then the processors are the trainer's.
    flags += ["--env.max_num_workers", "4", "--env.token_limit", "3000"]
    [step] = await steps_of_the_trainer(atropos_python, our_api, flags, tmp_path, "1", "4", str(vllm_server.folder))
    print({name: value for name, value in step.items() if isinstance(value, float)})
    # In its own words "the key metric": how far the logprobs of the rollouts are from those in training.
    assert step["alignment/diff_abs_mean"] < 1e-3
    assert step["alignment/diff_max"] < 2e-2
    assert 0.99 < step["mean_ratio"] < 1.01
    assert step["grad_norm"] > 0
