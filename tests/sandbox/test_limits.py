import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.sandbox import cgroups
from hermes_rl.sandbox.backends.bubblewrap import BubblewrapBackend, BubblewrapSandbox
from hermes_rl.sandbox.cgroups import (
    CgroupMount,
    CgroupParent,
    ControlGroups,
    candidate_parents,
    parse_mountinfo,
    parse_own_groups,
)
from hermes_rl.sandbox.reaper import reap
from hermes_rl.sandbox.spec import Capabilities, Limits, SandboxSpec, resolve_spec
from tests.sandbox.ordinary import SOURCE, run_as_nobody

ALL = {"memory_mb", "cpus", "processes"}
# Python starts too slowly for a machine that is emulated.
HOG = "perl -e '$x .= q(x) x 1e6 while 1'"
BOMB = "b() { (b & b &) 2>/dev/null; sleep 0.01; }; b; sleep 600"
FILL = "for place in /workspace /tmp /dev/shm /run; do cat /dev/zero > $place/full; done"
PATIENCE = 60

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user has no control groups unless delegated")


@pytest.fixture
async def jail(bubblewrap: BubblewrapBackend) -> AsyncIterator[BubblewrapSandbox]:
    limits = Limits(memory_mb=64, disk_mb=8, processes=50)
    async with await bubblewrap.start(SandboxSpec(limits=limits)) as sandbox:
        yield sandbox


async def said(jail: BubblewrapSandbox, command: str) -> str:
    return (await jail.exec(command, timeout=PATIENCE, merge_stderr=True)).stdout.decode()


# --- memory ---


@root_only
def test_root_can_hold_everything() -> None:
    assert cgroups.available().limits == ALL


@root_only
async def test_a_memory_hog_is_killed_and_other_commands_go_on(jail: BubblewrapSandbox) -> None:
    other = asyncio.ensure_future(jail.exec("sleep 1; echo other", timeout=PATIENCE))
    hog = await jail.exec(HOG, timeout=PATIENCE)
    assert (hog.exit_code, hog.timed_out) == (137, False)
    assert (await other).stdout == b"other\n"
    assert await said(jail, "echo next") == "next\n"


@root_only
async def test_memory_is_counted_over_all_processes(jail: BubblewrapSandbox) -> None:
    # Each by itself is below the limit.
    small = "perl -e '$x = q(x) x 40e6; sleep 2'"
    ended = await said(jail, f"for i in $(seq 12); do ({small}; echo $?) & done; wait")
    assert ended.count("137") >= 1


@root_only
async def test_full_disks_and_hogs_do_not_kill_the_warden(jail: BubblewrapSandbox) -> None:
    await jail.exec(f"{FILL}; for i in $(seq 8); do {HOG} & done; wait", timeout=PATIENCE)
    assert await said(jail, "echo on | cat") == "on\n"


@root_only
async def test_files_without_content_do_not_kill_the_warden(jail: BubblewrapSandbox) -> None:
    fill = "for (qw(/workspace /tmp /dev/shm /run)) { $n = 0; 1 while open $f, q(>), qq($_/).$n++; print qq($!\\n) }"
    assert await said(jail, f"{FILL} 2>/dev/null; perl -e '{fill}'; {HOG}") == "No space left on device\n" * 4
    assert await said(jail, "echo on | cat; rm -f /tmp/1*; : > /tmp/new && echo gone") == "on\ngone\n"


@root_only
async def test_many_small_processes_do_not_kill_the_warden(bubblewrap: BubblewrapBackend) -> None:
    # Smaller than the warden each, and as precious to the kernel if they had their way.
    precious = "open F, q(>), q(/proc/self/oom_score_adj); syswrite F, q(0); close F"
    small = "while (defined(my $p = fork)) { if (!$p) { $x = q(x) x 1.5e6; sleep 600 } } sleep 600"
    limits = Limits(memory_mb=64, disk_mb=8, processes=300)
    async with await bubblewrap.start(SandboxSpec(limits=limits)) as jail:
        await jail.exec(f"echo 0 > /proc/self/oom_score_adj; {FILL}; perl -e '{precious}; {small}'", timeout=4)
        assert await said(jail, "echo on") == "on\n"
        await jail.end_processes()
        assert await said(jail, "echo on | cat") == "on\n"


