"""Whatever is edited in whatever order, the draft stays one that a run can be made of."""

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hermes_rl.core.errors import ConfigError
from hermes_rl.orchestration.configuration.build import build_run_file
from hermes_rl.orchestration.configuration.draft import Draft
from hermes_rl.orchestration.configuration.edit import edit_field, new_draft
from hermes_rl.orchestration.configuration.view import draft_view
from tests.orchestration.configuration.environments import model_folder, written
from tests.orchestration.configuration.test_build import parts_of

FAST = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])

GOOD: dict[str, st.SearchStrategy[Any]] = {
    "group_size": st.integers(2, 65_535).flatmap(lambda number: st.sampled_from([number, str(number), float(number)])),
    "batch_size": st.integers(1, 10_000),
    "level": st.integers(1, 9),
    "style": st.sampled_from(["short", "long"]),
    "low": st.integers(-5, 10),
    "high": st.integers(10, 99),
    "total_steps": st.integers(11, 10**9),
    "warmup_steps": st.integers(0, 9),
    "learning_rate": st.floats(1e-9, 1.0),
    "lora_rank": st.integers(1, 256),
    "max_staleness": st.integers(0, 100),
    "wandb_name": st.text(st.characters(codec="utf-8", categories=("L", "N", "Z", "S")), min_size=1, max_size=20),
    "seed": st.integers(0, 2**31),
    "enabled_toolsets": st.lists(st.sampled_from(["terminal", "file", "web"]), unique=True),
    "tool_call_parser": st.sampled_from(["hermes", "qwen", "mistral"]),
    "loss": st.sampled_from(["importance_sampling", "ppo", "cispo"]),
    "use_wandb": st.booleans(),
    "openai.timeout": st.floats(1, 1e6),
    "engine.samples": st.integers(0, 512),
    "preset": st.sampled_from(["laptop", "self-hosted", "tinker"]),
}
JUNK = st.one_of(
    st.none(),
    st.text(st.sampled_from("abcdefghijklmnopqrstuvwxyz"), min_size=3, max_size=12).map(lambda word: f"{word}!"),
    st.floats(allow_nan=True, allow_infinity=True).filter(lambda number: not math.isfinite(number)),
    st.lists(st.integers(), min_size=1, max_size=3),
    st.integers(max_value=-1),
)
NUMBERS = {
    "group_size": "a whole number from 2 to 65535",
    "batch_size": "a whole number from 1",
    "level": "a whole number from 1 to 9",
    "max_staleness": "a whole number from 0",
    "engine.micro_batch": "a whole number from 0",
    "learning_rate": "a number above 0",
    "min_group_share": "a number above 0 to 1",
}


@pytest.fixture(scope="module")
def start(described_here: None) -> Iterator[Draft]:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HERMES_HOME", folder)
        yield edit_field(new_draft(written(Path(folder)), "laptop"), "base_model", model_folder(Path(folder)))


EDITS = st.lists(st.sampled_from(sorted(GOOD)).flatmap(lambda name: st.tuples(st.just(name), GOOD[name])), max_size=8)


def edited_by(draft: Draft, edits: list[tuple[str, Any]]) -> tuple[Draft, list[str]]:
    """What comes of the edits, and what was said of those that were refused."""
    refusals = []
    for name, value in edits:
        try:
            draft = edit_field(draft, name, value)
        except ConfigError as error:
            refusals.append(str(error))
    return draft, refusals


@FAST
@given(edits=EDITS)
def test_valid_edits_in_any_order_make_a_run_that_its_parts_take(start: Draft, edits: list[tuple[str, Any]]) -> None:
    draft, refusals = edited_by(start, edits)
    # The preset of before may lock a field, or have no engine; nothing else is wrong with these.
    assert all("is locked at" in said or "does not start an engine" in said for said in refusals)
    with tempfile.TemporaryDirectory() as folder:
        run = build_run_file(draft)
        assert parts_of(run, Path(folder)).batch_size == run.environments[0].env["batch_size"]


@FAST
@given(edits=EDITS)
def test_what_is_shown_is_what_the_run_has(start: Draft, edits: list[tuple[str, Any]]) -> None:
    draft, _ = edited_by(start, edits)
    run = build_run_file(draft)
    told = draft_view(draft)
    fields = {field["name"]: field["current_value"] for field in told["configurable_fields"]}
    fields |= {field["name"]: field["locked_value"] for field in told["locked_fields"]}
    one = run.environments[0]
    for name in ("group_size", "level", "max_agent_turns", "worker_timeout", "max_token_length"):
        assert fields[name] == one.env[name]
    for name in ("batch_size", "total_steps", "learning_rate", "lora_rank", "base_model", "loss", "wandb_name"):
        assert fields[name] == run.tinker[name]


@FAST
@given(name=st.sampled_from(sorted(NUMBERS)), value=JUNK)
def test_a_bad_edit_changes_nothing_and_names_field_value_and_range(start: Draft, name: str, value: Any) -> None:
    before = draft_view(start)
    with pytest.raises(ConfigError) as refused:
        edit_field(start, name, value)
    message = str(refused.value)
    assert message.startswith(f"{name} cannot be {value!r}") and message.endswith(f"it takes {NUMBERS[name]}")
    assert draft_view(start) == before
