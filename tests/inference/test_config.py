from pathlib import Path

import pytest
from pydantic import ValidationError

from hermes_rl.core.errors import ConfigError
from hermes_rl.inference.config import APIServerConfig

SECRET = "sk-very-secret"


def test_no_key_is_no_key() -> None:
    assert APIServerConfig().resolved_key() is None


def test_a_key_is_read_from_the_variable_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_KEY", f"{SECRET}\n")
    assert APIServerConfig(api_key="env:MODEL_KEY").resolved_key() == SECRET


def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MODEL_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"MODEL_KEY, which is not set, nor in .*: hermes-rl config set MODEL_KEY"):
        APIServerConfig(api_key="env:MODEL_KEY").resolved_key()


def test_a_key_is_read_from_the_file_it_names_without_the_line_end(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{SECRET}\n")
    assert APIServerConfig(api_key=f"file:{tmp_path}/key").resolved_key() == SECRET


def test_a_key_file_may_lie_in_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "key").write_text(SECRET)
    assert APIServerConfig(api_key="file:~/key").resolved_key() == SECRET


def test_a_key_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing, which cannot be read: .*No such file"):
        APIServerConfig(api_key=f"file:{tmp_path}/missing").resolved_key()


def test_a_key_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="key, which cannot be read"):
        APIServerConfig(api_key=f"file:{tmp_path}/key").resolved_key()


def test_a_literal_key_works() -> None:
    assert APIServerConfig(api_key="sk:with:colons").resolved_key() == "sk:with:colons"


@pytest.mark.parametrize(
    ("key", "literal"), [(SECRET, True), ("env", True), ("env:NAME", False), ("file:/key", False), (None, False)]
)
def test_a_literal_key_is_told_from_a_reference(key: str | None, literal: bool) -> None:
    assert APIServerConfig(api_key=key).key_is_literal is literal


@pytest.mark.parametrize("text", ["", " \n", f"{SECRET}\nsecond line", f"{SECRET} {SECRET}", f"{SECRET}\x00"])
def test_what_no_header_can_carry_is_refused_and_never_shown(tmp_path: Path, text: str) -> None:
    (tmp_path / "key").write_text(text)
    with pytest.raises(ConfigError, match="one line without spaces") as caught:
        APIServerConfig(api_key=f"file:{tmp_path}/key").resolved_key()
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "show", [repr, str, APIServerConfig.model_dump_json, lambda it: str(it.model_dump(mode="json"))]
)
def test_a_literal_key_is_not_in_what_is_shown_or_saved(show: object) -> None:
    assert callable(show)
    assert SECRET not in show(APIServerConfig(api_key=SECRET))


@pytest.mark.parametrize(
    "show",
    [repr, str, APIServerConfig.model_dump_json, lambda it: str(it.model_dump(mode="json")), lambda it: it.shown_url],
)
def test_a_password_in_the_base_url_is_not_in_what_is_shown_or_saved(show: object) -> None:
    assert callable(show)
    assert SECRET not in show(APIServerConfig(base_url=f"http://me:{SECRET}@host/v1"))


def test_a_reference_to_a_key_is_saved() -> None:
    assert APIServerConfig(api_key="env:NAME").model_dump(mode="json")["api_key"] == "env:NAME"


def test_a_literal_key_survives_merging_two_configurations() -> None:
    merged = APIServerConfig.model_validate(APIServerConfig(api_key=SECRET).model_dump() | {"timeout": 5})
    assert merged.resolved_key() == SECRET


def test_a_configuration_that_is_refused_does_not_show_the_key() -> None:
    with pytest.raises(ValidationError) as caught:
        APIServerConfig.model_validate({"api_key": SECRET, "timeout": -1, "nonsense": SECRET})
    assert SECRET not in str(caught.value)


def test_a_base_url_without_a_scheme_is_refused() -> None:
    with pytest.raises(ValidationError, match="starts with http:// or https://"):
        APIServerConfig(base_url="localhost:8000/v1")


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(ValidationError, match="base_urll"):
        APIServerConfig.model_validate({"base_urll": "http://x"})
