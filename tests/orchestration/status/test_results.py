import json
import time
import zlib

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.orchestration.run_state import Phase
from hermes_rl.orchestration.status.curve import curve_png
from hermes_rl.orchestration.status.results import MAX_ROWS, results
from tests.support.recorded_runs import make_run, write_environment_lines, write_steps, write_weights


def test_a_finished_run_has_everything() -> None:
    places = make_run(phase=Phase.FINISHED)
    write_steps(places, 100)
    weights = write_weights(places)
    told = results("r1")
    assert (told["status"], told["so_far"], told["weights_path"]) == ("finished", False, str(weights))
    assert told["final_metrics"]["reward/mean"] == 1.0
    assert told["config_path"] == str(places.file)
    assert "hermes-rl export r1 --to merged" in told["commands"]["merge"]
    assert json.loads(json.dumps(told, allow_nan=False)) == told


def test_a_running_run_tells_how_far_it_is() -> None:
    places = make_run()
    write_steps(places, 7)
    told = results("r1")
    assert (told["so_far"], told["metrics"]["step"], told["weights_path"]) == (True, 7, None)
    assert "hermes-rl export r1 --to peft" in told["weights_problem"]


def test_history_is_a_sample_with_both_ends() -> None:
    places = make_run()
    write_steps(places, 2500)
    steps = [row["step"] for row in results("r1")["history"]]
    assert (len(steps), steps[0], steps[-1]) == (MAX_ROWS, 1, 2500)
    assert steps == sorted(set(steps))


def test_what_json_does_not_have_becomes_null() -> None:
    places = make_run()
    write_steps(places, 1, odd=[1.0, None])
    with (places.folder / "metrics.jsonl").open("a") as file:
        file.write('{"time": 1.0, "step": 2, "reward/mean": null}\n')
    told = results("r1")
    assert told["history"][-1]["reward/mean"] is None
    json.dumps(told, allow_nan=False)


def test_evaluations_are_told_before_and_after() -> None:
    places = make_run()
    now = time.time()
    write_steps(places, 10, last_at=now)
    lines = ({"eval/pass@1": 0.1, "time": now - 500}, {"eval/pass@1": 0.7, "eval/mean_reward": 0.8, "time": now})
    write_environment_lines(places, "env", *lines)
    told = results("r1")
    assert told["evaluation_before"]["words"]["percent_correct"] == 0.1
    assert told["evaluation_after"]["words"] == {"step": 10, "reward_mean": 0.8, "percent_correct": 0.7}


def test_checkpoints_are_those_that_the_engine_still_has() -> None:
    places = make_run()
    lines = [
        {"step": 1, "version": 1, "batches": [1], "state": "tinker://a", "sampler": "tinker://b", "at": "x"},
        {"step": 2, "version": 2, "batches": [2], "state": "tinker://c", "sampler": "tinker://d", "at": "y"},
        {"deleted": 1},
        {"step": 2, "version": 2, "batches": [], "state": "tinker://e", "sampler": "s", "at": "z", "final": True},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (places.folder / "lineage.jsonl").write_text(text + '{"torn')
    assert [(one["step"], one["state"]) for one in results("r1")["checkpoints"]] == [
        (2, "tinker://c"),
        (2, "tinker://e"),
    ]


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("adapter_config.json", None, "is missing"),
        ("adapter_model.safetensors", None, "is missing"),
        ("adapter_config.json", b"{", "cannot be read"),
        ("adapter_config.json", b"{}", "does not describe an adapter"),
        ("adapter_model.safetensors", b"", "not a safetensors"),
        ("adapter_model.safetensors", b"\x02" + b"\0" * 7 + b"{}", "contains no tensors"),
    ],
)
def test_weights_that_would_not_load_are_not_given(name: str, data: bytes | None, why: str) -> None:
    places = make_run(phase=Phase.FINISHED)
    write_weights(places)
    (places.weights / name).unlink()
    if data is not None:
        (places.weights / name).write_bytes(data)
    told = results("r1")
    assert told["weights_path"] is None
    assert why in told["weights_problem"]


def test_torn_weights_are_not_given() -> None:
    places = make_run(phase=Phase.FINISHED)
    tensors = write_weights(places) / "adapter_model.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-1])
    assert "truncated: 1 bytes" in results("r1")["weights_problem"]


def test_the_curve_is_a_png_that_decodes() -> None:
    places = make_run()
    write_steps(places, 30)
    write_environment_lines(places, "env", {"eval/mean_reward": 0.5})
    data = curve_png("r1").read_bytes()
    assert (data[:8], data[16:24]) == (b"\x89PNG\r\n\x1a\n", (1000).to_bytes(4) + (560).to_bytes(4))
    start = data.index(b"IDAT") + 4
    length = int.from_bytes(data[start - 8 : start - 4])
    assert len(zlib.decompress(data[start : start + length])) == 560 * (1 + 3 * 1000)


def test_a_run_without_a_step_has_a_curve_that_says_so() -> None:
    make_run()
    assert curve_png("r1").stat().st_size > 1000


def test_the_curve_is_drawn_again_only_when_there_is_something_new() -> None:
    places = make_run()
    write_steps(places, 3, last_at=time.time() - 5)
    first = curve_png("r1").stat().st_mtime_ns
    assert curve_png("r1").stat().st_mtime_ns == first
    write_steps(places, 4, last_at=time.time() + 5)
    assert curve_png("r1").stat().st_mtime_ns > first


def test_a_curve_that_cannot_be_written_leaves_the_results() -> None:
    places = make_run()
    places.curve.mkdir()
    (places.curve / "in the way").touch()
    write_steps(places, 3, last_at=time.time() + 60)
    told = results("r1")
    assert told["curve_path"] is None
    assert "curve.png" in told["curve_problem"]
    assert not list(places.folder.glob("*.part"))


def test_an_unknown_run_has_no_results() -> None:
    with pytest.raises(ConfigError, match="there is no run"):
        results("r9")
