"""Into how many shards an environment's items are split: as the trajectory API has them, else as is asked for.

Always true: a database keeps its number of shards. With another number every item would be drawn anew.
"""

import time
import urllib.error
import urllib.request

from hermes_rl import jsontext
from hermes_rl.environment.config import HermesAgentEnvConfig
from hermes_rl.errors import ConfigError
from hermes_rl.secrets import resolved_key
from hermes_rl.terminal.running import warn

SECONDS = 10.0
ASK_EVERY = 1.0
TELL_EVERY = 30.0
NOT_FOUND = 404


def shards_of(name: str, config: HermesAgentEnvConfig, *, asked: int | None, replicas: int) -> int:
    """ConfigError when the API has the environment in another number of shards than is asked for."""
    there = _known(name, config)
    if not there:
        return asked or replicas
    if asked is not None and there != {asked}:
        counts = " and ".join(map(str, sorted(there)))
        raise ConfigError(
            f"{config.rollout_server_url} has {name} in {counts} shards, and with {asked} every item would be drawn "
            f"anew; leave --shards out to go on, or give the API another database"
        )
    # More than one number: somebody served it by hand before. The finest split is the last one that was chosen.
    return max(there)


def _known(name: str, config: HermesAgentEnvConfig) -> set[int]:
    """The numbers of shards that the API knows it in; waits for as long as nobody answers there."""
    url = f"{config.rollout_server_url.rstrip('/')}/v1/environments"
    token = config.rollout_server_token
    headers = {"Authorization": f"Bearer {resolved_key(token, '--env.rollout_server_token')}"} if token else {}
    told_at = 0.0
    while True:
        try:
            return _counts(name, _got(url, headers))
        except urllib.error.HTTPError as error:
            if error.code == NOT_FOUND:
                # Atropos' run-api keeps no draws.
                return set()
            if 400 <= error.code < 500:
                raise ConfigError(f"{url} answers {error.code}; check --env.rollout_server_token") from None
            problem = f"status {error.code}"
        except (OSError, ValueError) as error:
            problem = str(error)
        if time.monotonic() - told_at > TELL_EVERY:
            told_at = time.monotonic()
            warn(f"the trajectory API at {config.rollout_server_url} cannot be reached ({problem}); it is waited for")
        time.sleep(ASK_EVERY)


def _got(url: str, headers: dict[str, str]) -> bytes:
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"{url} is no address of a trajectory API; check --env.rollout_server_url")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, headers=headers), timeout=SECONDS) as answer:  # noqa: S310 (checked)
        body: bytes = answer.read()
    return body


def _counts(name: str, body: bytes) -> set[int]:
    found = set()
    for one in jsontext.loads(body):
        if one["name"] == name and one["instance"] != "evaluation":
            _, _, shards = one["instance"].partition("/")
            found.add(int(shards or 1))
    return found
