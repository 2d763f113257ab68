"""`hermes-rl run` and `hermes-rl train` as they are typed, over runs that were recorded."""

import json
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from click.testing import CliRunner
from rich.console import Console

from hermes_rl.cli.main import hermes_rl
from hermes_rl.cli.run.live import status_panel
from hermes_rl.cli.run.logs import LogTail
from hermes_rl.cli.run.start_options import parse_weight
from hermes_rl.console.panel import render_panel
from hermes_rl.console.run_command import run_click
from hermes_rl.core.errors import ConfigError
from hermes_rl.orchestration.configuration import introspect
from hermes_rl.orchestration.run_paths import RunPaths
from hermes_rl.orchestration.run_state import Phase
from hermes_rl.orchestration.status.status import status
from hermes_rl.orchestration.status.summary import run_summary
from tests.support.recorded_runs import make_run, run_file, write_log, write_steps, write_weights

ENVIRONMENT = Path(__file__).parents[3] / "examples" / "plain_text_env.py"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    monkeypatch.delenv("TINKER_API_KEY", raising=False)


@pytest.fixture
def model(tmp_path: Path) -> str:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    return str(folder)


def typed(*arguments: str) -> int:
    return run_click(hermes_rl, list(arguments), "hermes-rl")


def told(*arguments: str) -> Any:
    return json.loads(CliRunner().invoke(hermes_rl, [*arguments, "--json"]).stdout)


def test_without_runs_the_list_says_how_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("run", "list") == 0
    assert "hermes-rl train ENV" in capsys.readouterr().err


def test_the_list_has_each_run_with_its_status() -> None:
    make_run("r1", phase=Phase.FINISHED)
    make_run("r2", phase=Phase.RUNNING, age=60)
    assert [(one["run_id"], one["status"]) for one in told("run", "list")] == [("r2", "running"), ("r1", "finished")]


def test_a_run_is_named_by_its_beginning_or_as_the_last(capsys: pytest.CaptureFixture[str]) -> None:
    make_run("abc123", age=100)
    make_run("def456", age=10)
    assert told("run", "status", "abc")["run_id"] == "abc123"
    assert told("run", "status", "last")["run_id"] == "def456"
    assert told("run", "status")["run_id"] == "def456"


def test_a_beginning_of_several_runs_is_refused_with_them(capsys: pytest.CaptureFixture[str]) -> None:
    make_run("abc123")
    make_run("abc456")
    assert typed("run", "status", "abc") == 2
    assert "abc123" in (said := capsys.readouterr().err) and "abc456" in said


def test_an_unknown_run_is_refused_with_the_newest(capsys: pytest.CaptureFixture[str]) -> None:
    make_run("abc123")
    assert typed("run", "results", "nothing") == 2
    assert "abc123" in capsys.readouterr().err


@pytest.mark.parametrize(("phase", "code"), [(Phase.FINISHED, 0), (Phase.RUNNING, 0), (Phase.FAILED, 1)])
def test_the_exit_code_of_a_status_tells_a_failure(phase: Phase, code: int) -> None:
    make_run("r1", phase=phase, reason="the trainer ended three times" if phase is Phase.FAILED else None)
    assert typed("run", "status", "r1") == code


def test_a_status_shows_steps_parts_and_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    write_steps(make_run("r1", phase=Phase.FAILED, reason="the trainer ended three times"), 4)
    typed("run", "status", "r1")
    said = capsys.readouterr().out
    assert "step 4 of 100" in said
    assert "trainer" in said
    assert "the trainer ended three times" in said


def test_watching_a_run_that_has_ended_ends_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    make_run("r1", phase=Phase.FAILED, reason="no disk")
    assert typed("run", "status", "r1", "--watch") == 1
    said = capsys.readouterr().err
    assert "no disk" in said
    assert "hermes-rl run resume r1" in said


def test_a_live_picture_has_the_run_its_steps_and_its_parts() -> None:
    write_steps(make_run("r1"), 4)
    page = StringIO()
    Console(width=120, file=page).print(render_panel(status_panel(status("r1"), run_summary("r1"))))
    said = page.getvalue()
    assert "r1" in said
    assert "step 4 of 100" in said
    assert "trainer running" in said


def test_results_show_where_the_weights_are(capsys: pytest.CaptureFixture[str]) -> None:
    places = make_run("r1", phase=Phase.FINISHED)
    write_steps(places, 3)
    weights = write_weights(places)
    assert typed("run", "results", "r1") == 0
    assert f"  weights       {weights}\n" in capsys.readouterr().out
    assert told("run", "results", "r1")["weights_path"] == str(weights)


