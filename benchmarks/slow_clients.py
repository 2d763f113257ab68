"""Can clients that never finish their requests keep others away from the trajectory API?

    python -m benchmarks.slow_clients --files 1024

Opens 5,000 connections with half a request head and 1,000 with half a body, on loopback, and opens those that the API
closes again, at most 200 per second. Meanwhile GET /health is called on new connections. Prints a line of JSON: how
long the calls took, and what the API logged. Exit status 1 if a call failed or took longer than a second.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from pathlib import Path

from hermes_rl.http.connections import raise_file_limit
from tests.support.slow_clients import SlowClients, limited_api

LIMIT_S = 1.0
REOPENED_PER_SECOND = 200


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", type=int, default=5000, help="connections with half a head")
    parser.add_argument("--bodies", type=int, default=1000, help="connections with half a body")
    parser.add_argument("--files", type=int, default=1024, help="files that the API may open")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the slow clients stay")
    given = parser.parse_args()
    raise_file_limit()
    with tempfile.TemporaryDirectory() as folder:
        with limited_api(Path(folder), files=given.files) as port, SlowClients(port) as clients:
            end = time.monotonic() + given.seconds
            attacking = threading.Thread(target=_attack, args=(clients, given.heads, given.bodies, end))
            attacking.start()
            seconds = sorted(SlowClients(port).health_seconds(for_seconds=given.seconds))
            attacking.join()
            opened = clients.opened
        log = (Path(folder) / "log").read_text().splitlines()
    result = {
        "files": given.files,
        "connections_opened": opened,
        "health_calls": len(seconds),
        "failed_or_slow": sum(one >= LIMIT_S for one in seconds),
        "median_ms": round(seconds[len(seconds) // 2] * 1000, 1),
        "max_ms": round(seconds[-1] * 1000, 1),
        "log_lines": len(log),
        "log": log[:4],
    }
    sys.stdout.write(json.dumps(result) + "\n")
    return int(seconds[-1] >= LIMIT_S)


def _attack(clients: SlowClients, heads: int, bodies: int, end: float) -> None:
    clients.open(heads=heads, bodies=bodies)
    while time.monotonic() < end:
        lost = min(clients.drop_closed(), REOPENED_PER_SECOND)
        clients.open(heads=lost * heads // (heads + bodies), bodies=lost * bodies // (heads + bodies))
        time.sleep(1.0)


if __name__ == "__main__":
    sys.exit(main())
