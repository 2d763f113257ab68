"""Secrets by reference: what they stand for is found, and never shown."""

from pathlib import Path

import pytest

from hermes_rl.core import secrets
from hermes_rl.core.errors import ConfigError

SECRET = "very-secret"


def test_a_reference_stands_for_the_variable_or_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", f" Bearer {SECRET}\n")
    (tmp_path / "key").write_text(f"{SECRET}\n")
    assert secrets.resolve_secret("env:SOME_KEY", "header") == f"Bearer {SECRET}"
    assert secrets.resolve_secret(f"file:{tmp_path}/key", "header") == SECRET


def test_a_literal_is_itself() -> None:
    assert secrets.resolve_secret(" plain: text ", "header") == " plain: text "
    assert secrets.resolve_key(" sk:1 ", "key") == "sk:1"


@pytest.mark.parametrize("value", ["env:NO_SUCH_VARIABLE", "file:/no/such/file"])
def test_a_reference_to_nothing_names_the_setting_and_the_place(value: str) -> None:
    with pytest.raises(ConfigError, match=rf"my\.setting names the .*{value.partition(':')[2]}"):
        secrets.resolve_secret(value, "my.setting")


def test_a_key_of_two_words_is_refused_without_showing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", f"Bearer {SECRET}")
    with pytest.raises(ConfigError, match=r"my\.key: the variable SOME_KEY does not hold a key on one line") as caught:
        secrets.resolve_key("env:SOME_KEY", "my.key")
    assert SECRET not in str(caught.value)


def test_a_text_is_cleared_of_every_secret_also_of_one_within_another() -> None:
    assert secrets.redact("a very-secret-key, a very-secret one", [SECRET, f"{SECRET}-key", ""]) == (
        f"a {secrets.HIDDEN}, a {secrets.HIDDEN} one"
    )