def test_results_show_the_rewards_and_what_to_do_next(capsys: pytest.CaptureFixture[str]) -> None:
    places = make_run("r1", phase=Phase.FINISHED)
    write_steps(places, 3)
    write_weights(places)
    assert typed("run", "results", "r1") == 0
    shown = capsys.readouterr().out
    history = told("run", "results", "r1")["history"]
    assert f"{history[0]['reward/mean']:.3f} in step 1, {history[-1]['reward/mean']:.3f} in step 3\n" in shown
    assert "--run r1\n  hermes-rl engine serve r1\n  hermes-rl export r1 --to merged\n" in shown
    assert len(shown.splitlines()) <= 15


def write_held_out(places: RunPaths, name: str, mean: float, low: float, high: float) -> None:
    metrics = {"eval/mean_reward": mean, "eval/mean_reward/low": low, "eval/mean_reward/high": high}
    places.evaluation(name).mkdir(parents=True)
    report = {"metrics": {**metrics, "eval/items_scored": 40}, "seconds": 90.0}
    (places.evaluation(name) / "metrics.json").write_text(json.dumps(report))


def test_results_show_held_out_rates_before_and_after(capsys: pytest.CaptureFixture[str]) -> None:
    evaluated = run_file("r1").model_copy(update={"held_out_items": 40})
    places = make_run("r1", phase=Phase.FINISHED, file=evaluated)
    write_steps(places, 3)
    write_weights(places)
    write_held_out(places, "before-greedy", 0.125, 0.042, 0.268)
    write_held_out(places, "after-greedy", 1.0, 0.912, 1.0)
    write_held_out(places, "before-sampled", 0.15, 0.057, 0.298)
    assert typed("run", "results", "r1") == 0
    shown = capsys.readouterr().out
    greedy = "0.125 [0.04, 0.27] before, 1.000 [0.91, 1.00] after, on 40 held-out items at temperature 0\n"
    assert f"  greedy        {greedy}" in shown
    assert "0.150 [0.06, 0.30] before, on 40 held-out items at temperature 1\n" in shown
    assert "  not evaluated after-sampled; see hermes-rl run logs r1 --part after-sampled\n" in shown
    # Greedy and sampled run at the same time: 90 s before, 90 s after.
    assert "  evaluation    3.0 min of " in shown


def test_a_followed_run_ends_with_its_results(capsys: pytest.CaptureFixture[str]) -> None:
    places = make_run("r1", phase=Phase.FINISHED)
    write_weights(places)
    assert typed("run", "status", "r1", "--watch") == 0
    assert "hermes-rl engine serve r1" in capsys.readouterr().err


def test_the_configuration_of_a_run_is_shown_as_it_was_started(capsys: pytest.CaptureFixture[str]) -> None:
    make_run("r1")
    assert typed("run", "show", "r1") == 0
    assert "run_id: r1" in capsys.readouterr().out
    assert told("run", "show", "r1")["run_id"] == "r1"


def test_the_fields_of_an_environment_are_shown_before_there_is_a_run() -> None:
    fields = told("run", "show", str(ENVIRONMENT), "--preset", "laptop")["configurable_fields"]
    assert "base_model" in {one["name"] for one in fields}


def test_logs_are_shown_from_their_end_by_part(capsys: pytest.CaptureFixture[str]) -> None:
    places = make_run("r1", phase=Phase.FINISHED)
    write_log(places, "trainer", "one\ntwo\nthree\n")
    write_log(places, "api", "hello\n")
    assert typed("run", "logs", "r1", "--part", "trainer", "--lines", "2") == 0
    assert capsys.readouterr().out == "two\nthree\n"
    assert typed("run", "logs", "r1", "--follow") == 0
    assert "hello" in capsys.readouterr().out
    assert told("run", "logs", "r1")["api"]["text"].strip() == "hello"


def test_escape_sequences_in_a_log_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    write_log(make_run("r1", phase=Phase.FINISHED), "api", "\x1b]0;owned\x07 [/x]\n")
    assert typed("run", "logs", "r1", "--part", "api") == 0
    assert capsys.readouterr().out == "\\u001b]0;owned\\u0007 [/x]\n"


def test_a_part_without_a_log_is_refused_with_those_that_have_one(capsys: pytest.CaptureFixture[str]) -> None:
    write_log(make_run("r1"), "api", "hello\n")
    assert typed("run", "logs", "r1", "--part", "apis") == 2
    assert "it has api" in capsys.readouterr().err


def test_stopping_a_run_that_has_ended_is_harmless() -> None:
    make_run("r1", phase=Phase.FINISHED)
    assert told("run", "stop", "r1")["status"] == "finished"


def test_a_finished_run_cannot_be_resumed(capsys: pytest.CaptureFixture[str]) -> None:
    make_run("r1", phase=Phase.FINISHED)
    assert typed("run", "resume", "r1") == 2
    assert "hermes-rl run results r1" in capsys.readouterr().err


