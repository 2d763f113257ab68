"""Where attacks succeed: for each the smallest set-up without the defence it must break, as such set-ups are met.

Whatever an attack takes here is bounded (a control group, a small tmpfs, a process namespace) or is the test's own, so
that it cannot hurt the machine. Every function plays one attack and gives its traces.
"""

import contextlib
import os
import secrets
import select
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hermes_rl.sandbox import cgroups
from hermes_rl.sandbox.process_tree import all_pids
from hermes_rl.sandbox.spec import Limits
from tests.redteam.judges import PRELUDE, Judge
from tests.redteam.world import Traces, World
from tests.sandbox.living import living, nap

if TYPE_CHECKING:
    from tests.redteam.attacks import Attack

ORDINARY = 65534
# How much later than it was told a host may be.
SLACK = 2.0
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


# --- a shell on the host ---


def host_shell(attack: "Attack", world: World) -> Traces:
    """`subprocess.run` with our environment, as in most harnesses."""
    return _played(attack, world, _bash)


def scrubbed_shell(attack: "Attack", world: World) -> Traces:
    """The same with an empty environment; its parent has the keys."""
    return _played(attack, world, ["bash", "-c", f'env -i PATH={_PATH} bash -c "$0"; true'])


def other_user(attack: "Attack", world: World) -> Traces:
    """Another user of the machine, and nothing else."""
    if os.geteuid() != 0:
        return _played(attack, world, _bash)
    with tempfile.TemporaryDirectory() as directory:
        os.chown(directory, ORDINARY, ORDINARY)
        become = ["setpriv", f"--reuid={ORDINARY}", f"--regid={ORDINARY}", "--clear-groups"]
        return _played(attack, world, [*become, *_bash], cwd=Path(directory))


def own_host_name(attack: "Attack", world: World) -> Traces:
    """Root, in a namespace where the name is not the machine's; the clock is set to what it shows."""
    return _played(attack, world, ["unshare", "--uts", *_bash])


def hidden_by_a_mount(attack: "Attack", world: World) -> Traces:
    """A mount namespace that hides the host's files, without a process namespace."""
    hide = 'mount -t tmpfs none "$0" && mkdir "$0/rollout" && cd "$0/rollout" && exec bash -c "$1"'
    argv = ["unshare", "--mount", "--propagation=private", "bash", "-c", hide, str(world.directory)]
    return _played(attack, world, argv)


def with_keyring(attack: "Attack", world: World) -> Traces:
    """A process whose session keyring holds a key, as after a login or a mount."""
    hold = f"import os, sys; from tests.redteam import keyring; keyring.hold({world.secret!r}); "
    hold += "os.execvp('bash', sys.argv[1:])"
    return _played(attack, world, [sys.executable, "-c", hold, *_bash], env={"PYTHONPATH": str(_checkout)})


def with_open_file(attack: "Attack", world: World) -> Traces:
    """A child that inherits what is open, as before close_fds became the default, and still with os.fork."""
    with (world.home / "notes.txt").open() as file:
        return _played(attack, world, _bash, pass_fds=[file.fileno()])


def in_control_group(attack: "Attack", world: World) -> Traces:
    """A limit that the limited process can change."""
    with _control_group(Limits(processes=200, memory_mb=500)) as groups:
        # What it mounts stays its own.
        return _played(attack, world, _joining(groups, ["unshare", "--mount", "--propagation=private", *_bash]))


def bounded_machine(attack: "Attack", world: World) -> Traces:
    """No limit but the size of the machine, here 900 MB."""
    with _control_group(Limits(memory_mb=900)) as groups:
        return _played(attack, world, _joining(groups, _bash))


def crowded(attack: "Attack", world: World) -> Traces:
    """Two rollouts on one machine, here of 80 processes."""
    with _control_group(Limits(processes=80)) as groups:
        traces = _played(attack, world, _joining(groups, _bash))
        second = subprocess.run(
            _joining(groups, ["perl", "-e", 'defined fork or die "it cannot start a process: $!\\n"']),
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )
        traces.neighbour = second.stderr
        return traces


# --- how a host waits, and what it ends ---


def captured(attack: "Attack", world: World) -> Traces:
    """`subprocess.run(capture_output=True, timeout=…)`."""
    began = time.monotonic()
    printed = b""
    with contextlib.suppress(subprocess.TimeoutExpired):
        argv = ["bash", "-c", world.variables() + attack.script]
        printed = subprocess.run(argv, capture_output=True, timeout=attack.timeout, check=False, cwd="/").stdout
    late = time.monotonic() - began > attack.timeout + SLACK
    return Traces(held_mb=len(printed) / 1e6, late=late)


