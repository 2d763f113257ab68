"""A model's tokenizer: loaded from a folder or by a name on the hub, and its ids as text.

The only place that knows transformers.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hermes_rl.errors import ConfigError

INSTALL = "pip install 'hermes-rl[tokens]'"


def load_tokenizer(name: str) -> Any:
    """The tokenizer of that folder or name; ConfigError that says what to do when it cannot be had."""
    try:
        with _no_advice():
            from transformers import AutoTokenizer
    except ImportError as error:
        raise ConfigError(
            f"exact tokens need the tokens extra ({error}); run: {INSTALL}, or pass --openai.server_type openai "
            "for chat mode, whose rollouts cannot be trained on"
        ) from error
    try:
        return AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        path = Path(name).expanduser()
        reason = "there is no such folder" if path.is_absolute() and not path.exists() else str(error).splitlines()[0]
        raise ConfigError(
            f"the tokenizer {name!r} cannot be loaded ({reason}); "
            "name a folder that save_pretrained wrote, or a model on the hub, with --env.tokenizer_name"
        ) from error


def decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    """The text of the ids, special tokens written out, and no space added or taken."""
    return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


@contextmanager
def _no_advice() -> Iterator[None]:
    """Without the word that transformers has for everybody who imports it without torch: tokenizers need none."""

    def keeps(record: logging.LogRecord) -> bool:
        return "PyTorch was not found" not in record.getMessage()

    logger = logging.getLogger("transformers")
    logger.addFilter(keeps)
    try:
        yield
    finally:
        logger.removeFilter(keeps)
