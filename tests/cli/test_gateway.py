"""`hermes-rl gateway` before it listens: what it refuses, and the next step it names."""

from pathlib import Path

import pytest

from hermes_rl.cli.main import hermes_rl
from hermes_rl.console.run_command import run_click

ENGINE = ("--openai.base_url", "http://127.0.0.1:1/v1", "--openai.model_name", "m")


def refused(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    assert run_click(hermes_rl, ["gateway", *flags], prog_name="hermes-rl") == 2
    return capsys.readouterr().err


def test_without_an_engine_it_says_what_to_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--openai.base_url" in refused(capsys)


def test_an_engine_without_exact_tokens_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--no-training" in refused(capsys, *ENGINE)


def test_sampling_that_cannot_be_trained_on_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    vllm = (*ENGINE, "--openai.server_type", "vllm")
    assert "top_p" in refused(capsys, *vllm, "--extra-body", '{"top_p": 0.5}')
    assert "temperature" in refused(capsys, *vllm, "--temperature", "0")


@pytest.mark.parametrize("body", ["{", "[]"])
def test_an_extra_body_that_is_no_object_is_refused(body: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--extra-body" in refused(capsys, *ENGINE, "--extra-body", body)


def test_what_is_not_trained_on_has_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--no-training" in refused(capsys, *ENGINE)


def test_a_format_that_nobody_knows_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert "hermes," in refused(capsys, *ENGINE, "--parser", "nobody")


def test_a_missing_tokenizer_is_told_by_this_command_s_own_flag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, *ENGINE, "--openai.server_type", "vllm", "--tokenizer", str(tmp_path))
    assert "with --tokenizer" in said
    assert "--env" not in said


def test_an_open_address_needs_a_token(capsys: pytest.CaptureFixture[str]) -> None:
    vllm = (*ENGINE, "--openai.server_type", "vllm")
    assert "--token" in refused(capsys, *vllm, "--host", "0.0.0.0")
