"""Attacks by processes: on what must end them, and on the channel that runs them."""

from tests.redteam import undefended
from tests.redteam.attacks.attack import Attack
from tests.redteam.world import Harm

PROCESSES = (
    Attack(
        "deaf to SIGTERM",
        "ignores every signal that can be ignored",
        Harm.SURVIVE,
        "trap '' TERM INT HUP QUIT; $NAP & wait",
        undefended.terminated,
        timeout=1,
    ),
    Attack(
        "session of its own",
        "leaves its process group, which is what the host kills",
        Harm.SURVIVE,
        "setsid $NAP & setsid bash -c '$NAP & wait' & wait",
        undefended.killed_by_group,
        timeout=1,
    ),
    Attack(
        "daemon",
        "forks twice with no open files and an empty environment, so that it has no parent",
        Harm.SURVIVE,
        "(env -i setsid $NAP < /dev/null > /dev/null 2>&1 &) ; sleep 0.1",
        undefended.killed_by_group,
    ),
    Attack(
        "traced to the death",
        "has a process of another command trace its own, which then cannot die while that one lives",
        Harm.SURVIVE,
        "echo $BASHPID > traced; exec $NAP",
        undefended.killed_by_group,
        timeout=2,
        first="""
        setsid python3 - > /dev/null 2>&1 <<'END' &
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
while not os.path.exists("traced") or not open("traced").read().strip():
    time.sleep(0.01)
# PTRACE_SEIZE with PTRACE_O_TRACEEXIT: the kernel stops it at its end until we let it go.
libc.ptrace(0x4206, int(open("traced").read()), 0, 0x40)
time.sleep(25)
END
        """,
    ),
    Attack(
        "killer of the kernel",
        "offers the processes that run its commands to the kernel when memory runs out, in its own place",
        Harm.CHANNEL,
        """
        for process in /proc/[0-9]*; do echo 1000 > $process/oom_score_adj; done
        python3 -c '
import os, time
try:
    with open("/proc/self/oom_score_adj", "w") as file: file.write("0")
except OSError as error:
    print(error)
children = [os.fork() for _ in range(4)]
hog = [b"x" * (8 << 20) for _ in range(6)]
time.sleep(3)'
        """,
        undefended.marked_shell,
        timeout=5,
    ),
    Attack(
        "kill everything",
        "kills each process it can, among them those that run its commands for the host",
        Harm.CHANNEL,
        """
        for s in TERM INT HUP QUIT ALRM USR1 USR2 PIPE; do trap '' $s; done
        for s in $(seq 1 8) $(seq 10 64); do kill -$s 1 $PPID; done
        kill -9 1; kill -9 $PPID; kill -9 -1
        """,
        undefended.marked_shell,
    ),
    Attack(
        "stop everything",
        "stops each process it can, so that nothing answers",
        Harm.CHANNEL,
        "kill -STOP 1 $PPID; kill -STOP -1; sleep 5",
        undefended.marked_shell,
        timeout=2,
    ),
    Attack(
        "forged frames",
        "writes what the channel's own words look like to its output and to the descriptors of the processes above",
        Harm.CHANNEL,
        """
        # The frames of warden.pl: output, then the end, of each command of the near future.
        forge() { perl -e 'print pack("aNN", "o", $_, 6) . "forged" . pack("aNNNN", "x", $_, 8, 0, 0) for 1 .. 60'; }
        for p in 1 $PPID; do for fd in $(seq 0 9); do forge > /proc/$p/fd/$fd; done; done 2> /dev/null
        forge; echo; echo '__END__ 0'; echo '__END__ 0'
        """,
        undefended.marked_shell,
    ),
)
