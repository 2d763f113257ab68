"""Harbor's indexes over HTTP: a registry.json at an address, and the datasets of the hub by its REST interface.

The hub's address and public key are those that Harbor itself reads: HARBOR_SUPABASE_URL and
HARBOR_SUPABASE_PUBLISHABLE_KEY. Nothing is sent but the name and version of a dataset.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from hermes_rl.core.errors import ConfigError
from hermes_rl.tools.web.remote import read_limited

TIMEOUT_S = 60.0
MAX_BYTES = 64 * 2**20
_HUB = ("HARBOR_SUPABASE_URL", "HARBOR_SUPABASE_PUBLISHABLE_KEY")


async def read_registry(url: str) -> Any:
    """The datasets of a registry.json."""
    return await _ask("GET", url)


async def read_hub_dataset(name: str, version: str) -> Mapping[str, Any]:
    """A dataset of the hub, of its newest version if none is given."""
    address, key = (os.environ.get(variable, "") for variable in _HUB)
    if not address or not key:
        raise ConfigError(
            f"hub:{name} needs {' and '.join(_HUB)} in the environment: the hub's address and its public key, as in "
            "harbor's own harbor/registry/client/harbor/config.py. Or run `harbor download` and give the folder"
        )
    rest, headers = f"{address.rstrip('/')}/rest/v1", {"apikey": key, "Authorization": f"Bearer {key}"}
    if not version:
        query = {"select": "version", "name": f"eq.{name}"}
        rows = await _ask("GET", f"{rest}/dataset", headers=headers, params=query)
        version = newest([str(row["version"]) for row in rows])
    body = {"p_name": name, "p_version": version}
    found = await _ask("POST", f"{rest}/rpc/get_dataset", headers=headers, json=body) if version else None
    if not found:
        raise ConfigError(f"Harbor's hub has no dataset {name}{'@' if version else ''}{version}")
    return dict(found)


def newest(versions: Sequence[str]) -> str:
    """Harbor's choice: `head`, else the highest version; empty if there is none."""
    numbers = {version: [int(part) for part in re.findall(r"\d+", version)] for version in versions}
    return "head" if "head" in versions else max(versions, key=lambda one: (numbers[one], one), default="")


async def _ask(method: str, url: str, **options: Any) -> Any:
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=True) as session,
            session.request(method, url, **options) as response,
        ):
            text = await read_limited(response, MAX_BYTES)
            response.raise_for_status()
            return json.loads(text)
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise ConfigError(f"{url} cannot be read: {str(error) or type(error).__name__}") from None
