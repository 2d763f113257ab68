from pathlib import Path
from unittest.mock import Mock

import pytest

from hermes_rl.console.config_options import resolve_section
from hermes_rl.core.errors import ConfigError
from hermes_rl.environment.loading.loader import load_environment
from hermes_rl.environment.resolve_config import resolve_settings
from hermes_rl.orchestration.configuration import introspect
from hermes_rl.orchestration.configuration.build import build_run_file
from hermes_rl.orchestration.configuration.draft import Draft
from hermes_rl.orchestration.configuration.edit import edit_field, new_draft
from hermes_rl.orchestration.configuration.view import draft_view
from hermes_rl.orchestration.run_file import RunFile, read_part, read_run_file
from hermes_rl.training.config import TrainerSettings
from tests.orchestration.configuration.environments import PLAIN, model_folder, written


def test_the_default_run_has_the_seeds_locked_values(draft: Draft) -> None:
    run = build_run_file(draft)
    env, tinker = run.environments[0].env, run.tinker
    assert {name: env[name] for name in SEED_ENV} == SEED_ENV
    assert {name: tinker[name] for name in SEED_TINKER} == SEED_TINKER
    assert run.engine is None


SEED_ENV = {
    "tokenizer_name": "Qwen/Qwen3-8B",
    "max_token_length": 8192,
    "max_num_workers": 2048,
    "worker_timeout": 3600,
    "steps_per_eval": 25,
    "max_batches_offpolicy": 3,
    "inference_weight": 1.0,
    "eval_limit_ratio": 0.1,
    "group_size": 16,
    "batch_size": 128,
}
SEED_TINKER = {
    "base_model": "Qwen/Qwen3-8B",
    "lora_rank": 32,
    "learning_rate": 4e-5,
    "max_token_trainer_length": 9000,
    "total_steps": 2500,
    "max_staleness": 3,
    "batch_size": 128,
}


def test_its_parts_take_it_as_it_is(laptop: Draft, tmp_path: Path) -> None:
    run = build_run_file(laptop)
    settings = parts_of(run, tmp_path)
    assert (settings.total_steps, run.environments[0].env["total_steps"]) == (10, 10)


def parts_of(run: RunFile, folder: Path) -> TrainerSettings:
    """The run as its parts read it; an error where one of them refuses it."""
    file = folder / "run.yaml"
    run.write(file)
    for one in run.environments:
        sections = read_part(file, run.part_of(one))
        url = {"base_url": "http://127.0.0.1:1/v1"}
        settings = resolve_settings(load_environment(one.reference), sections, {}, url)
        assert settings.endpoints[0].server_type == "vllm"
    return resolve_section(TrainerSettings(), "tinker", read_part(file, "trainer"), {})


def test_it_is_the_same_when_it_is_read_again(laptop: Draft, tmp_path: Path) -> None:
    run = build_run_file(laptop)
    run.write(tmp_path / "run.yaml")
    assert read_run_file(tmp_path / "run.yaml") == run


def test_one_edit_reaches_every_part(laptop: Draft) -> None:
    draft = laptop
    for field, value in {
        "batch_size": 24,
        "max_staleness": 1,
        "wandb_name": "mine",
        "tool_call_parser": "qwen",
        "seed": 5,
        "tokenizer_name": "/some/tokenizer",
    }.items():
        draft = edit_field(draft, field, value)
    run = build_run_file(draft)
    one = run.environments[0]
    model = str(run.tinker["base_model"])
    assert (one.env["batch_size"], run.tinker["batch_size"]) == (24, 24)
    assert (one.env["max_batches_offpolicy"], run.tinker["max_staleness"]) == (1, 1)
    assert {one.env["wandb_name"], run.tinker["wandb_name"], run.name} == {"mine"}
    assert (one.env["tool_call_parser"], run.tinker["tool_call_parser"]) == ("qwen", "qwen")
    assert (one.env["seed"], run.tinker["seed"]) == (5, 5)
    assert {values["tokenizer_name"] for values in (one.env, one.openai, run.tinker)} == {"/some/tokenizer"}
    assert run.engine is not None and {model, one.openai["model_name"], run.engine.model} == {model}


def test_the_engine_holds_the_rank_that_is_trained(laptop: Draft) -> None:
    engine = build_run_file(edit_field(laptop, "lora_rank", 64)).engine
    assert engine is not None and engine.rank == 64


def test_an_engine_that_runs_already_is_used_and_none_started(laptop: Draft) -> None:
    run = build_run_file(edit_field(laptop, "tinker.base_url", "http://127.0.0.1:8002"))
    assert (run.engine, run.tinker["base_url"]) == (None, "http://127.0.0.1:8002")