async def test_no_process_can_make_itself_precious(jail: BubblewrapSandbox) -> None:
    assert "Read-only file system" in await said(jail, "echo 0 > /proc/self/oom_score_adj")
    assert await said(jail, "cat /proc/self/oom_score_adj") == "1000\n"


@root_only
async def test_memory_that_outlives_its_processes_is_freed_before_scoring(jail: BubblewrapSandbox) -> None:
    take = "while (1) { my $id = shmget(0, 1e7, 01600) // last; shmwrite($id, q(x) x 1e7, 0, 1e7) }"
    kept = "msgget(7, 01600); semget(7, 2, 01600);"
    await jail.exec(f"perl -e '{kept}'; perl -e '{take}'", timeout=PATIENCE)
    await jail.end_processes()
    assert await said(jail, "cat /proc/sysvipc/shm /proc/sysvipc/msg /proc/sysvipc/sem | grep -vc key") == "0\n"
    assert await said(jail, "perl -e '$x = q(x) x 30e6; print qq(on\\n)'") == "on\n"


# --- processes ---


async def test_a_fork_bomb_is_bounded_and_the_sandbox_goes_on(jail: BubblewrapSandbox) -> None:
    bomb = asyncio.ensure_future(jail.exec(BOMB, timeout=3))
    most = 0
    while not bomb.done():
        most = max(most, len(cgroups.member_pids(jail._groups)))
        await asyncio.sleep(0.02)
    assert (await bomb).timed_out
    if jail._groups:
        assert 30 < most <= 50 + cgroups.SPARE_PROCESSES
    assert await said(jail, "echo on | cat") == "on\n"


async def test_no_more_processes_can_be_started_than_the_limit(jail: BubblewrapSandbox) -> None:
    started = "my $n = 0; while (defined(my $p = fork)) { if (!$p) { sleep 600; exit } $n++ } print qq($n\\n)"
    assert 40 <= int(await said(jail, f"perl -e '{started}'")) <= 50
    await jail.end_processes()


async def test_a_sandbox_that_is_full_of_processes_still_answers(jail: BubblewrapSandbox) -> None:
    fill = "while (defined(my $p = fork)) { if (!$p) { sleep 600; exit } }"
    await jail.exec(f"perl -e '{fill}'", timeout=PATIENCE)
    assert await said(jail, "echo on") == "on\n"
    await jail.end_processes()
    assert await said(jail, "echo on | cat") == "on\n"


# --- processor ---


@root_only
async def test_the_processor_is_shared_out(bubblewrap: BubblewrapBackend) -> None:
    burn = "perl -e '$end = time + 4; 1 while time < $end; print join(q( ), (times)[0, 1]), qq(\\n)'"
    async with await bubblewrap.start(SandboxSpec(limits=Limits(cpus=0.5))) as jail:
        used = await said(jail, f"{burn} & {burn} & wait")
    # Between 3 and 4 seconds of the clock, and whatever else runs on this machine.
    assert 0.2 < sum(map(float, used.split())) < 0.5 * 4 * 1.4


# --- disk ---


@pytest.mark.parametrize(("place", "size_mb"), [("/workspace", 8), ("/tmp", 8), ("/dev/shm", 64), ("/run", 64)])
async def test_a_full_disk_says_so(jail: BubblewrapSandbox, place: str, size_mb: int) -> None:
    assert "No space left on device" in await said(jail, f"cat /dev/zero > {place}/full")
    assert int(await said(jail, f"stat -c %s {place}/full")) == size_mb * 1024 * 1024
    assert await said(jail, f"rm {place}/full; echo x > {place}/new && cat {place}/new") == "x\n"


async def test_nothing_else_is_writable(jail: BubblewrapSandbox) -> None:
    # The kernel makes terminals in /dev/pts, and lets nobody else make anything there.
    leave_out = "'(' -path /proc -o -path /dev/pts ')' -prune"
    found = await said(jail, f"find / {leave_out} -o -type d -writable -print 2>/dev/null")
    assert set(found.split()) == {"/workspace", "/tmp", "/dev/shm", "/run"}


# --- groups come and go ---


