"""From a run file to commands."""

from pathlib import Path

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.orchestration.run_file import EngineEntry, EnvironmentEntry, ReplicasEntry, RunFile
from hermes_rl.orchestration.run_paths import RunPaths
from hermes_rl.orchestration.supervision.plan_builder import PROGRAM, build_plan
from hermes_rl.orchestration.supervision.run_plan import ComponentPlan, Role, RunPlan, fill_command, read_plan


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))


def run_file(*environments: EnvironmentEntry, engine: bool = True) -> RunFile:
    return RunFile(
        run_id="r1",
        name="one",
        preset="laptop",
        environments=environments or (EnvironmentEntry(name="words", reference="words.py:Words"),),
        tinker={"total_steps": 5, "batch_size": 4},
        engine=EngineEntry(model="/models/tiny", rank=8) if engine else None,
        keys=("TINKER_API_KEY",),
    )


def part(plan: RunPlan, name: str) -> ComponentPlan:
    return next(part for part in plan.parts if part.name == name)


def following(words: tuple[str, ...], option: str) -> str:
    return words[words.index(option) + 1]


def test_a_self_hosted_run_has_an_engine_and_the_trainer_needs_it() -> None:
    plan = build_plan(run_file())
    assert [one.name for one in plan.parts] == ["engine", "api", "trainer", "env", "export"]
    assert part(plan, "trainer").needs == ("engine", "api")
    assert following(part(plan, "trainer").command, "--tinker.base_url") == "{url:engine}"


def test_the_time_limit_of_a_run_is_in_its_plan(tmp_path: Path) -> None:
    build_plan(run_file().model_copy(update={"max_minutes": 2.5})).write(tmp_path / "parts.json")
    assert read_plan(tmp_path / "parts.json").max_minutes == 2.5


def test_a_hosted_run_has_none() -> None:
    plan = build_plan(run_file(engine=False))
    assert [one.name for one in plan.parts] == ["api", "trainer", "env", "export"]
    assert "--tinker.base_url" not in part(plan, "trainer").command


@pytest.mark.parametrize("name", ["trainer", "env"])
def test_a_component_reads_its_part_of_the_run_file(name: str) -> None:
    command = part(build_plan(run_file()), name).command
    assert following(command, "--config") == str(RunPaths("r1").file)
    assert following(command, "--part") == name


def test_several_environments_have_parts_of_their_own_names() -> None:
    entries = [
        EnvironmentEntry(name="words", reference="words.py", weight=2.0),
        EnvironmentEntry(name="sums", reference="sums.py", evaluation_only=True),
    ]
    plan = build_plan(run_file(*entries))
    assert [one.name for one in plan.parts if one.role is Role.ENVIRONMENT] == ["env-words", "env-sums"]
    assert part(plan, "env-sums").evaluation_only
    assert part(plan, "env-words").registers_as == "words"


def evaluations(plan: RunPlan, role: Role) -> list[str]:
    return [one.name for one in plan.parts if one.role is role]


def test_a_run_without_held_out_items_is_not_evaluated() -> None:
    assert not any(evaluations(build_plan(run_file()), role) for role in (Role.BASELINE, Role.EVALUATION))


def test_a_run_is_evaluated_greedily_and_sampled_before_its_first_step_and_after_its_last() -> None:
    plan = build_plan(run_file().model_copy(update={"held_out_items": 20}))
    assert evaluations(plan, Role.BASELINE) == ["before-greedy", "before-sampled"]
    assert evaluations(plan, Role.EVALUATION) == ["after-greedy", "after-sampled"]
    temperatures = [
        following(one.command, "--env.eval_temperature") for one in plan.parts if one.name.startswith("after")
    ]
    assert temperatures == ["0.0", "1.0"]
    assert following(part(plan, "after-greedy").command, "--env.eval_size") == "20"


def test_only_environments_that_are_trained_on_are_evaluated_by_the_run() -> None:
    entries = [
        EnvironmentEntry(name="words", reference="words.py"),
        EnvironmentEntry(name="lines", reference="lines.py"),
        EnvironmentEntry(name="sums", reference="sums.py", evaluation_only=True),
    ]
    plan = build_plan(run_file(*entries).model_copy(update={"held_out_items": 1}))
    names = {f"before-{decoding}-{name}" for decoding in ("greedy", "sampled") for name in ("words", "lines")}
    assert set(evaluations(plan, Role.BASELINE)) == names


def test_a_resumed_run_with_steps_is_no_longer_evaluated_before_the_first() -> None:
    lineage = RunPaths("r1").folder / "lineage.jsonl"
    lineage.parent.mkdir(parents=True)
    lineage.write_text('{"step": 1, "version": 1, "batches": [1], "state": "a", "sampler": "b"}\n')
    plan = build_plan(run_file().model_copy(update={"held_out_items": 20}))
    assert evaluations(plan, Role.BASELINE) == []
    assert evaluations(plan, Role.EVALUATION) != []


