"""The gateway before a real vLLM: agents in the providers' own SDKs, in every dialect, streamed and not, with a tool.

What each SDK heard is what the record says, the recorded tokens are the conversation, and vLLM gives them the logprobs
that were recorded.
"""

from typing import Any

import pytest

from hermes_rl.inference.config import APIServerConfig
from hermes_rl.inference.server_manager import ServerManager
from hermes_rl.inference.tokens.tokenizer import load_tokenizer
from tests.engines.conftest import TokenEndpoint
from tests.engines.test_vllm_rollouts import MEAN_DIFFERENCE, MOST_DIFFERENCE, engines_own
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
    logprobs,
    play_all,
)

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(900)]
each_way = pytest.mark.parametrize("way", WAYS, ids=WAY_NAMES)


@pytest.fixture(scope="module")
def plays(vllm_server: TokenEndpoint) -> list[Play]:
    """One set of rollouts, looked at from all sides."""
    config = APIServerConfig.model_validate(
        {"base_url": vllm_server.base_url, "model_name": vllm_server.model_name, "server_type": "vllm", "timeout": 300}
    )
    played = play_all(lambda: ServerManager([config]), str(vllm_server.folder))
    print(figures(played))
    return played


@pytest.fixture(scope="module")
def tokenizer(vllm_server: TokenEndpoint) -> Any:
    return load_tokenizer(str(vllm_server.folder))


@each_way
def test_the_sdk_hears_what_the_record_says(plays: list[Play], way: tuple[str, bool]) -> None:
    assert_heard_is_recorded(called(plays, way))


@each_way
def test_the_turn_after_a_tools_result_joins_the_same_sequence(plays: list[Play], way: tuple[str, bool]) -> None:
    play = called(plays, way)
    assert_one_conversation(play)
    assert len(play.rollout.sequences) == 1
    assert play.rollout.turns_used == 2


def test_no_rollout_fails_or_breaks_the_invariant(plays: list[Play]) -> None:
    for play in plays:
        assert_one_conversation(play)
        assert_heard_is_recorded(play)


def test_recorded_tokens_are_the_conversation_encoded_anew(plays: list[Play], tokenizer: Any) -> None:
    for play in plays:
        assert_encoded(play, tokenizer)


def test_the_sdk_is_told_of_as_many_tokens_as_were_sampled(plays: list[Play]) -> None:
    for play in plays:
        assert_counted(play)


async def test_the_engine_gives_the_recorded_logprobs_for_the_same_ids(
    plays: list[Play], vllm_server: TokenEndpoint
) -> None:
    differences: list[float] = []
    for play in plays:
        [sequence] = play.rollout.sequences
        ids, own = await engines_own(vllm_server, sequence)
        assert ids == [token for token, kept in zip(sequence.tokens, sequence.mask, strict=True) if kept]
        differences += [abs(one - other) for one, other in zip(logprobs(sequence), own, strict=True)]
    mean = sum(differences) / len(differences)
    print(f"{len(differences)} sampled tokens: mean difference {mean:.2e}, most {max(differences):.2e}")
    assert mean < MEAN_DIFFERENCE
    assert max(differences) < MOST_DIFFERENCE