@root_only
async def test_a_closed_sandbox_leaves_no_group(bubblewrap: BubblewrapBackend) -> None:
    limits = Limits(memory_mb=64, cpus=1, processes=50)
    sandboxes = [await bubblewrap.start(SandboxSpec(limits=limits)) for _ in range(3)]
    groups = [group for sandbox in sandboxes for group in sandbox._groups]
    assert all(group.is_dir() for group in groups)
    await sandboxes[0].exec("setsid sleep 600 & sleep 600 &", timeout=PATIENCE)
    for sandbox in sandboxes:
        await sandbox.close()
    assert [group for group in groups if group.exists()] == []


@root_only
async def test_every_process_of_a_sandbox_is_in_its_groups(jail: BubblewrapSandbox) -> None:
    await jail.exec("setsid sleep 600 & (sleep 600 &) ; sleep 600 &", timeout=PATIENCE)
    for group in jail._groups:
        # bwrap, the warden, a keeper, and these.
        assert len(cgroups.member_pids([group])) == 6


OWNER = """
    import asyncio
    from hermes_rl.sandbox.backends.bubblewrap import BubblewrapBackend

    async def main():
        backend = BubblewrapBackend()
        sandboxes = [await backend.start() for _ in range(3)]
        print(*(group for sandbox in sandboxes for group in sandbox._groups), flush=True)
        await asyncio.sleep(600)

    asyncio.run(main())
"""


@root_only
async def test_the_groups_of_a_killed_owner_are_reaped(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(OWNER)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE.parent), "HERMES_HOME": str(tmp_path)},
    )
    with owner:
        assert owner.stdout is not None
        groups = [Path(word) for word in owner.stdout.readline().split()]
        assert groups and all(group.is_dir() for group in groups)
        owner.send_signal(signal.SIGKILL)
    reaped = await reap(tmp_path / "rl/sandboxes")
    assert (len(reaped.removed), reaped.left) == (3, [])
    assert [group for group in groups if group.exists()] == []


@root_only
async def test_what_still_runs_in_a_group_is_killed_before_it_is_removed() -> None:
    available = cgroups.available()
    groups = available.create("hermes-rl-test-removal", Limits(processes=50))
    with subprocess.Popen(["sleep", "600"]) as process:
        for group in groups:
            (group / "cgroup.procs").write_text(str(process.pid))
        assert await cgroups.remove(groups) == []
    assert process.returncode == -signal.SIGKILL
    assert await cgroups.remove(groups) == [], "removing twice is harmless"


# --- what cannot be held ---


def test_limits_that_cannot_be_held_are_named() -> None:
    can = Capabilities(isolates_files=True, isolates_processes=True, network_off=True, limits=frozenset({"disk_mb"}))
    spec = SandboxSpec(limits=Limits(memory_mb=64, cpus=1, disk_mb=64))
    with pytest.raises(ConfigError, match=r"bubblewrap does not support.*a limit on memory_mb, a limit on cpus\. "):
        resolve_spec(spec, "bubblewrap", can)


def test_our_own_limits_are_left_out_where_they_cannot_be_held() -> None:
    can = Capabilities(isolates_files=True, isolates_processes=True, network_off=True, limits=frozenset({"disk_mb"}))
    assert resolve_spec(SandboxSpec(), "bubblewrap", can).limits.named().keys() == {"disk_mb"}


ORDINARY = """
    import asyncio
    from hermes_rl.core.errors import ConfigError
    from hermes_rl.sandbox.backends.bubblewrap import BubblewrapBackend
    from hermes_rl.sandbox.spec import Limits, SandboxSpec

    async def main():
        backend = BubblewrapBackend()
        print(*sorted(backend.capabilities.limits))
        try:
            await backend.start(SandboxSpec(limits=Limits(memory_mb=64, cpus=1)))
        except ConfigError as error:
            print(error)
        async with await backend.start(SandboxSpec(limits=Limits(processes=40, disk_mb=8))) as jail:
            fork = "my $n = 0; while (defined(my $p = fork)) { if (!$p) { sleep 600; exit } $n++ } print qq($n\\\\n)"
            print((await jail.exec(f"perl -e '{fork}'", timeout=60)).stdout.decode())
            await jail.end_processes()
            print((await jail.exec("b() { (b & b &) 2>/dev/null; sleep 0.01; }; b; sleep 600", timeout=2)).timed_out)
            print((await jail.exec("cat /dev/zero > full; stat -c %s full", timeout=60)).stdout.decode())

    asyncio.run(main())
"""


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@root_only
def test_an_ordinary_user_without_groups_has_bounded_processes_and_disk(place: Path) -> None:
    ran = run_as_nobody(ORDINARY, place)
    held, refusal, processes, timed_out, size = ran.stdout.split("\n", 2)[:2] + ran.stdout.split()[-3:]
    assert held == "disk_mb processes", ran.stderr
    assert "a limit on memory_mb, a limit on cpus" in refusal
    assert 30 <= int(processes) <= 40
    assert (timed_out, size) == ("True", str(8 * 1024 * 1024))


