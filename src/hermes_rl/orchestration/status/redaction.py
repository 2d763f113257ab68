"""Redacts keys from status answers, including keys that a component wrote into a message or a log.

Always true: an answer never contains the value of a key known to this machine.
"""

import os
from collections.abc import Iterable

from hermes_rl.core.keys import stored_secrets
from hermes_rl.core.secrets import MIN_SECRET_LENGTH
from hermes_rl.orchestration.keys import key_names


def known_secrets(names: Iterable[str] = ()) -> list[str]:
    """The values of all keys known here, and of the named environment variables."""
    values = stored_secrets() | {os.environ.get(name, "").strip() for name in {*key_names(), *names}}
    return [value for value in values if len(value) >= MIN_SECRET_LENGTH]
