"""Nothing that is told of a run holds a key, wherever a part has written it."""

import json
from dataclasses import replace

import pytest

from hermes_rl.core.key_file import change_keys
from hermes_rl.core.keys import key_file
from hermes_rl.orchestration.reconciler.unit import UnitState
from hermes_rl.orchestration.run_file import EnvironmentEntry
from hermes_rl.orchestration.run_state import ComponentStatus, Phase
from hermes_rl.orchestration.status.logs import log_lines
from hermes_rl.orchestration.status.results import results
from hermes_rl.orchestration.status.run_list import list_runs
from hermes_rl.orchestration.status.status import status
from tests.support.recorded_runs import make_run, record, run_file, write_log

VARIABLE, FILED, OWN = "tml-variable-4711-secret", "sk-filed-0815-secret", "own-value-1234-secret"


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TINKER_API_KEY", VARIABLE)
    monkeypatch.setenv("MY_JUDGE_KEY", OWN)
    change_keys(key_file(), "OPENAI_API_KEY", FILED)
    leak = f"401: {VARIABLE} and {FILED} and {OWN} were refused"
    entry = EnvironmentEntry(name="words", reference="words", openai={"api_key": FILED})
    file = run_file("r1", tinker={"api_key": VARIABLE}, keys=("MY_JUDGE_KEY",))
    file = file.model_copy(update={"environments": (entry,)})
    part = ComponentStatus(UnitState.EXITED, exit_code=1, problem=leak)
    places = make_run(phase=Phase.FAILED, reason=leak, file=file, parts={"trainer": part, "api": replace(part)})
    record((file, "failed"))
    write_log(places, "trainer", leak + "\n")
    answers = [status("r1"), status("r1", use_cache=True), results("r1"), list_runs(), log_lines("r1", "trainer", 5)]
    return json.dumps(answers) + (places.folder / "told.json").read_text()


@pytest.mark.parametrize("secret", [VARIABLE, FILED, OWN])
def test_no_answer_holds_a_key(told: str, secret: str) -> None:
    assert secret not in told


def test_the_message_is_there_all_the_same(told: str) -> None:
    assert "401: ********** and ********** and ********** were refused" in told
