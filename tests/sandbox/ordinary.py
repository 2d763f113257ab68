"""Running a program as an ordinary user, from a process of root's."""

import subprocess
import textwrap
from pathlib import Path

import hermes_rl

SOURCE = Path(next(iter(hermes_rl.__path__)))


ENTER = 'echo 0 > "$1/cgroup.procs" && shift && exec "$@"'


def run_as_nobody(program: str, place: Path, group: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Run a Python program as nobody, whose HERMES_HOME and TMPDIR are made below `place`, which is open to all.

    It is started in that control group.
    """
    # The interpreter and the checkout may lie where only root may look, hence the system's python and a copy.
    subprocess.run(["cp", "-rL", SOURCE, place], check=True)
    subprocess.run(["chmod", "-R", "a+rX", place / SOURCE.name], check=True)
    own = place / "nobody"
    own.mkdir(mode=0o700)
    subprocess.run(["chown", "65534:65534", own], check=True)
    enter = ["/bin/sh", "-c", ENTER, "sh", str(group)] if group else []
    become = "setpriv --reuid=65534 --regid=65534 --clear-groups".split()
    return subprocess.run(
        [*enter, *become, "/usr/bin/python3", "-c", textwrap.dedent(program)],
        env={"PYTHONPATH": str(place), "PATH": "/usr/bin:/bin", "TMPDIR": str(own), "HERMES_HOME": str(own / "home")},
        capture_output=True,
        text=True,
        cwd="/",
        check=False,
        timeout=100,
    )
