"""Loading a tokenizer: from a folder, or an error that says what to do."""

import subprocess
import sys
from pathlib import Path

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.inference.tokens.tokenizer import load_tokenizer
from tests.support.chat_models import chat_model


def test_a_folder_gives_its_tokenizer(tmp_path: Path) -> None:
    model = chat_model("chatml")
    loaded = load_tokenizer(str(model.save(tmp_path / "tokenizer")))
    assert loaded.encode("Hello, world", add_special_tokens=False) == model.tokenizer.encode("Hello, world")
    assert loaded.chat_template == model.tokenizer.chat_template


def test_a_folder_that_is_not_there_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no such folder.*--env\.tokenizer_name"):
        load_tokenizer(str(tmp_path / "nowhere"))


def test_a_folder_without_a_tokenizer_is_an_error_with_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="save_pretrained"):
        load_tokenizer(str(tmp_path))


def test_without_the_extra_the_line_to_install_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match=r"pip install 'hermes-rl\[tokens\]'.*server_type openai"):
        load_tokenizer("any")


def test_loading_says_nothing_of_torch(tmp_path: Path) -> None:
    """In a process of its own: transformers speaks once, when it is imported."""
    folder = chat_model("chatml").save(tmp_path / "tokenizer")
    code = "import sys; from hermes_rl.inference.tokens.tokenizer import load_tokenizer; load_tokenizer(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True, timeout=100)
    assert (done.stdout, done.stderr) == ("", "")
