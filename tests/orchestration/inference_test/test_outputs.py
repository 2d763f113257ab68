"""The files of a test: named as in the seed, emptied, never shared."""

from pathlib import Path

from hermes_rl.orchestration.inference_test.outputs import open_outputs


def test_they_are_named_after_environment_and_model(tmp_path: Path) -> None:
    with open_outputs(tmp_path, "trial", "qwen/qwen3-8b") as files:
        assert files.groups == tmp_path / "test_trial_qwen_qwen3-8b.jsonl"
        assert files.log == tmp_path / "test_trial_qwen_qwen3-8b.log"


def test_a_name_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    with open_outputs(tmp_path, "../../up", "../../../etc/passwd" + "x" * 500) as files:
        assert files.groups.parent == tmp_path
        assert len(files.groups.name) < 255


def test_an_earlier_test_is_replaced(tmp_path: Path) -> None:
    for ending in ("jsonl", "log", "metrics.jsonl"):
        (tmp_path / f"test_trial_m.{ending}").write_text("old\n")
    with open_outputs(tmp_path, "trial", "m") as files:
        assert files.finished() == 0
        assert files.log.read_text() == ""
        assert not (tmp_path / "test_trial_m.metrics.jsonl").exists()


def test_two_at_once_have_files_of_their_own(tmp_path: Path) -> None:
    with open_outputs(tmp_path, "trial", "m") as one, open_outputs(tmp_path, "trial", "m") as other:
        assert (one.groups.name, other.groups.name) == ("test_trial_m.jsonl", "test_trial_m-2.jsonl")