DELEGATED = """
    import asyncio
    from hermes_rl.sandbox.backends.bubblewrap import BubblewrapBackend
    from hermes_rl.sandbox.spec import Limits, SandboxSpec

    async def main():
        backend = BubblewrapBackend()
        limits = Limits(memory_mb=64, disk_mb=8, cpus=0.5, processes=40)
        async with await backend.start(SandboxSpec(limits=limits)) as jail:
            print(*jail._groups)
            print((await jail.exec("perl -e '$x .= q(x) x 1e6 while 1'", timeout=60)).exit_code)
            print((await jail.exec("echo on", timeout=60)).stdout.decode())

    asyncio.run(main())
"""


@pytest.fixture
def delegated() -> Iterator[Path]:
    """A part of version 2 that is nobody's, as systemd delegates one, with the group of a session in it."""
    base = next(place for place in cgroups.available().parents.values() if place.version == 2).directory.parent
    session = base / "delegated-for-a-test" / "session"
    session.mkdir(parents=True)
    for group in (session.parent, session):
        for path in (group, *(group / f"cgroup.{name}" for name in ("procs", "subtree_control", "threads"))):
            os.chown(path, 65534, 65534)
    yield session
    for group in (session, session.parent):
        group.rmdir()


@pytest.mark.cgroup2
def test_an_ordinary_user_holds_everything_in_what_was_delegated(place: Path, delegated: Path) -> None:
    ran = run_as_nobody(DELEGATED, place, delegated)
    group, hog, next_command = ran.stdout.split()
    assert Path(group).parent == delegated.parent / cgroups.PARENT, ran.stderr
    assert (hog, next_command) == ("137", "on")
    assert sorted(path.name for path in delegated.parent.iterdir() if path.is_dir()) == ["session"]


# --- how the kernel describes them ---

