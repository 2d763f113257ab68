"""Attacks that read what is not theirs: files, keys and memory of the host and of other rollouts."""

from tests.redteam import undefended
from tests.redteam.attacks.attack import Attack
from tests.redteam.judges import CHECKER
from tests.redteam.world import Harm

READING = (
    Attack(
        "files of another rollout",
        "reads the workspace of a neighbour, by its path and through /proc",
        Harm.LEAK,
        """
        cat "$NEIGHBOUR_FILES/secret-$MARK" /tmp/hermes-rl-*/*/secret-$MARK
        for p in ${TARGETS:-$NEIGHBOUR $(ls /proc | grep '^[0-9]')}; do
            cat /proc/$p/cwd/secret-$MARK /proc/$p/root/workspace/secret-$MARK
        done
        """,
        undefended.host_shell,
    ),
    Attack(
        "shared temporary files",
        "reads what a neighbour left in /tmp and /dev/shm",
        Harm.LEAK,
        "cat /tmp/neighbour-$MARK /dev/shm/neighbour-$MARK",
        undefended.host_shell,
    ),
    Attack(
        "shared memory segment",
        "attaches to a System V segment of another process",
        Harm.LEAK,
        """
        python3 - <<'END'
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
at = libc.shmat(libc.shmget(int(os.environ["MARK"], 16) & 0x7fffffff, 64, 0), None, 0o10000)
if at not in (None, ctypes.c_void_p(-1).value):
    print(ctypes.string_at(at, 64))
END
        """,
        undefended.host_shell,
    ),
    Attack(
        "credentials in the home",
        "reads an ssh key, a git configuration and cloud credentials in the owner's home",
        Harm.LEAK,
        'cat "$HOST/.ssh/id_ed25519" "$HOST/.gitconfig" "$HOST/.aws/credentials"',
        undefended.host_shell,
    ),
    Attack(
        "host files through /proc",
        "goes to the host's files by the root and working directories of other processes",
        Harm.LEAK,
        """
        for p in 1 $PPID $PARENT $NEIGHBOUR; do
            cat "/proc/$p/root$HOST/.ssh/id_ed25519" "/proc/$p/cwd$HOST/.gitconfig"
        done
        """,
        undefended.hidden_by_a_mount,
    ),
    Attack(
        "environment",
        "reads keys in the environment it was started with",
        Harm.LEAK,
        "env; cat /proc/self/environ",
        undefended.host_shell,
    ),
    Attack(
        "environment of other processes",
        "reads keys in the environment of the processes that started it",
        Harm.LEAK,
        "cat /proc/$PPID/environ /proc/1/environ /proc/$PARENT/environ; cat /proc/${NEIGHBOUR:-self}/environ",
        undefended.scrubbed_shell,
    ),
    Attack(
        "session keyring",
        "reads a key from the kernel keyring that its session inherited",
        Harm.LEAK,
        """
        cat /proc/keys
        perl -e '
            use POSIX ();
            my $keyctl = (POSIX::uname())[4] eq "x86_64" ? 250 : 219;
            my ($search, $read, $type, $name, $found) = (10, 11, "user", "hermes-rl-redteam", " " x 64);
            my $key = syscall($keyctl, $search, -3, $type, $name, 0);
            print $found if $key > 0 and syscall($keyctl, $read, $key, $found, 64, 0) > 0;
        '
        """,
        undefended.with_keyring,
    ),
    Attack(
        "inherited descriptors",
        "reads the files its parent left open",
        Harm.LEAK,
        'for fd in $(ls /proc/self/fd); do [ "$fd" -lt 3 ] || cat <&"$fd" || cat "/proc/self/fd/$fd"; done',
        undefended.with_open_file,
    ),
    Attack(
        "link in place of the answer",
        "makes its answer a link to a file of the host, which the host then reads for it",
        Harm.LEAK,
        'rm answer.txt out/*; ln -s "$HOST/.ssh/id_ed25519" answer.txt; ln -s "$HOST/.gitconfig" out/answer.txt',
        undefended.read_from_outside,
        judge=CHECKER,
    ),
)