def test_without_a_model_there_is_no_run(described_here: None, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the run cannot start: base_model is not set: give the model to train"):
        build_run_file(new_draft(written(tmp_path), "self-hosted"))


def test_it_has_no_address_in_it(draft: Draft) -> None:
    run = build_run_file(draft)
    one = run.environments[0]
    assert {"rollout_server_url", "serve_dir"}.isdisjoint(one.env)
    assert "base_url" not in one.openai
    assert {"rollout_server_url", "host", "port"}.isdisjoint(run.tinker)


def test_ids_are_eight_hex_digits_and_the_name_is_the_environments_with_the_time(draft: Draft) -> None:
    run = build_run_file(draft)
    assert len(run.run_id) == 8 and int(run.run_id, 16) >= 0
    assert run.name.startswith("counting-2")


def test_a_run_is_given_the_keys_it_may_use(draft: Draft, laptop: Draft) -> None:
    assert build_run_file(draft).keys == ("TINKER_API_KEY", "WANDB_API_KEY", "HF_TOKEN")
    assert build_run_file(laptop).keys == ("WANDB_API_KEY",)


def test_a_key_is_needed_only_where_the_preset_says_so(draft: Draft, laptop: Draft) -> None:
    assert [draft_view(one)["needed_keys"] for one in (draft, laptop)] == [["TINKER_API_KEY"], []]


def test_keys_that_settings_refer_to_are_given_too(laptop: Draft) -> None:
    draft = edit_field(laptop, "user_endpoint", {"base_url": "https://x.org/v1", "api_key": "env:USER_KEY"})
    draft = edit_field(edit_field(draft, "terminal_backend", "daytona"), "use_wandb", False)
    assert build_run_file(draft).keys == ("DAYTONA_API_KEY", "USER_KEY")


def test_wandb_is_used_where_it_is_set_up_and_not_asked_for(draft: Draft) -> None:
    run = build_run_file(draft)
    assert "use_wandb" not in run.environments[0].env and "use_wandb" not in run.tinker


def test_wandb_asked_for_by_the_author_does_not_stop_a_run_without_it(described_here: None, tmp_path: Path) -> None:
    text = PLAIN.replace("level=5", "level=5, use_wandb=True")
    assert build_run_file(new_draft(written(tmp_path, text))).environments[0].env["use_wandb"] is False


def test_wandb_refused_is_refused_in_every_part(laptop: Draft) -> None:
    run = build_run_file(edit_field(laptop, "use_wandb", "no"))
    assert (run.environments[0].env["use_wandb"], run.tinker["use_wandb"]) == (False, False)


def test_a_literal_secret_of_the_authors_is_left_to_the_file(described_here: None, tmp_path: Path) -> None:
    text = PLAIN.replace("level=5", 'level=5, tool_settings={"web": {"api_key": "verysecret"}}')
    draft = new_draft(written(tmp_path, text))
    run = build_run_file(draft)
    assert "tool_settings" not in run.environments[0].env
    assert "verysecret" not in f"{draft.environments[0].description}{run}"


def test_a_file_that_changed_is_taken_as_it_is(described_here: None, tmp_path: Path) -> None:
    draft = new_draft(written(tmp_path))
    found = written(tmp_path, PLAIN.replace("level=5", "level=6"))
    one = build_run_file(draft).environments[0]
    assert (one.id, one.env["level"]) == (found.id, 6)


def test_a_run_waits_20_seconds_for_rollouts_at_a_stop_unless_it_is_set(
    described_here: None, tmp_path: Path, draft: Draft
) -> None:
    own = new_draft(written(tmp_path, PLAIN.replace("level=5", "level=5, stop_timeout=30"), name="own"))
    drafts = draft, own, edit_field(draft, "stop_timeout", 45)
    assert [build_run_file(one).environments[0].env["stop_timeout"] for one in drafts] == [20, 30, 45]


@pytest.mark.parametrize(("stored", "count"), [(False, 0), (True, 1)])
def test_only_a_stored_draft_is_described_again(
    draft: Draft, monkeypatch: pytest.MonkeyPatch, stored: bool, count: int
) -> None:
    describe = Mock(wraps=introspect.describe)
    monkeypatch.setattr(introspect, "describe", describe)
    build_run_file(draft, stored=stored)
    assert describe.call_count == count


def test_the_environments_own_trainer_fields_are_not_mixed_up(described_here: None, tmp_path: Path) -> None:
    """What config_init says of total_steps is how many groups `process` makes."""
    text = PLAIN.replace("level=5", "level=5, total_steps=3, batch_size=-1")
    draft = edit_field(new_draft(written(tmp_path, text), "laptop"), "base_model", model_folder(tmp_path))
    run = build_run_file(draft)
    assert (run.tinker["total_steps"], run.tinker["batch_size"]) == (10, 16)