HYBRID = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 /docker/abc /else\\040where/memory rw,relatime - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate
"""


def test_trees_are_found_wherever_they_are_mounted() -> None:
    assert parse_mountinfo(HYBRID) == [
        CgroupMount(Path("/sys/fs/cgroup/cpu,cpuacct"), "/", 1, frozenset({"cpu"})),
        CgroupMount(Path("/else where/memory"), "/docker/abc", 1, frozenset({"memory"})),
        CgroupMount(Path("/sys/fs/cgroup/systemd"), "/", 1),
        CgroupMount(Path("/sys/fs/cgroup/unified"), "/", 2),
    ]


def test_own_groups_are_known_by_controller() -> None:
    own = parse_own_groups("4:memory:/docker/abc\n2:cpu,cpuacct:/a:b\n1:name=systemd:/\n0::/user.slice\n")
    assert own == {"memory": "/docker/abc", "cpu": "/a:b", "cpuacct": "/a:b", "name=systemd": "/", "": "/user.slice"}


@pytest.mark.parametrize(
    ("root", "group", "seen"),
    [
        ("/", "/", ""),
        ("/", "/a/b", "a/b"),
        ("/docker/abc", "/docker/abc", ""),
        ("/docker/abc", "/docker/abc/inner", "inner"),
        # Another container's, or one above a namespace of groups: not to be seen from here.
        ("/docker/abc", "/docker/abcdef", ""),
        ("/docker/abc", "/system.slice", ""),
        ("/", "/../../other", ""),
    ],
)
def test_a_group_is_found_below_what_is_mounted(root: str, group: str, seen: str) -> None:
    assert CgroupMount(Path("/mount"), root, 2).path_of(group) == Path("/mount", seen)


def tree(directory: Path, **groups: tuple[str, str]) -> CgroupMount:
    """Groups as version 2 shows them: the controllers and the processes of each, by name with _ for a slash."""
    for name, (controllers, processes) in groups.items():
        group = directory.joinpath(*(part for part in name.split("_") if part != "top"))
        group.mkdir(exist_ok=True)
        (group / "cgroup.controllers").write_text(controllers)
        (group / "cgroup.procs").write_text(processes)
        if name != "top":
            (group / "cgroup.type").write_text("domain\n")
    return CgroupMount(directory, "/", 2)


EVERY = "cpuset cpu io memory pids"


def test_groups_are_made_near_to_our_own_where_all_controllers_are(tmp_path: Path) -> None:
    mount = tree(tmp_path, top=(EVERY, "1\n"), user=("memory pids", ""), user_me=("memory pids", ""))
    assert candidate_parents(mount, "/user/me/session") == [tmp_path, tmp_path / "user/me", tmp_path / "user"]


def test_a_group_with_processes_of_its_own_hands_nothing_on(tmp_path: Path) -> None:
    mount = tree(tmp_path, top=(EVERY, ""), a=(EVERY, "12\n"), a_b=(EVERY, ""))
    assert candidate_parents(mount, "/a/b/own") == [tmp_path / "a/b", tmp_path]


def test_the_root_of_all_groups_may_have_processes(tmp_path: Path) -> None:
    assert candidate_parents(tree(tmp_path, top=(EVERY, "1\n2\n")), "/") == [tmp_path]


def test_the_root_of_a_containers_groups_may_not(tmp_path: Path) -> None:
    mount = tree(tmp_path, top=(EVERY, "1\n2\n"))
    (tmp_path / "cgroup.type").write_text("domain\n")
    assert candidate_parents(mount, "/") == []


def test_only_what_was_delegated_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mount = tree(tmp_path, top=(EVERY, ""), user=(EVERY, ""), user_app=(EVERY, ""))
    # Root may write anywhere.
    monkeypatch.setattr(os, "access", lambda path, _: path == tmp_path / "user/app")
    assert candidate_parents(mount, "/user/app/own") == [tmp_path / "user/app"]


def test_where_no_tree_is_mounted_nothing_is_held(tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_text("31 23 0:28 / / rw,relatime - ext4 /dev/root rw\n")
    (tmp_path / "cgroup").write_text("0::/\n")
    assert cgroups.available(tmp_path).limits == set()


def test_where_no_group_can_be_made_nothing_is_held(tmp_path: Path) -> None:
    # Ordinary files in ordinary directories refuse what groups would take.
    tree(tmp_path / "tree", top=(EVERY, "1\n"))
    (tmp_path / "mountinfo").write_text(f"41 31 0:38 / {tmp_path}/tree rw - cgroup2 cgroup2 rw\n")
    (tmp_path / "cgroup").write_text("0::/\n")
    assert cgroups.available(tmp_path).limits == set()
    assert sorted(path.name for path in (tmp_path / "tree").iterdir()) == ["cgroup.controllers", "cgroup.procs"]


def test_all_limits_of_version_2_are_in_one_group() -> None:
    both = ControlGroups(dict.fromkeys(ALL, CgroupParent(Path("/groups/hermes-rl"), 2)))
    assert both.groups("one", Limits(memory_mb=1, cpus=1)) == [Path("/groups/hermes-rl/one")]
    assert both.groups("one", Limits(disk_mb=1)) == []


def test_a_place_that_vanished_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "cgroup.subtree_control").touch()
    cgroups._make_group(tmp_path / "hermes-rl/one")
    assert (tmp_path / "hermes-rl/one").is_dir()


@pytest.mark.parametrize(
    ("limit", "value", "version", "settings"),
    [
        ("memory_mb", 64, 2, {"memory.max": "67108864", "memory.swap.max": "0"}),
        ("memory_mb", 64, 1, {"memory.limit_in_bytes": "67108864", "memory.memsw.limit_in_bytes": "67108864"}),
        ("cpus", 1.5, 2, {"cpu.max": "150000 100000"}),
        ("cpus", 0.5, 1, {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "50000"}),
        ("processes", 50, 2, {"pids.max": "50"}),
    ],
)
def test_each_version_has_its_own_words(limit: str, value: float, version: int, settings: dict[str, str]) -> None:
    assert cgroups._limit_files(limit, value, version) == settings