def test_a_secret_in_a_section_is_refused_with_the_next_step() -> None:
    entry = EnvironmentEntry(name="words", reference="words.py", openai={"api_key": "sk-real-secret"})
    with pytest.raises(ConfigError, match="hermes-rl config set") as raised:
        build_plan(run_file(entry))
    assert "sk-real-secret" not in str(raised.value)


def test_a_plan_comes_back_from_its_file(tmp_path: Path) -> None:
    plan = build_plan(run_file())
    plan.write(tmp_path / "parts.json")
    assert read_plan(tmp_path / "parts.json") == plan


def test_an_engine_on_gpus_gets_its_layout() -> None:
    engine = EngineEntry(model="/m", fsdp=4, max_length=512, gradient_checkpointing=True, cuda=True)
    command = part(build_plan(run_file().model_copy(update={"engine": engine})), "engine").command
    assert (following(command, "--fsdp"), following(command, "--max-length")) == ("4", "512")
    assert {"--gradient-checkpointing", "--cuda"} <= set(command)
    assert "--adapters" not in command


def test_marks_in_a_command_are_filled() -> None:
    command = fill_command(("a", "{port}", "{url:api}/v1", "{other}"), 8000, {"api": "http://127.0.0.1:1"})
    assert command == ["a", "8000", "http://127.0.0.1:1/v1", "{other}"]


def test_every_option_is_one_that_the_commands_know() -> None:
    from click.testing import CliRunner

    from hermes_rl.cli.main import hermes_rl

    for name in ("engine", "api", "trainer", "export"):
        words = fill_command(
            part(build_plan(run_file()), name).command[len(PROGRAM) :], 1, {"api": "http://a", "engine": "http://e"}
        )
        result = CliRunner().invoke(hermes_rl, [*words, "--help-all" if name == "trainer" else "--help"])
        assert result.exit_code == 0, f"{name}: {result.output}"
        for option in (word for word in words if word.startswith("--")):
            assert option in result.output, f"{name} knows no {option}"


def test_the_parts_of_a_traced_run_are_told_where_and_inside_what() -> None:
    plan = build_plan(run_file().model_copy(update={"trace": "http://localhost:4318"}))
    traced = {one.name for one in plan.parts if "--trace" in one.command}
    assert traced == {"api", "trainer", "env"}
    assert (plan.trace, str(plan.traceparent)[:3]) == ("http://localhost:4318", "00-")


def test_a_run_that_is_not_traced_tells_nobody() -> None:
    plan = build_plan(run_file())
    assert (plan.trace, plan.traceparent) == (None, None)
    assert not any("--trace" in one.command for one in plan.parts)


def test_replicas_of_an_environment_are_called_by_the_runs_id_and_are_given_its_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "geheim")
    replicas = ReplicasEntry(count=4, shards=8, on="ray", ray_address="10.0.0.1:6379")
    command = part(build_plan(run_file().model_copy(update={"replicas": replicas})), "env").command
    assert following(command, "--replicas") == "4"
    assert following(command, "--shards") == "8"
    assert following(command, "--on") == "ray"
    assert following(command, "--name") == "r1"
    assert following(command, "--replica-key") == "TINKER_API_KEY"
    assert "geheim" not in command


def test_an_environment_that_only_evaluates_has_no_replicas() -> None:
    entries = [
        EnvironmentEntry(name="words", reference="words.py"),
        EnvironmentEntry(name="sums", reference="sums.py", evaluation_only=True),
    ]
    plan = build_plan(run_file(*entries).model_copy(update={"replicas": ReplicasEntry(count=2)}))
    assert following(part(plan, "env-words").command, "--name") == "r1-words"
    assert "--replicas" not in part(plan, "env-sums").command


def test_what_others_reach_listens_there_and_wants_the_runs_key() -> None:
    plan = build_plan(run_file().model_copy(update={"reach": "10.0.0.7"}))
    api, trainer, env = (part(plan, name) for name in ("api", "trainer", "env"))
    assert (api.host, trainer.host, part(plan, "engine").host) == ("10.0.0.7", "10.0.0.7", "127.0.0.1")
    assert following(api.command, "--host") == "10.0.0.7"
    assert following(api.command, "--token") == "env:HERMES_RL_RUN_TOKEN"
    assert env.asks_with == "HERMES_RL_RUN_TOKEN"


def test_a_run_that_nobody_else_reaches_has_no_key_of_its_own() -> None:
    plan = build_plan(run_file())
    assert all(one.host == "127.0.0.1" and one.asks_with is None for one in plan.parts)
    assert "--token" not in part(plan, "api").command
