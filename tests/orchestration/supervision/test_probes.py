import pytest

from hermes_rl.core import fast_json
from hermes_rl.orchestration.supervision import probes
from hermes_rl.orchestration.supervision.run_plan import ComponentPlan, Role

BEGAN = 100.0


def row(name: str, *, instance: str = "", connected: bool = True, seen_at: float = BEGAN + 1) -> dict[str, object]:
    return {"name": name, "instance": instance, "connected": connected, "seen_at": seen_at}


@pytest.mark.parametrize(
    ("known", "evaluation_only", "connected"),
    [
        ([row("words")], False, True),
        ([row("other")], False, False),
        ([row("words", connected=False)], False, False),
        ([row("words", seen_at=BEGAN - 1)], False, False),
        ([row("words")], True, False),
        ([row("words"), row("words", instance="evaluation")], True, True),
        ([row("words", instance="evaluation")], False, False),
    ],
)
def test_an_environment_is_ready_when_the_api_has_heard_of_this_one_in_this_life(
    known: list[dict[str, object]], evaluation_only: bool, connected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "_get", lambda _url, _key: fast_json.dumps(known))
    plan = ComponentPlan("env-words", Role.ENVIRONMENT, (), evaluation_only=evaluation_only, registers_as="words")
    assert probes.is_connected(plan, "http://api", BEGAN) is connected


def test_nobody_is_ready_while_the_api_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "_get", lambda _url, _key: None)
    assert not probes.is_connected(ComponentPlan("env", Role.ENVIRONMENT, ()), "http://api", BEGAN)
