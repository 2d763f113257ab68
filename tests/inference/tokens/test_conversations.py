"""Random conversations over every family's template and renderer; scripts/token_conversations.py has the full size."""

from functools import cache
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.conversation_oracle import extends, findings
from tests.support.conversations import SETTINGS, Setting, play

TEMPLATES = [setting for setting in SETTINGS if setting.writer == "template"]
RENDERERS = [setting for setting in SETTINGS if setting.writer == "renderer"]

chance = st.randoms(use_true_random=False)
# A conversation draws a few hundred times, and that is not too much here.
generated = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@pytest.mark.parametrize("setting", TEMPLATES, ids=str)
@settings(generated, max_examples=150)
@given(rng=chance)
def test_what_was_sampled_is_recorded_exactly(setting: Setting, rng: Random) -> None:
    assert findings(play(rng, setting)) == []


@pytest.mark.parametrize("setting", RENDERERS, ids=str)
@settings(generated, max_examples=60)
@given(rng=chance)
def test_what_was_sampled_is_recorded_exactly_by_renderers(setting: Setting, rng: Random) -> None:
    assert findings(play(rng, setting)) == []


@cache
def share_extending(setting: Setting) -> float:
    return sum(extends(play(Random(seed), setting)) for seed in range(60)) / 60


@pytest.mark.parametrize("setting", TEMPLATES, ids=str)
def test_many_of_the_histories_do_not_extend(setting: Setting) -> None:
    assert share_extending(setting) < 0.8


# DeepSeek R1's template opens the thinking in each prompt and leaves it out of every history.
@pytest.mark.parametrize("setting", [one for one in TEMPLATES if one.family != "deepseek_r1"], ids=str)
def test_many_of_the_histories_extend(setting: Setting) -> None:
    assert share_extending(setting) > 0.2
