"""Every fault that needs a place of its own, shown to bite there, and to be gone afterwards."""

import json
import os
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.stack.chaos import missing
from tests.chaos.stack.clocks import SITE, Clocks
from tests.chaos.stack.grounds import CHECKOUT, inside
from tests.sandbox.living import living, nap

# It needs what CI installs: iproute2, iptables, faketime.
pytestmark = pytest.mark.parts
SERVER = """
import socket, threading, time
from tests.chaos.stack import network

server = socket.create_server(("127.0.0.1", 0))
port = server.getsockname()[1]

def answer():
    while True:
        one, _ = server.accept()
        one.sendall(b"." * 4000)
        one.close()

threading.Thread(target=answer, daemon=True).start()

def asked(seconds=2.0):
    began = time.monotonic()
    try:
        with socket.create_connection(("127.0.0.1", port), seconds) as client:
            while client.recv(65536):
                pass
    except TimeoutError:
        return None
    return time.monotonic() - began
"""


@pytest.fixture(autouse=True)
def _root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make the namespaces of a chaos")
    assert missing() == []


def said(program: str, *words: str) -> Any:
    """What a program prints in there, as JSON."""
    command = inside("-c", textwrap.dedent(program), *words)
    done = subprocess.run(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    return json.loads(done.stdout)


def until(there: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not there():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_in_there_is_nobody_but_us_and_whoever_was_left_behind() -> None:
    program = """
    import json, subprocess, time
    from tests.chaos.stack.grounds import others
    before, end = others(), time.monotonic() + 30
    subprocess.run(["sh", "-c", "setsid sleep 61 > /dev/null 2>&1 &"])
    while list(others().values()) != ["sleep 61"] and time.monotonic() < end:
        time.sleep(0.02)
    print(json.dumps([before, list(others().values())]))
    """
    assert said(program) == [{}, ["sleep 61"]]


def test_what_was_left_behind_in_there_is_gone_with_it() -> None:
    mark = nap().split()[1]
    said(f'import subprocess; subprocess.Popen(["setsid", "sleep", "{mark}"]); print("null")')
    assert living(f"sleep {mark}") == []


def test_a_chaos_is_gone_with_whoever_started_it() -> None:
    command = nap()
    within = inside("-c", f"import os; os.execvp('sleep', {command.split()!r})")
    program = f"import subprocess; subprocess.run({within!r})"
    with subprocess.Popen([sys.executable, "-c", program]) as starter:
        until(lambda: bool(living(command)))
        starter.kill()
    until(lambda: not living(command))


def test_the_loopback_in_there_is_not_the_machines() -> None:
    with socket.create_server(("127.0.0.1", 0)) as ours:
        program = """
        import json, socket, sys
        print(json.dumps(socket.socket().connect_ex(("127.0.0.1", int(sys.argv[1])))))
        """
        assert said(program, str(ours.getsockname()[1])) != 0


def test_a_port_that_is_cut_off_does_not_answer_until_it_is_restored() -> None:
    before, broken, after = said(
        SERVER + "import json; x = asked(); network.cut(port); y = asked(); network.restored()\n"
        "print(json.dumps([x, y, asked(30)]))"
    )
    assert before is not None and broken is None and after is not None


def test_a_port_that_loses_packets_answers_late_or_not_at_all() -> None:
    program = "import json; network.lose(port, 0.4); some = [asked(4) for _ in range(8)]; network.restored()\n"
    some = said(SERVER + program + "print(json.dumps(some))")
    # The kernel sends again what is lost after a fifth of a second at the earliest.
    assert any(seconds is None or seconds > 0.15 for seconds in some)


def test_a_delayed_port_answers_late_until_it_is_restored() -> None:
    program = (
        "import json; network.delay(port); slow = asked(20); network.restored(); print(json.dumps([slow, asked()]))"
    )
    slow, quick = said(SERVER + program)
    assert slow > 0.1 and quick is not None


def test_another_port_is_not_delayed() -> None:
    program = "import json; network.delay(port + 1 if port < 65000 else port - 1); print(json.dumps(asked()))"
    assert said(SERVER + program) is not None


def test_a_full_disk_takes_nothing_until_there_is_room_again(tmp_path: Path) -> None:
    program = """
    import errno, json, sys
    from pathlib import Path
    from tests.chaos.stack.grounds import small_disk
    disk = small_disk(Path(sys.argv[1]))
    disk.fill()
    try:
        (disk.place / "file").write_bytes(bytes(2**20))
        why = None
    except OSError as error:
        why = errno.errorcode[error.errno]
    disk.make_room()
    print(json.dumps([why, (disk.place / "file").write_bytes(bytes(2**20))]))
    """
    assert said(program, str(tmp_path / "disk")) == ["ENOSPC", 2**20]


def test_a_clock_is_set_wrong_and_right_again_while_the_other_one_only_counts_on(tmp_path: Path) -> None:
    clocks = Clocks(tmp_path)
    variables = {**os.environ, **clocks.variables("api"), "PYTHONPATH": str(SITE)}
    program = "import sys, time\nfor _ in sys.stdin: print(time.time(), time.monotonic(), flush=True); time.sleep(1.2)"
    with subprocess.Popen(
        [sys.executable, "-c", program], env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        told = []
        for seconds in (0, 3600, -3600, 0):
            clocks.set("api", seconds)
            process.stdin.write("\n\n")
            process.stdin.flush()
            # The first answer may be from what it read of the file before.
            process.stdout.readline()
            wall, counted = process.stdout.readline().split()
            told.append((float(wall), float(counted)))
        process.stdin.close()
    drift = [wall - counted - (told[0][0] - told[0][1]) for wall, counted in told]
    assert [round(seconds / 100) * 100 for seconds in drift] == [0, 3600, -3600, 0]
    assert 0 < told[-1][1] - told[0][1] < 60
