"""Secrets typed where a setting was asked for: found by the field's name, and by what keys look like.

Always true: a reference (`env:NAME`, `file:PATH`) is no secret. Whatever would be hidden in a saved configuration
counts as one.
"""

import re
from typing import Any

from pydantic import RootModel

from hermes_rl import jsontext
from hermes_rl.sinks.values import saved_config

# The beginnings that providers give their keys, so that they are found wherever they turn up.
_KEY = re.compile(r"(?<![A-Za-z0-9])(sk-|tml-|hf_|ghp_|github_pat_|xai-|tvly-|gsk_|AKIA)[A-Za-z0-9_-]{12,}")


def holds_secret(name: str, value: Any) -> bool:
    """Whether the value is a secret, or has one in it."""
    plain = jsontext.loads(jsontext.dumps({name: value}))
    return saved_config(RootModel(plain)) != plain or looks_like_key(jsontext.dumps(value).decode())


def looks_like_key(text: str) -> bool:
    return _KEY.search(text) is not None
