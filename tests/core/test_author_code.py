"""An error of an author's code is described with the line of that code, not of the libraries it calls."""

import json
import subprocess
from collections.abc import Callable

import pytest

from hermes_rl.core import author_code
from hermes_rl.core.author_code import describe_error, is_author_code
from hermes_rl.core.trajectory import validate_reward


def read(text: str) -> object:
    return json.loads(text)


def refuse() -> None:
    raise AssertionError


def caught(function: Callable[..., object], *arguments: object) -> Exception:
    with pytest.raises(Exception) as failure:  # noqa: PT011 (any error is described)
        function(*arguments)
    return failure.value


def test_the_innermost_line_of_the_authors_code_is_named() -> None:
    line = read.__code__.co_firstlineno + 1
    described = describe_error(caught(read, "no json"))
    assert described.startswith(f"JSONDecodeError at test_author_code.py:{line}: Expecting value")


def test_an_error_without_a_text_has_its_type_and_line() -> None:
    line = refuse.__code__.co_firstlineno + 1
    assert describe_error(caught(refuse)) == f"AssertionError at test_author_code.py:{line}"


def test_an_error_outside_the_authors_code_has_no_line() -> None:
    error = caught(validate_reward, "high")
    # The first frame is this test's own call.
    error.__traceback__ = error.__traceback__.tb_next.tb_next  # type: ignore[union-attr]
    assert " at " not in describe_error(error).partition(":")[0]


def test_whose_file_it_is() -> None:
    assert is_author_code(__file__)
    assert not is_author_code(subprocess.run.__code__.co_filename)
    assert not is_author_code(author_code.__file__)
    assert not is_author_code(pytest.__file__)
    assert not is_author_code("<string>")


def test_a_bundled_environment_of_an_installed_package_is_an_authors_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(author_code, "_BUNDLED", "/usr/lib/site-packages/hermes_rl/bundled/")
    assert is_author_code("/usr/lib/site-packages/hermes_rl/bundled/gsm8k.py")
    assert not is_author_code("/usr/lib/site-packages/hermes_rl/agent/loop.py")