def read_to_the_end(attack: "Attack", world: World) -> Traces:
    """The process ends in time, and its output is read to the end."""
    began = time.monotonic()
    with subprocess.Popen(["bash", "-c", attack.script], stdout=subprocess.PIPE) as process:
        process.wait(attack.timeout)
        process.communicate()
    return Traces(late=time.monotonic() - began > attack.timeout + SLACK)


def given_up(attack: "Attack", world: World) -> Traces:
    """The same, where a time-out is a failure of the rollout, which then has no score."""
    try:
        subprocess.run(["bash", "-c", attack.script], timeout=attack.timeout, check=False)
    except subprocess.TimeoutExpired:
        return Traces(score=None)
    return Traces()


def terminated(attack: "Attack", world: World) -> Traces:
    """`process.terminate()` after the time-out."""
    return _ended(attack, world, lambda process: process.terminate())


def killed_by_group(attack: "Attack", world: World) -> Traces:
    """`os.killpg` after the time-out, and at the rollout's end."""
    return _ended(attack, world, lambda process: os.killpg(process.pid, signal.SIGKILL))


def marked_shell(attack: "Attack", world: World) -> Traces:
    """One shell for all commands, whose ends are marked in its output; in a process namespace for safety."""
    inside = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", "bash; sleep 30"]
    script = world.rollout / "script"
    script.write_text(world.variables() + attack.script)
    with _control_group(Limits(memory_mb=300)) as groups:
        shell = subprocess.Popen(
            _joining(groups, inside),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            _answer(shell, f"bash {script}", attack.timeout)
            said = _answer(shell, "bash -c 'echo honest; exit 3'", SLACK)
            return Traces(channel="" if said == b"honest\n__END__ 3\n" else f"it said {said!r}")
        finally:
            shell.kill()
            shell.communicate()


# --- scoring where the policy has been ---


def shared_directory(attack: "Attack", world: World) -> Traces:
    """The tests are copied into the policy's directory, whose processes may still be running, and run there.

    A scoring that fails is no score.
    """
    _in_container(world, world.variables() + PRELUDE + attack.script, attack.judge, attack.timeout)
    try:
        return Traces(score=_judged(world, attack.judge, attack.judge.command))
    finally:
        _kill_marked(world)


def naive_copy(attack: "Attack", world: World) -> Traces:
    """The artifacts are copied next to the tests with `cp -a`, links and all."""
    _in_container(world, world.variables() + PRELUDE + attack.script, attack.judge, attack.timeout)
    (world.rollout / "artifacts").mkdir()
    subprocess.run(["cp", "-a", world.rollout / "out", world.rollout / "artifacts"], check=True)
    return Traces(score=_judged(world, attack.judge, attack.judge.command.replace(" out/", " artifacts/out/")))


def run_in_workspace(attack: "Attack", world: World) -> Traces:
    """The tests run on the host with the policy's directory as theirs; a scoring that fails is no score."""
    _played(attack, world, _bash)
    try:
        subprocess.run(["true"], cwd=world.rollout, check=False)
    except OSError:
        world.rollout.mkdir(exist_ok=True)
        return Traces(score=None)
    return Traces()


def run_by_judge(attack: "Attack", world: World) -> Traces:
    """The judge starts the policy's program as its own child, in a machine of 60 processes and 300 MB."""
    _in_container(world, world.variables() + PRELUDE + attack.script, attack.judge, attack.timeout)
    judge = world.rollout / "judge.py"
    judge.write_text(
        "import subprocess, sys\n"
        "try: done = subprocess.run([sys.executable, 'solution.py'], input=b'2 3', capture_output=True, timeout=2)\n"
        "except subprocess.TimeoutExpired: print('score 0.0')\n"
        "else: print('score', float(done.stdout == b'5\\n'))\n"
    )
    with _control_group(Limits(processes=60, memory_mb=300)) as groups:
        inside = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", "python3 judge.py; true"]
        process = subprocess.Popen(
            _joining(groups, inside),
            cwd=world.rollout,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            said = process.communicate(timeout=6)[0]
        except subprocess.TimeoutExpired:
            said = b""
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        return Traces(score=float(said.split()[1]) if said.startswith(b"score") else None)


def reused(attack: "Attack", world: World) -> Traces:
    """One container for rollout after rollout."""
    _in_container(world, world.variables() + PRELUDE + attack.script, attack.judge, attack.timeout)
    second = _in_container(world, "python3 -c ''", attack.judge, attack.timeout)
    return Traces(neighbour=second.stdout.decode())


def shared_disk(attack: "Attack", world: World) -> Traces:
    """Two containers whose directories are on one disk, here of 32 MB."""
    places = {"/workspace": "one", "/tmp": "tmp", "/dev/shm": "shm"}
    first = _container(world, {place: world.rollout / name for place, name in places.items()})
    second = _container(world, {"/workspace": world.rollout / "two"})
    prepare = 'mount -t tmpfs -o size=32m none "$1" && cd "$1" && mkdir one two tmp shm'
    run = f'{prepare} && "${{@:4:{len(first)}}}" bash -c "$2"; "${{@:{4 + len(first)}}}" bash -c "$3"'
    argv = ["unshare", "--mount", "--propagation=private", "bash", "-c", run, "_"]
    given = [str(world.rollout), attack.script, "head -c 1M /dev/zero > mine && echo well"]
    done = subprocess.run([*argv, *given, *first, *second], capture_output=True, text=True, check=False, timeout=60)
    return Traces(neighbour="" if "well" in done.stdout else done.stderr)


# --- files that are read and written from outside ---


def read_from_outside(attack: "Attack", world: World) -> Traces:
    """The workspace is a directory of the host, and the host reads the answer in it."""
    _played(attack, world, _bash)
    return _copied(["cat", str(world.rollout / "answer.txt")])


def copied_from_outside(attack: "Attack", world: World) -> Traces:
    """The host copies a directory of the workspace."""
    _played(attack, world, _bash)
    return _copied(["tar", "-cf", "-", "-C", str(world.rollout), "out"])


def copied_to_a_small_disk(attack: "Attack", world: World) -> Traces:
    """The host copies the answer to where it is judged, here a disk of 32 MB; a copy that fails is not scored."""
    _played(attack, world, _bash)
    copy = 'mount -t tmpfs -o size=32m none "$1" && cat "$0" > "$1/answer.txt"'
    argv = ["unshare", "--mount", "--propagation=private", "bash", "-c", copy]
    given = [world.rollout / "answer.txt", world.downloads]
    done = subprocess.run([*argv, *given], stderr=subprocess.DEVNULL, check=False)
    return Traces(score=0.0 if done.returncode == 0 else None)


def unpacked(attack: "Attack", world: World) -> Traces:
    """The host unpacks an archive that a program in the policy's sandbox made."""
    _in_container(
        world, world.variables(WORKSPACE=str(world.rollout)) + PRELUDE + attack.script, attack.judge, attack.timeout
    )
    archive = world.rollout / "archive.tar"
    archive.write_bytes(_in_container(world, "tar -cf - out", attack.judge, attack.timeout).stdout)
    (world.downloads / "out").mkdir()
    with tarfile.open(archive) as opened, contextlib.suppress(KeyError, OSError, tarfile.TarError):
        opened.extractall(world.downloads / "out", filter="fully_trusted")
    return Traces()


def names_in_a_shell(attack: "Attack", world: World) -> Traces:
    """The host puts the names of files into commands."""
    _played(attack, world, _bash)
    for name in os.listdir(world.rollout / "out"):
        subprocess.run(
            f"cat {name}", shell=True, cwd=world.directory, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
    return Traces()


def written_from_outside(attack: "Attack", world: World) -> Traces:
    """The host writes the tests into the workspace, which is a separate directory."""
    _played(attack, world, _bash)
    (world.rollout / "tests").mkdir(exist_ok=True)
    for name, text in attack.judge.files.items():
        (world.rollout / name).write_text(text)
    return Traces()


# --- what they are made of ---

_bash = ["bash", "-c"]
_checkout = Path(__file__).parents[2]


def _played(
    attack: "Attack",
    world: World,
    argv: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> Traces:
    """Run the script on the host beside a neighbour; its whole output is what the attack got to see."""
    keys = {**os.environ, "OPENAI_API_KEY": world.secret, **(env or {})}
    with subprocess.Popen(["sleep", "60"], cwd=world.neighbour, env={"OPENAI_API_KEY": world.secret}) as neighbour:
        # On the host it looks at no process but this one.
        variables = world.variables(NEIGHBOUR=neighbour.pid, TARGETS=neighbour.pid, UNDEFENDED=1)
        process = subprocess.Popen(
            [*argv, variables + PRELUDE + attack.script],
            cwd=cwd or world.rollout,
            env=keys,
            pass_fds=pass_fds,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            output = process.communicate(timeout=attack.timeout)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output = process.communicate()[0].decode(errors="replace")
        neighbour.kill()
    return Traces(output=output)


def _ended(attack: "Attack", world: World, end: Callable[["subprocess.Popen[bytes]"], object]) -> Traces:
    mine = nap()
    variables = world.variables(NAP=mine)
    marked = {**os.environ, "MARKED": world.mark}
    first = ["bash", "-c", variables + attack.first]
    before = subprocess.Popen(first, start_new_session=True, cwd=world.rollout, env=marked)
    process = subprocess.Popen(
        ["bash", "-c", variables + attack.script],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=world.rollout,
    )
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(attack.timeout)
        with contextlib.suppress(ProcessLookupError):
            end(process)
        time.sleep(0.3)
        return Traces(survivors=len(living(mine)))
    finally:
        before.wait()
        _kill_marked(world)
        for pid in living(mine):
            os.kill(pid, signal.SIGKILL)
        process.wait()


def _answer(shell: "subprocess.Popen[bytes]", command: str, timeout: float) -> bytes:
    """What the shell said until it marked the end of a command, or until time was up."""
    assert shell.stdin is not None and shell.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        shell.stdin.write(f"{command}\necho __END__ $?\n".encode())
        shell.stdin.flush()
    said = b""
    deadline = time.monotonic() + timeout
    while not (said.startswith(b"__END__") or b"\n__END__" in said) or not said.endswith(b"\n"):
        if not select.select([shell.stdout], [], [], max(deadline - time.monotonic(), 0))[0]:
            break
        # A byte at a time, as what follows the mark belongs to the next command.
        piece = os.read(shell.stdout.fileno(), 1)
        if not piece:
            break
        said += piece
    return said


def _copied(argv: Sequence[str]) -> Traces:
    """What a program prints within its time, of which the first is kept."""
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    kept = b""
    deadline = time.monotonic() + SLACK
    late = True
    while select.select([process.stdout], [], [], max(deadline - time.monotonic(), 0))[0]:
        piece = os.read(process.stdout.fileno(), 1 << 20)
        kept = (kept + piece)[: 1 << 20]
        if not piece:
            late = False
            break
        if time.monotonic() > deadline:
            break
    process.kill()
    process.communicate()
    return Traces(fetched=kept.decode(errors="replace"), late=late)


def _container(world: World, binds: Mapping[str, Path], root: Path | None = None) -> list[str]:
    """An image, a workspace and nothing else of a sandbox: neither processes nor the network are apart."""
    argv = ["bwrap"]
    for entry in sorted((root or world.image).iterdir()):
        if entry.is_symlink():
            argv += ["--symlink", str(entry.readlink()), f"/{entry.name}"]
        elif entry.name not in {"proc", "dev", "tmp", "workspace", "run", "sys"}:
            argv += ["--ro-bind", str(entry), f"/{entry.name}"]
    argv += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    for place, path in binds.items():
        argv += ["--bind", str(path), place]
    argv += ["--chdir", "/workspace", "--clearenv", "--setenv", "HOME", "/workspace"]
    return [*argv, "--setenv", "PATH", f"/workspace/.local/bin:{_PATH}", "--setenv", "MARKED", world.mark]


def _in_container(world: World, script: str, judge: Judge, timeout: float) -> "subprocess.CompletedProcess[bytes]":
    root = Path("/") if judge.needs else None
    argv = [*_container(world, {"/workspace": world.rollout}, root), "bash", "-c", script]
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=timeout)


def _judged(world: World, judge: Judge, command: str) -> float | None:
    try:
        for name, text in judge.files.items():
            (world.rollout / name).parent.mkdir(exist_ok=True)
            (world.rollout / name).write_text(text)
    except OSError:
        return None
    # For the moment that passes while a harness copies its files.
    time.sleep(0.2)
    done = _in_container(world, command, judge, 30)
    if judge.report is None:
        return float(done.returncode == 0)
    return judge.passed((world.rollout / judge.report).read_text())


def _kill_marked(world: World) -> None:
    for pid in all_pids():
        with contextlib.suppress(OSError):
            if f"MARKED={world.mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def _control_group(limits: Limits) -> Iterator[list[Path]]:
    """A group of our own that bounds what runs in it, and is emptied by force."""
    groups = cgroups.available().create(f"hermes-rl-redteam-{secrets.token_hex(4)}", limits)
    try:
        yield groups
    finally:
        deadline = time.monotonic() + 20
        while (left := cgroups.member_pids(groups)) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        for group in groups:
            _remove(group)


def _remove(group: Path) -> None:
    for _ in range(100):
        try:
            group.rmdir()
        except OSError:
            time.sleep(0.02)
        else:
            return


def _joining(groups: Sequence[Path], argv: Sequence[str]) -> list[str]:
    join = 'while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs"; shift; done; shift; exec "$@"'
    return ["bash", "-c", join, "_", *map(str, groups), "--", *argv]
