"""All bundled environments validated: who does nothing gets 0, every cheat gets 0, the author's solution gets 1."""

import pytest

from hermes_rl.environment.loading.loader import bundled_environments, load_environment
from hermes_rl.validation.validate import check_environment

SLOW = {"swe", "harbor"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in bundled_environments()],
)
@pytest.mark.timeout(300)
def test_idling_and_cheating_score_nothing_and_the_oracle_scores(name: str) -> None:
    report = check_environment(load_environment(name), items=2)
    scores = {agent: set(report.scores(agent)) for agent in report.agents()}
    print(f"\n{name}: null {scores['null']}, oracle {scores['oracle']}, {len(scores) - 2} cheats")
    assert report.findings == ()
    assert scores.pop("oracle") == {1.0}
    assert set().union(*scores.values()) == {0.0}
    assert len(scores) > 10
