"""What a server says of itself, and which runs are refused for it."""

from typing import Any

import pytest

from hermes_rl.training.config import TrainerSettings
from hermes_rl.training.engines.protocol import EngineError
from hermes_rl.training.engines.tinker.capabilities import Capabilities, capabilities, check_capabilities
from hermes_rl.training.engines.tinker.engine import _padding

ANSWER = {
    "supported_models": [
        {"model_name": "a", "max_context_length": 4096, "trainable": True},
        {"model_name": "b", "max_context_length": None, "trainable": False},
    ],
    "losses": ["ppo"],
}


def test_what_is_said_of_the_model_is_read() -> None:
    assert capabilities(ANSWER, "a") == Capabilities(frozenset("ab"), True, 4096, frozenset({"ppo"}))
    assert capabilities({"supported_models": [{"model_name": "a"}]}, "a") == Capabilities(frozenset("a"))


@pytest.mark.parametrize("answer", [None, [], {}, {"supported_models": None}, {"supported_models": ["a"]}])
def test_an_answer_of_another_form_says_nothing(answer: Any) -> None:
    assert capabilities(answer, "a") == Capabilities()


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("c", r"it has a, b, not c; set --tinker\.base_model"),
        ("b", "b cannot be trained there"),
        ("a", r"sequences of up to 4,096 tokens.*set --tinker\.max_token_trainer_length 4096"),
    ],
)
def test_a_run_is_refused_by_the_name_of_what_is_missing(model: str, said: str) -> None:
    settings = TrainerSettings(base_url="http://one", base_model=model)
    with pytest.raises(EngineError, match=said) as refusal:
        check_capabilities(capabilities(ANSWER, model), settings)
    assert refusal.value.permanent


def test_a_server_that_says_nothing_is_not_refused() -> None:
    check_capabilities(Capabilities(), TrainerSettings(base_url="http://one", base_model="a"))


def test_padding_is_one_ratio_of_all_parts_of_a_batch() -> None:
    counts = {"tokens:sum": 80.0, "padded_tokens:sum": 100.0, "norm": 1.0}
    assert _padding(counts) == {"norm": 1.0, "padding": 1.25}
    assert _padding({"norm": 1.0}) == {"norm": 1.0}
