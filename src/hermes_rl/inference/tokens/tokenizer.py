"""A model's tokenizer, loaded from a folder or from the hub. The only importer of transformers."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hermes_rl.core.errors import ConfigError

INSTALL = "pip install 'hermes-rl[tokens]'"


def load_tokenizer(name: str) -> Any:
    """Load the tokenizer of a folder or a model name; ConfigError says what to do when it cannot be loaded."""
    try:
        with _silence_torch_warning():
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
            "choose a folder that save_pretrained wrote, or a model on the hub, with --env.tokenizer_name"
        ) from error


def differing_id(tokenizer: Any, model: str) -> int | None:
    """An id that has another text in the tokenizer of another model; None if there is none.

    Also None if that tokenizer is not on this disk: nothing is downloaded to find out.
    """
    from transformers import AutoTokenizer

    try:
        other = AutoTokenizer.from_pretrained(model, local_files_only=True)
    except (OSError, ValueError):
        return None
    texts = {token: text for text, token in other.get_vocab().items()}
    differing = (token for text, token in tokenizer.get_vocab().items() if texts.get(token, text) != text)
    return min(differing, default=None)


def decode_ids(tokenizer: Any, ids: Sequence[int]) -> str:
    """Decode with special tokens written out, and no whitespace added or removed."""
    return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


@contextmanager
def _silence_torch_warning() -> Iterator[None]:
    """Silence what transformers logs when it is imported without torch: tokenizers do not need torch."""

    def keeps(record: logging.LogRecord) -> bool:
        return "PyTorch was not found" not in record.getMessage()

    logger = logging.getLogger("transformers")
    logger.addFilter(keeps)
    try:
        yield
    finally:
        logger.removeFilter(keeps)
