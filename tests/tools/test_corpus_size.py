"""A small compressed corpus may not fill the memory with one line."""

import gzip
from pathlib import Path

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.tools.web import corpus


def test_a_line_beyond_the_limit_is_refused_with_the_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(corpus, "MAX_LINE_BYTES", 1000)
    path = tmp_path / "corpus.jsonl.gz"
    page = b'{"url": "https://a.test/", "title": "A", "text": "a"}\n'
    path.write_bytes(gzip.compress(page + b'"' + b"a" * 2_000))
    with pytest.raises(ConfigError, match=r"line 2 of .* has more than 1000 bytes, the limit"):
        corpus.read_corpus(path)
