"""Readiness probes of components, over HTTP and on threads of their own.

Always true: a probe never blocks the supervisor; a result counts only for the launch that was probed.
"""

import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from hermes_rl.core import fast_json
from hermes_rl.core.keys import find_key
from hermes_rl.orchestration.supervision.run_plan import ComponentPlan, Role

REQUEST_TIMEOUT = 5.0
# Frequent while others wait for it, infrequent once only its loss matters.
PROBE_STARTING_EVERY, PROBE_READY_EVERY = 0.2, 2.0
# The instance name under which `serve` registers an evaluation-only environment.
EVALUATION_INSTANCE = "evaluation"
# A ready component counts as unready after this many failed probes in a row.
MAX_MISSES = 3


@dataclass(slots=True)
class _Probe:
    launch_id: str
    ready: bool = False
    misses: int = 0
    next_at: float = 0.0
    response: Future[bool] | None = None


class Probes:
    def __init__(self, plans: tuple[ComponentPlan, ...]) -> None:
        self._plans = {plan.name: plan for plan in plans}
        self._probes: dict[str, _Probe] = {}
        self._pool = ThreadPoolExecutor(max(1, len(plans)), "hermes-rl-probe")

    def ready(self, component: str, launch_id: str, *, url: str | None, urls: Mapping[str, str], began: float) -> bool:
        """The last result; probes again when due. `began` is the launch's start in Unix seconds."""
        probe = self._probes.get(component)
        if probe is None or probe.launch_id != launch_id:
            probe = self._probes[component] = _Probe(launch_id)
        now = time.monotonic()
        if probe.response is not None and probe.response.done():
            good = probe.response.exception() is None and probe.response.result()
            probe.misses = 0 if good else probe.misses + 1
            probe.ready = good or (probe.ready and probe.misses < MAX_MISSES)
            probe.response, probe.next_at = None, now + (PROBE_READY_EVERY if good else PROBE_STARTING_EVERY)
        if probe.response is None and now >= probe.next_at:
            probe.response = self._pool.submit(is_ready, self._plans[component], url, dict(urls), began)
        return probe.ready

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def is_ready(plan: ComponentPlan, url: str | None, urls: Mapping[str, str], began: float) -> bool:
    match plan.role:
        case Role.ENGINE:
            return responds(f"{url}/api/v1/healthz") and responds(f"{url}/api/v1/get_server_capabilities")
        case Role.API:
            return responds(f"{url}/ready")
        case Role.TRAINER:
            return responds(f"{url}/health")
        case Role.ENVIRONMENT:
            return is_connected(plan, urls["api"], began)
        case Role.EXPORT:
            return False
        case Role.BASELINE | Role.EVALUATION:
            return True


def is_connected(plan: ComponentPlan, api: str, began: float) -> bool:
    """Whether the environment has registered with the API since this launch began."""
    body = _get(f"{api}/v1/environments", plan.asks_with)
    if body is None:
        return False
    return any(
        registered["connected"]
        and registered["seen_at"] >= began
        and plan.registers_as in {None, registered["name"]}
        and (registered["instance"] == EVALUATION_INSTANCE) is plan.evaluation_only
        for registered in fast_json.loads(body)
    )


def responds(url: str) -> bool:
    return _get(url) is not None


def _get(url: str, key: str | None = None) -> bytes | None:
    """The response body; None without a successful response."""
    token = None if key is None else find_key(key)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 (our own servers)
    # Our own servers are never behind a proxy.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=REQUEST_TIMEOUT) as response:
            body: bytes = response.read()
    except (OSError, urllib.error.URLError, ValueError):
        return None
    return body
