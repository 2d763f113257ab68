"""The ten Python functions answer with JSON, whatever they are called with, in whatever state the home is."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hermes_rl.orchestration import rl_tools
from hermes_rl.orchestration.rl_tools.dispatch import RL_TOOLS
from tests.orchestration.discovery.writing import written

NAMES = sorted(RL_TOOLS)
ARGUMENTS = sorted({argument for one in RL_TOOLS.values() for argument in one.tool.parameters["properties"]})
CLASS = "from hermes_rl import HermesAgentBaseEnv\nclass A(HermesAgentBaseEnv):\n    METHODS\n"
BROKEN = {
    "no_python_env.py": "def f(:\n",
    "no_package_env.py": f"import no_such_package\n{CLASS}",
    "exits_env.py": f"{CLASS}raise SystemExit(3)\n",
}


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no text for this")


CIRCULAR: list[Any] = []
CIRCULAR.append(CIRCULAR)
# What cannot start a run or a test of models, which would take minutes.
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.binary(max_size=5),
    st.text(max_size=12),
    st.sampled_from(
        ["plain_text", "no_python", "../..", "/", "\0", "\ud800", "group_size", "preset", "laptop", "4", "x" * 5000]
    ),
    st.sampled_from([Unprintable(), CIRCULAR, object, {1: 2}, {"model": "m", "base_url": 5}, [[]], ("a",), {"a"}, ...]),
)


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, list[Any], dict[str, Any]]:
    name = draw(st.sampled_from(NAMES))
    schema = RL_TOOLS[name].tool.parameters
    optional = dict.fromkeys(schema["properties"], VALUES)
    if draw(st.integers(0, 3)):
        required = {argument: optional.pop(argument) for argument in schema.get("required", ())}
        return name, [], draw(st.fixed_dictionaries(required, optional=optional))
    wrong = st.dictionaries(st.sampled_from([*optional, *ARGUMENTS, "no_such_argument"]), VALUES, max_size=4)
    return name, draw(st.lists(VALUES, max_size=3)), draw(wrong)


def answered(name: str, /, *values: Any, **named: Any) -> dict[str, Any]:
    function: Callable[..., Any] = getattr(rl_tools, name)
    answer = json.loads(asyncio.run(function(*values, **named)))
    assert isinstance(answer, dict)
    assert "error" not in answer or (answer["error"] and answer["next"])
    return answer


@pytest.fixture
def broken(home: Path) -> None:
    written(home / "rl" / "environments", BROKEN)


@pytest.fixture(params=["nothing selected", "selected"])
def draft(request: pytest.FixtureRequest) -> None:
    if request.param == "selected":
        assert "error" not in answered("rl_select_environment", "plain_text", "self-hosted")


@pytest.mark.usefixtures("broken", "draft")
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(call=calls())
def test_any_call_is_answered(call: tuple[str, list[Any], dict[str, Any]]) -> None:
    name, values, named = call
    answered(name, *values, **named)


@pytest.mark.parametrize(
    ("name", "values", "named", "said"),
    [
        ("rl_check_status", [], {}, "missing a required argument: 'run_id'"),
        ("rl_check_status", ["a", "b"], {}, "too many positional arguments"),
        ("rl_stop_training", ["a"], {"run_id": "b"}, "multiple values for argument 'run_id'"),
        ("rl_get_results", [], {"id": "a"}, "run_id"),
        ("rl_list_runs", [3], {}, "too many positional arguments"),
        ("rl_edit_config", ["group_size"], {}, "missing a required argument: 'value'"),
        ("rl_select_environment", [7], {}, "name: "),
    ],
)
def test_a_call_that_python_would_refuse_is_answered_with_the_schema(
    name: str, values: list[Any], named: dict[str, Any], said: str
) -> None:
    answer = answered(name, *values, **named)
    assert said in answer["error"]
    assert answer["schema"] == RL_TOOLS[name].tool.parameters


@pytest.mark.parametrize("name", [name for name in NAMES if name not in {"rl_list_environments", "rl_list_runs"}])
def test_with_nothing_selected_or_started_each_names_the_next_call(name: str) -> None:
    required = RL_TOOLS[name].tool.parameters.get("required", ())
    answer = answered(name, **dict.fromkeys(required, "nothing"))
    assert "error" in answer and "rl_" in answer["next"]


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("name", [Path(file).stem.removesuffix("_env") for file in BROKEN])
def test_a_broken_file_is_refused_with_why(name: str) -> None:
    assert name in answered("rl_select_environment", name)["error"]


@pytest.mark.parametrize("damage", ["{", "[]", "null", '{"environments": 5}'])
def test_a_damaged_draft_is_told(home: Path, damage: str) -> None:
    answered("rl_select_environment", "plain_text", "self-hosted")
    [file] = [path for path in (home / "rl").rglob("default.*") if path.suffix not in {".lock", ".started"}]
    file.write_text(damage)
    for name, arguments in {
        "rl_get_current_config": [],
        "rl_edit_config": ["group_size", 4],
        "rl_start_training": [],
    }.items():
        assert "error" in answered(name, *arguments)


def test_a_home_that_is_a_file_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "file").write_text("")
    monkeypatch.setenv("HERMES_HOME", str(home / "file"))
    assert "error" in answered("rl_select_environment", "gsm8k")
