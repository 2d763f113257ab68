"""Whether a part can do what others need it for: asked over HTTP, beside the supervisor's own work.

Always true: a question never holds the supervisor up; an answer counts only for the life it was asked about.
"""

import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from hermes_rl import jsontext
from hermes_rl.runs.keys import find_key
from hermes_rl.runs.supervision.parts import PartPlan, Role

SECONDS = 5.0
# Often while it is waited for, seldom when only its loss is to be noticed.
ASK_STARTING, ASK_READY = 0.2, 2.0
# The instance by which `serve` registers an environment that only evaluates.
EVALUATION = "evaluation"
# One answer may be late; two are a sign.
MISSES = 3


@dataclass(slots=True)
class _Asked:
    life: str
    ready: bool = False
    misses: int = 0
    next_at: float = 0.0
    answer: Future[bool] | None = None


class Probes:
    def __init__(self, plans: tuple[PartPlan, ...]) -> None:
        self._plans = {plan.name: plan for plan in plans}
        self._asked: dict[str, _Asked] = {}
        self._askers = ThreadPoolExecutor(max(1, len(plans)), "hermes-rl-probe")

    def ready(self, part: str, life: str, *, url: str | None, urls: Mapping[str, str], began: float) -> bool:
        """The last answer; asks again when it is time. `began` is the life's, in Unix seconds."""
        asked = self._asked.get(part)
        if asked is None or asked.life != life:
            asked = self._asked[part] = _Asked(life)
        now = time.monotonic()
        if asked.answer is not None and asked.answer.done():
            good = asked.answer.exception() is None and asked.answer.result()
            asked.misses = 0 if good else asked.misses + 1
            asked.ready = good or (asked.ready and asked.misses < MISSES)
            asked.answer, asked.next_at = None, now + (ASK_READY if good else ASK_STARTING)
        if asked.answer is None and now >= asked.next_at:
            asked.answer = self._askers.submit(is_ready, self._plans[part], url, dict(urls), began)
        return asked.ready

    def close(self) -> None:
        self._askers.shutdown(wait=False, cancel_futures=True)


def is_ready(plan: PartPlan, url: str | None, urls: Mapping[str, str], began: float) -> bool:
    match plan.role:
        case Role.ENGINE:
            return answers(f"{url}/api/v1/healthz") and answers(f"{url}/api/v1/get_server_capabilities")
        case Role.API:
            return answers(f"{url}/ready")
        case Role.TRAINER:
            return answers(f"{url}/health")
        case Role.ENVIRONMENT:
            return is_connected(plan, urls["api"], began)
        case Role.EXPORT:
            return False


def is_connected(plan: PartPlan, api: str, began: float) -> bool:
    """Whether the API has heard of the environment in its present life."""
    said = _got(f"{api}/v1/environments", plan.asks_with)
    if said is None:
        return False
    return any(
        one["connected"]
        and one["seen_at"] >= began
        and plan.registers_as in {None, one["name"]}
        and (one["instance"] == EVALUATION) is plan.evaluation_only
        for one in jsontext.loads(said)
    )


def answers(url: str) -> bool:
    return _got(url) is not None


def _got(url: str, key: str | None = None) -> bytes | None:
    """What stands there; None where nobody answers, or not with success."""
    token = None if key is None else find_key(key)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 (our own servers)
    # No proxy stands between us and our own servers.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=SECONDS) as answer:
            body: bytes = answer.read()
    except (OSError, urllib.error.URLError, ValueError):
        return None
    return body
