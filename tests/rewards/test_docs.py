"""The examples of docs/rewards.md work as they stand there."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hermes_rl import APIServerConfig
from hermes_rl.environment.loading.loader import load_environment
from tests.support.environments import opened
from tests.support.scripted_model import ScriptedModel, Text, always

PAGE = Path(__file__).parents[2] / "docs" / "rewards.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.parametrize("code", EXAMPLES)
def test_an_example_is_python(code: str) -> None:
    compile(code, str(PAGE), "exec")


async def test_the_whole_example_scores_by_the_seeds_pattern(tmp_path: Path) -> None:
    file = tmp_path / "capitals_env.py"
    file.write_text(EXAMPLES[0])
    environment: Any = load_environment(str(file))
    verdict = Text(json.dumps({"reasons": "It names Paris.", "score": 1}))
    async with (
        ScriptedModel(always(verdict), serves=("judge",)) as judge,
        ScriptedModel(always(Text("Paris."))) as model,
    ):
        environment.judge_endpoint = APIServerConfig(base_url=judge.base_url, model_name="judge")
        async with opened(environment, model, group_size=2) as env:
            group = await env.collect_group({"country": "France", "capital": "Paris"})
    assert [rollout.failure for rollout in group.rollouts] == [None, None]
    assert group.scores == [pytest.approx(0.8)] * 2
    assert group.rollouts[0].components == {"correctness": 1.0, "source_use": 0.0, "efficiency": 1.0}
    assert judge.requests == 1
