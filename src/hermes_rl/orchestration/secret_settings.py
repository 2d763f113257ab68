"""Detect secrets entered as settings, by field name and by known key formats.

Always true: a reference (`env:NAME`, `file:PATH`) is not a secret. Anything that a saved configuration would redact is.
"""

import re
from typing import Any

from pydantic import RootModel

from hermes_rl.core import fast_json
from hermes_rl.sinks.serialize import public_config

# Key prefixes of known providers.
_KEY = re.compile(r"(?<![A-Za-z0-9])(sk-|tml-|hf_|ghp_|github_pat_|xai-|tvly-|gsk_|AKIA)[A-Za-z0-9_-]{12,}")


def holds_secret(name: str, value: Any) -> bool:
    """Whether the value is a secret or contains one."""
    plain = fast_json.loads(fast_json.dumps({name: value}))
    return public_config(RootModel(plain)) != plain or looks_like_key(fast_json.dumps(value).decode())


def looks_like_key(text: str) -> bool:
    return _KEY.search(text) is not None
