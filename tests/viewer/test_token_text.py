"""What tokens say, by a tokenizer on this machine; without one they only have ids."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from hermes_rl.viewer.token_text import TokenTexts, byte_letters


def saved(path: Path, *tokens: str) -> Path:
    Tokenizer(WordLevel({token: place for place, token in enumerate(tokens)}, unk_token=tokens[0])).save(str(path))
    return path


def test_byte_level_tokens_are_shown_as_the_text_they_are(tmp_path: Path) -> None:
    letter = {byte: written for written, byte in byte_letters().items()}
    accent = "".join(letter[byte] for byte in "é".encode())
    path = saved(tmp_path / "tokenizer.json", "\u0120", "\u0120the", accent, accent[0], "<|end|>")
    assert TokenTexts(path).decode(None, [0, 1, 2, 3, 4]) == [" ", " the", "é", "\ufffd", "<|end|>"]


def test_other_vocabularies_mark_spaces_their_own_way(tmp_path: Path) -> None:
    saved(tmp_path / "tokenizer.json", "\u2581the", "é")
    assert TokenTexts(tmp_path).decode("any/model", [0, 1]) == [" the", "é"]


def test_a_run_has_the_tokenizer_beside_its_weights(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    saved(tmp_path / "weights" / "tokenizer.json", "a", "b")
    assert TokenTexts().decode("m", [1], tmp_path) == ["b"]


def test_a_token_that_the_tokenizer_does_not_know_is_shown_as_such(tmp_path: Path) -> None:
    path = saved(tmp_path / "tokenizer.json", "a")
    assert TokenTexts(path).decode(None, [99, -1, None, 2**40]) == ["\ufffd"] * 4


@pytest.mark.parametrize("model", [None, "m", "no/such-model", "../../etc", "a/..", "/etc/passwd"])
def test_without_a_tokenizer_there_are_no_pieces(model: str | None) -> None:
    assert TokenTexts().decode(model, [1]) is None


def test_a_broken_tokenizer_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"no": "tokenizer"}))
    assert TokenTexts(path).decode(None, [1]) is None
