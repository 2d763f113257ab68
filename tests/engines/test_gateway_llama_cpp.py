"""The gateway before a real llama.cpp server, with agents in the providers' own SDKs, twice.

As its users have it: messages in and out, tool calls read by llama.cpp, no tokens (--no-training). And by token ids,
which llama.cpp's own /completion takes and gives; hermes-rl has no server type for it, so the test translates.
The model is SmolLM2 in float32: with quantised weights llama.cpp itself scores the same tokens otherwise one by one
than at once (up to 0.3 with Q4_1).
"""

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.inference.config import APIServerConfig
from hermes_rl.inference.server_manager import ServerManager
from hermes_rl.inference.tokens.tokenizer import load_tokenizer
from hermes_rl.training.weights.adapter import Adapter
from hermes_rl.training.weights.gguf_file import write_gguf
from hermes_rl.training.weights.merge import MergedModel
from hermes_rl.training.weights.model_folder import ModelFolder
from scripts.hf_model import model_folder
from tests.engines.conftest import first_line
from tests.support.adapters import random_adapter
from tests.support.gateway_plays import (
    WAY_NAMES,
    WAYS,
    Play,
    assert_counted,
    assert_encoded,
    assert_heard_is_recorded,
    assert_one_conversation,
    called,
    figures,
    play_all,
)
from tests.support.llama_cpp_tokens import rescored, token_engine

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(900)]
each_way = pytest.mark.parametrize("way", WAYS, ids=WAY_NAMES)

SERVER = Path(__file__).with_name("llama_cpp_server.py")
READY_DEADLINE_S = 120.0
# Each reads the prompt once; with more of them that takes longer than they save.
SLOTS = "2"
# llama.cpp scores one token a request, which is a tenth of a second each.
EVERY = 3
# One program that adds up in another order.
NOISE = 1e-3


@pytest.fixture(scope="module")
def folder() -> Path:
    return model_folder("smollm2")


@pytest.fixture(scope="module")
def llama_cpp(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The root of a llama.cpp server with SmolLM2 in float32."""
    work = tmp_path_factory.mktemp("llama_cpp")
    nothing = Adapter(random_adapter(folder, work / "adapter", seed=0, rank=1, size=0.0))
    write_gguf(MergedModel(ModelFolder(folder), nothing), work / "smollm2.gguf", "f32", lambda *_: None)
    with (work / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(SERVER), str(work / "smollm2.gguf"), SLOTS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdin and process.stdout
    try:
        root = first_line(process.stdout, READY_DEADLINE_S).strip()
        if not root:
            pytest.fail(f"llama.cpp does not answer; its log ends: {(work / 'log.txt').read_text()[-2000:]}")
        yield root
    finally:
        process.stdin.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
        process.stdout.close()
        (work / "smollm2.gguf").unlink()


def manager(base_url: str, server_type: str) -> ServerManager:
    endpoint = {"base_url": base_url, "model_name": "smollm2", "server_type": server_type, "timeout": 300}
    return ServerManager([APIServerConfig.model_validate(endpoint | {"max_retries": 0})])


# --- messages, as llama.cpp answers them ---


@pytest.fixture(scope="module")
def chats(llama_cpp: str) -> list[Play]:
    played = play_all(lambda: manager(f"{llama_cpp}/v1", "openai"), None)
    print(f"messages: {figures(played)}")
    return played


@each_way
def test_the_sdk_hears_what_llama_cpp_says_and_the_record_has_it(chats: list[Play], way: tuple[str, bool]) -> None:
    assert_heard_is_recorded(called(chats, way))


@each_way
def test_the_turn_after_a_tools_result_is_one_conversation_with_the_first(
    chats: list[Play], way: tuple[str, bool]
) -> None:
    play = called(chats, way)
    assert_one_conversation(play)
    assert play.rollout.turns_used == 2


def test_messages_alone_leave_no_tokens_to_train_on(chats: list[Play]) -> None:
    assert not any(play.rollout.sequences for play in chats)


# --- token ids ---


@pytest.fixture(scope="module")
def plays(llama_cpp: str, folder: Path) -> list[Play]:
    @asynccontextmanager
    async def translated() -> AsyncIterator[ServerManager]:
        async with token_engine(llama_cpp) as url, manager(url, "vllm") as held:
            yield held

    played = play_all(translated, str(folder))
    print(f"token ids: {figures(played)}")
    return played


def exact(plays: list[Play]) -> list[Play]:
    """Those that did not fail, which one with half a letter does: llama.cpp tells no logprob of it."""
    assert {play.rollout.failure.cause for play in plays if play.rollout.failure} <= {"no_logprobs"}
    return [play for play in plays if not play.rollout.failure]


@each_way
def test_the_turn_after_a_tools_result_joins_the_same_sequence(plays: list[Play], way: tuple[str, bool]) -> None:
    play = called(plays, way)
    assert_one_conversation(play)
    assert len(play.rollout.sequences) == 1


def test_the_sdk_hears_what_the_record_says_that_was_sampled(plays: list[Play]) -> None:
    for play in exact(plays):
        assert_one_conversation(play)
        assert_heard_is_recorded(play)


def test_recorded_tokens_are_the_conversation_encoded_anew(plays: list[Play], folder: Path) -> None:
    tokenizer: Any = load_tokenizer(str(folder))
    for play in exact(plays):
        assert_encoded(play, tokenizer)


def test_the_sdk_is_told_of_as_many_tokens_as_were_sampled(plays: list[Play]) -> None:
    for play in exact(plays):
        assert_counted(play)


async def test_the_engine_gives_the_recorded_logprobs_for_the_same_ids(plays: list[Play], llama_cpp: str) -> None:
    sequences = [called(plays, way).rollout.sequences[0] for way in WAYS]
    differences: list[float] = []
    for sequence, scores in zip(sequences, await rescored(llama_cpp, sequences, every=EVERY), strict=True):
        for place, score in scores.items():
            recorded = sequence.logprobs[place]
            assert recorded is not None
            differences.append(abs(recorded - score))
    mean = sum(differences) / len(differences)
    print(f"{len(differences)} sampled tokens: mean difference {mean:.2e}, most {max(differences):.2e}")
    assert max(differences) < NOISE
