"""The number of shards of an environment: as registered with the trajectory API, else as requested.

Always true: a database keeps its number of shards. With another number every item would be drawn again.
"""

import time
import urllib.error
import urllib.request

from hermes_rl.console.live_display import warn
from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.secrets import resolve_key
from hermes_rl.rollout.config import HermesAgentEnvConfig

REQUEST_TIMEOUT = 10.0
RETRY_INTERVAL = 1.0
WARN_EVERY = 30.0
NOT_FOUND = 404


def resolve_shards(name: str, config: HermesAgentEnvConfig, *, requested: int | None, replicas: int) -> int:
    """ConfigError when the requested number differs from the registered one."""
    registered = _registered_shard_counts(name, config)
    if not registered:
        return requested or replicas
    if requested is not None and registered != {requested}:
        counts = " and ".join(map(str, sorted(registered)))
        raise ConfigError(
            f"{config.rollout_server_url} has {name} in {counts} shards; with {requested} every item would be drawn "
            "again. Omit --shards to continue, or give the API another database"
        )
    # Several numbers when it was served by hand before; the largest is the most recent.
    return max(registered)


def _registered_shard_counts(name: str, config: HermesAgentEnvConfig) -> set[int]:
    """The numbers of shards registered with the API; waits until the API responds."""
    url = f"{config.rollout_server_url.rstrip('/')}/v1/environments"
    token = config.rollout_server_token
    headers = {"Authorization": f"Bearer {resolve_key(token, '--env.rollout_server_token')}"} if token else {}
    warned_at = 0.0
    while True:
        try:
            return _shard_counts(name, _get(url, headers))
        except urllib.error.HTTPError as error:
            if error.code == NOT_FOUND:
                # Atropos' run-api does not store draws.
                return set()
            if 400 <= error.code < 500:
                raise ConfigError(f"{url} answers {error.code}; check --env.rollout_server_token") from None
            problem = f"status {error.code}"
        except (OSError, ValueError) as error:
            problem = str(error)
        if time.monotonic() - warned_at > WARN_EVERY:
            warned_at = time.monotonic()
            warn(f"the trajectory API at {config.rollout_server_url} cannot be reached ({problem}); retrying")
        time.sleep(RETRY_INTERVAL)


def _get(url: str, headers: dict[str, str]) -> bytes:
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"{url} is not an HTTP URL; check --env.rollout_server_url")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, headers=headers), timeout=REQUEST_TIMEOUT) as response:  # noqa: S310 (checked)
        body: bytes = response.read()
    return body


def _shard_counts(name: str, body: bytes) -> set[int]:
    found = set()
    for environment in fast_json.loads(body):
        if environment["name"] == name and environment["instance"] != "evaluation":
            _, _, shards = environment["instance"].partition("/")
            found.add(int(shards or 1))
    return found
