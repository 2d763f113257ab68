"""How many groups a second go in and out over one PostgreSQL, by the number of API replicas. Nothing is killed."""

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from tests.chaos.trajectory.stage import ROOT
from tests.store.database.postgres_server import PostgresServer
from tests.support.api_process import ApiProcess

CALLERS = 3
LONGEST_S = 300.0


def measure(replicas: int, groups: int) -> dict[str, Any]:
    """Groups of 16×2048 tokens a second, first all in and then all out, by as many callers whatever the replicas."""
    with ExitStack() as stack:
        server = stack.enter_context(PostgresServer())
        address = server.new_schema()
        apis = [stack.enter_context(ApiProcess(address)) for _ in range(replicas)]
        urls = [apis[index % replicas].url for index in range(CALLERS)]
        return {
            "replicas": replicas,
            "groups": groups // CALLERS * CALLERS,
            "groups_a_second_in": _together("post", urls, groups // CALLERS),
            "groups_a_second_out": _together("take", urls, groups // CALLERS),
        }


def _together(what: str, urls: Sequence[str], count: int) -> float:
    callers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.trajectory.load", what, f"caller{index}", str(count), url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        for index, url in enumerate(urls)
    ]
    try:
        for caller in callers:
            assert caller.stdout is not None
            assert caller.stdout.readline() == b"ready\n"
        for caller in callers:
            assert caller.stdin is not None
            caller.stdin.write(b"go\n")
            caller.stdin.flush()
        said = [json.loads(caller.communicate(timeout=LONGEST_S)[0]) for caller in callers]
    finally:
        for caller in callers:
            if caller.poll() is None:
                caller.kill()
                caller.communicate()
    seconds: float = max(one["ended"] for one in said) - min(one["began"] for one in said)
    groups: int = sum(one["groups"] for one in said)
    return round(groups / seconds, 1)
