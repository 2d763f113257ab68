"""The loopback of our own network namespace, made worse at one port for a while: cut, lossy or slow.

Always true: `restored` leaves it as it was. Packets are dropped by iptables, both ways; they are late by netem where
the kernel has it, else by a narrow link, on which each waits for those before it.
"""

import subprocess

# Some hundred bytes take some hundredths of a second, a group half a second and more.
NARROW = "96kbit"
WIDE = "10gbit"


def cut(port: int) -> None:
    _drop(port)


def lose(port: int, share: float) -> None:
    _drop(port, "-m", "statistic", "--mode", "random", "--probability", f"{share:.2f}")


def delay(port: int) -> None:
    _traffic("qdisc", "add", "dev", "lo", "root", "handle", "1:", "htb", "default", "1")
    _traffic("class", "add", "dev", "lo", "parent", "1:", "classid", "1:1", "htb", "rate", WIDE, "quantum", "60000")
    rate = WIDE if _has_netem() else NARROW
    _traffic("class", "add", "dev", "lo", "parent", "1:", "classid", "1:2", "htb", "rate", rate, "quantum", "60000")
    if rate == WIDE:
        _traffic("qdisc", "add", "dev", "lo", "parent", "1:2", "netem", "delay", "150ms", "50ms")
    for end in ("--dport", "--sport"):
        slow = ["-p", "tcp", end, str(port), "-j", "CLASSIFY", "--set-class", "1:2"]
        subprocess.run(["iptables", "-t", "mangle", "-A", "OUTPUT", *slow], check=True)


def restored() -> None:
    for table, chain in (("filter", "INPUT"), ("mangle", "OUTPUT")):
        subprocess.run(["iptables", "-t", table, "-F", chain], check=True)
    subprocess.run(["tc", "qdisc", "del", "dev", "lo", "root"], capture_output=True, check=False)


def _drop(port: int, *condition: str) -> None:
    for end in ("--dport", "--sport"):
        lost = ["-i", "lo", "-p", "tcp", end, str(port), *condition, "-j", "DROP"]
        subprocess.run(["iptables", "-A", "INPUT", *lost], check=True)


def _has_netem() -> bool:
    """Asked of a device of its own, which is gone again."""
    subprocess.run(["ip", "link", "add", "probe", "type", "dummy"], capture_output=True, check=False)
    asked = subprocess.run(
        ["tc", "qdisc", "add", "dev", "probe", "root", "netem", "delay", "1ms"], capture_output=True, check=False
    )
    subprocess.run(["ip", "link", "del", "probe"], capture_output=True, check=False)
    return asked.returncode == 0


def _traffic(*words: str) -> None:
    subprocess.run(["tc", *words], check=True, capture_output=True)