@pytest.mark.parametrize("verb", [("run", "start"), ("train",)])
def test_a_dry_run_shows_the_run_and_starts_nothing(verb: tuple[str, ...], model: str) -> None:
    options = ["--preset", "laptop", "--set", f"base_model={model}", "--set", "total_steps=3", "--dry-run", "--json"]
    done = CliRunner().invoke(hermes_rl, [*verb, str(ENVIRONMENT), *options])
    made = json.loads(done.stdout)
    assert made["tinker"]["total_steps"] == made["environments"][0]["env"]["total_steps"] == 3
    assert made["environments"][0]["name"] == "plain_text"
    assert not RunPaths(made["run_id"]).folder.exists()


def test_a_command_with_three_changes_describes_the_environment_twice(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe = Mock(wraps=introspect.describe)
    monkeypatch.setattr(introspect, "describe", describe)
    changes = [word for text in (f"base_model={model}", "batch_size=64", "group_size=4") for word in ("--set", text)]
    assert typed("run", "start", str(ENVIRONMENT), "--preset", "laptop", *changes, "--dry-run") == 0
    assert describe.call_count == 2


@pytest.mark.parametrize("verb", [("run", "start"), ("train",)])
def test_what_a_run_starts_from_is_a_setting_of_its_trainer(verb: tuple[str, ...], model: str) -> None:
    options = ["--preset", "laptop", "--set", f"base_model={model}", "--init-from", "words-1", "--dry-run", "--json"]
    made = json.loads(CliRunner().invoke(hermes_rl, [*verb, str(ENVIRONMENT), *options]).stdout)
    assert made["tinker"]["init_from"] == "words-1"


def test_the_default_number_of_held_out_items_follows_from_the_rollouts_of_the_run(model: str) -> None:
    def held_out(*options: str) -> int:
        words = ["run", "start", str(ENVIRONMENT), "--preset", "laptop", "--set", f"base_model={model}", *options]
        return int(json.loads(CliRunner().invoke(hermes_rl, [*words, "--dry-run", "--json"]).stdout)["held_out_items"])

    # Ten steps of 16 rollouts, one item for eight of them.
    assert held_out() == 20
    assert held_out("--eval-items", "0") == 0
    assert held_out("--set", "total_steps=10000") == 200


def test_several_environments_are_given_with_their_weights(model: str) -> None:
    options = ["--preset", "laptop", "--set", f"base_model={model}", "--add", "gsm8k:0.5", "--dry-run", "--json"]
    made = json.loads(CliRunner().invoke(hermes_rl, ["run", "start", str(ENVIRONMENT), *options]).stdout)
    assert [one["weight"] for one in made["environments"]] == [1.0, 0.5]


def test_hosted_training_without_its_key_is_refused_with_the_line_that_sets_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert typed("run", "start", str(ENVIRONMENT), "--preset", "tinker") == 2
    assert "hermes-rl config set TINKER_API_KEY" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["group_size", "=3"])
def test_a_change_without_field_or_value_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("run", "start", str(ENVIRONMENT), "--set", text) == 2
    assert "FIELD=VALUE" in capsys.readouterr().err


def test_ctrl_c_ends_the_following_and_says_how_to_stop_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run("r1", file=run_file("r1"))

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hermes_rl.cli.run.live.time.sleep", interrupted)
    assert typed("run", "status", "r1", "--watch") == 0
    assert "hermes-rl run stop r1" in capsys.readouterr().err


def test_on_a_terminal_a_run_is_drawn_until_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    page = StringIO()
    monkeypatch.setattr("hermes_rl.cli.run.live.console", lambda: Console(width=120, file=page, force_terminal=True))
    write_steps(make_run("r1", phase=Phase.FINISHED), 4)
    assert typed("run", "status", "r1", "--watch") == 0
    assert "step 4 of 100" in page.getvalue()


def test_a_log_is_followed_also_when_it_is_rotated(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("before\n")
    growing = LogTail(path)
    with path.open("a") as log:
        log.write("one\ntw")
    assert growing.lines() == ["one"]
    with path.open("a") as log:
        log.write("o\n")
    assert growing.lines() == ["two"]
    path.rename(tmp_path / "a.log.1")
    path.write_text("three\n")
    assert growing.lines() == ["three"]


def test_a_model_without_its_key_is_told_and_the_test_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    assert typed("run", "test", str(ENVIRONMENT), "--model", "some/model", "--steps", "1") == 1
    assert "hermes-rl config set OPENROUTER_API_KEY" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "meant"),
    [("gsm8k", ("gsm8k", 1.0)), ("gsm8k:0.5", ("gsm8k", 0.5)), ("a/env.py:MyEnv", ("a/env.py:MyEnv", 1.0))],
)
def test_a_weight_is_told_from_a_class(text: str, meant: tuple[str, float]) -> None:
    assert parse_weight(text) == meant


def test_a_weight_below_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match="above 0"):
        parse_weight("gsm8k:-1")
