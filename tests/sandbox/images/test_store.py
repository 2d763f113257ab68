import asyncio
import contextlib
import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_rl.core.errors import ConfigError, SandboxError
from hermes_rl.sandbox.backends.bubblewrap import BubblewrapBackend
from hermes_rl.sandbox.backends.local import LocalBackend
from hermes_rl.sandbox.images.rootfs import BadRootfsError, unpack
from hermes_rl.sandbox.spec import SandboxSpec
from tests.sandbox.ordinary import run_as_nobody
from tests.sandbox.small_root import make_small_root

UNIQUE = "cat /proc/sys/kernel/random/uuid > unique"
DEVICE, PIPE = tarfile.CHRTYPE, tarfile.FIFOTYPE


@pytest.fixture(scope="module")
def archive() -> Iterator[Path]:
    """A small root filesystem with a file of its own, as a tar archive."""
    with tempfile.TemporaryDirectory() as directory:
        root = make_small_root(Path(directory, "root"))
        (root / "opt/own").write_text("of the image")
        with tarfile.open(Path(directory, "image.tar"), "w") as tar:
            tar.add(root, ".")
        Path(directory).chmod(0o755)
        yield Path(directory, "image.tar")


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that every user can enter, where tmp_path is its owner's alone; HERMES_HOME is in it."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        monkeypatch.setenv("HERMES_HOME", f"{directory}/home")
        yield Path(directory)


@pytest.fixture
async def bubblewrap(place: Path) -> AsyncIterator[BubblewrapBackend]:
    backend = BubblewrapBackend()
    yield backend
    await backend.close()


@pytest.fixture
async def local(place: Path) -> AsyncIterator[LocalBackend]:
    backend = LocalBackend()
    yield backend
    await backend.close()


async def seen(backend: BubblewrapBackend | LocalBackend, spec: SandboxSpec, command: str) -> str:
    """What a command says in a new sandbox."""
    async with await backend.start(spec) as sandbox:
        result = await sandbox.exec(command, timeout=20, merge_stderr=True)
        return result.stdout.decode()


def entries(place: Path, kind: str) -> list[Path]:
    return [path for path in (place / "home/rl/images" / kind).glob("*") if path.is_dir()]


# --- an image as the root directory ---


async def test_a_tar_archive_is_the_root_directory(bubblewrap: BubblewrapBackend, archive: Path) -> None:
    said = await seen(bubblewrap, SandboxSpec(image=str(archive)), "cat /opt/own; echo; ls /usr/bin | wc -l; ls /home")
    assert said.splitlines()[0] == "of the image"
    assert int(said.splitlines()[1]) < 30
    assert "No such file" in said


async def test_a_root_directory_cannot_be_written_to(bubblewrap: BubblewrapBackend, archive: Path) -> None:
    for path in ("/opt/own", "/opt/new", "/new", "/etc/passwd", "/usr/bin/bash"):
        assert "Read-only file system" in await seen(bubblewrap, SandboxSpec(image=str(archive)), f"echo > {path}")


async def test_an_archive_is_unpacked_once(bubblewrap: BubblewrapBackend, archive: Path, place: Path) -> None:
    spec = SandboxSpec(image=str(archive))
    said: list[str] = []
    await bubblewrap.prepare(spec, said.append)
    assert any("unpack" in line for line in said)
    again: list[str] = []
    await asyncio.gather(bubblewrap.prepare(spec, again.append), seen(bubblewrap, spec, "true"))
    assert again == []
    assert len(entries(place, "unpacked")) == 1


async def test_the_same_content_under_another_name_is_the_same_image(
    bubblewrap: BubblewrapBackend, archive: Path, place: Path
) -> None:
    other = place / "other.tar"
    other.write_bytes(archive.read_bytes())
    for path in (archive, other):
        await seen(bubblewrap, SandboxSpec(image=str(path)), "true")
    assert len(entries(place, "unpacked")) == 1


async def test_an_archive_that_changed_is_another_image(
    bubblewrap: BubblewrapBackend, archive: Path, place: Path
) -> None:
    path = place / "changing.tar"
    for text in ("one", "two"):
        path.write_bytes(archive.read_bytes())
        with tarfile.open(path, "a") as tar:
            add(tar, "opt/own", text)
        assert await seen(bubblewrap, SandboxSpec(image=str(path)), "cat /opt/own") == text


async def test_a_directory_is_used_as_it_is(bubblewrap: BubblewrapBackend, place: Path) -> None:
    root = make_small_root(place / "root")
    spec = SandboxSpec(image=str(root))
    for text in ("one", "two"):
        (root / "opt/own").write_text(text)
        assert await seen(bubblewrap, spec, "cat /opt/own; id -un") == f"{text}agent\n"
    assert entries(place, "unpacked") == []


async def test_in_an_image_the_user_is_the_agent(bubblewrap: BubblewrapBackend, archive: Path) -> None:
    assert await seen(bubblewrap, SandboxSpec(image=str(archive)), "id -un; id -gn; id -u") == "agent\nagent\n1000\n"


async def test_an_image_that_has_a_user_of_that_number_keeps_its_name(
    bubblewrap: BubblewrapBackend, place: Path
) -> None:
    root = make_small_root(place / "root")
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/bash\nubuntu:x:1000:1000::/home/ubuntu:/bin/bash\n")
    assert await seen(bubblewrap, SandboxSpec(image=str(root)), "id -un; id -gn") == "ubuntu\nagent\n"


async def test_a_link_in_an_image_does_not_show_a_file_of_the_host(bubblewrap: BubblewrapBackend, place: Path) -> None:
    (place / "secret").write_text("host:x:1234:1234::/:/bin/sh\n")
    root = make_small_root(place / "root")
    (root / "etc/passwd").unlink()
    (root / "etc/passwd").symlink_to(place / "secret")
    assert "host" not in await seen(bubblewrap, SandboxSpec(image=str(root)), "cat /etc/passwd")


async def test_an_image_that_is_not_there_is_a_config_error(bubblewrap: BubblewrapBackend) -> None:
    with pytest.raises(ConfigError, match=r"/none/such\.tar cannot be read: No such file.*a directory, or a tar"):
        await bubblewrap.start(SandboxSpec(image="/none/such.tar"))


@pytest.mark.parametrize("content", [b"", b"no archive at all" * 1000])
async def test_an_image_that_is_no_archive_is_a_config_error(
    bubblewrap: BubblewrapBackend, place: Path, content: bytes
) -> None:
    (place / "image").write_bytes(content)
    with pytest.raises(ConfigError, match=r"image cannot be used: .*not a complete tar archive"):
        await bubblewrap.start(SandboxSpec(image=str(place / "image")))
    assert list((place / "home/rl/images/unpacked").glob("*.part")) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's sandboxes run as that user")
async def test_an_image_that_other_users_cannot_reach_is_a_config_error(
    bubblewrap: BubblewrapBackend, place: Path
) -> None:
    closed = place / "closed"
    make_small_root(closed / "root")
    closed.chmod(0o700)
    with pytest.raises(ConfigError, match=rf"{closed} cannot be entered by other users"):
        await bubblewrap.start(SandboxSpec(image=str(closed / "root")))


async def test_an_image_without_perl_says_what_it_needs(bubblewrap: BubblewrapBackend, place: Path) -> None:
    (make_small_root(place / "root") / "usr/bin/perl").unlink()
    with pytest.raises(SandboxError, match="needs bash and perl"):
        await bubblewrap.start(SandboxSpec(image=str(place / "root")))


# --- files and setup ---


async def test_files_are_laid_out_in_the_workspace(bubblewrap: BubblewrapBackend, place: Path) -> None:
    (place / "given").write_bytes(b"\0binary\xff")
    files: Mapping[str, bytes | str | Path] = {
        "text": "text é",
        "a/deep/file": b"bytes",
        "/workspace/whole": "path",
        "from disk": place / "given",
        "n" * 200: "long name",
        "large": bytes(3_000_000),
    }
    async with await bubblewrap.start(SandboxSpec(files=files)) as sandbox:
        assert await sandbox.read("text") == "text é".encode()
        assert await sandbox.read("a/deep/file") == b"bytes"
        assert await sandbox.read("whole") == b"path"
        assert await sandbox.read("from disk") == b"\0binary\xff"
        assert await sandbox.read("n" * 200) == b"long name"
        assert await sandbox.read("large") == bytes(3_000_000)
        assert (await sandbox.exec("echo >> text && rm -r a && stat -c %U whole", timeout=10)).stdout == b"agent\n"


async def test_files_alone_leave_nothing_in_the_store(bubblewrap: BubblewrapBackend, place: Path) -> None:
    await seen(bubblewrap, SandboxSpec(files={"a": "b"}), "cat a")
    assert not (place / "home/rl/images").exists()


async def test_a_setup_without_an_image_is_the_agents(bubblewrap: BubblewrapBackend) -> None:
    spec = SandboxSpec(
        files={"in": "text"}, setup="cat in > out; id -un >> out; pwd >> out; chmod 755 in; ln -s in link"
    )
    said = await seen(bubblewrap, spec, "cat out; stat -c '%a %U %F' in link")
    assert said == "textagent\n/workspace\n755 agent regular file\n777 agent symbolic link\n"


async def test_a_setup_in_an_image_is_roots_and_all_it_did_is_kept(
    bubblewrap: BubblewrapBackend, archive: Path
) -> None:
    spec = SandboxSpec(
        image=str(archive),
        files={"in": "text", "/opt/given": "given"},
        setup='cat /opt/given in > /opt/made; rm /opt/own; echo "$HOME $(id -u)" > out; chmod 600 out; chown 7:8 out',
    )
    said = await seen(
        bubblewrap, spec, "cat /opt/made out; stat -c '%a %U' out; ls /opt; echo x > out; echo > /opt/made"
    )
    assert said.startswith("giventext/root 0\n600 agent\ngiven\nmade\n")
    assert said.endswith("/opt/made: Read-only file system\n")


async def test_the_image_itself_is_not_changed_by_a_setup(bubblewrap: BubblewrapBackend, archive: Path) -> None:
    await seen(bubblewrap, SandboxSpec(image=str(archive), setup="echo changed > /opt/own"), "true")
    assert await seen(bubblewrap, SandboxSpec(image=str(archive)), "cat /opt/own") == "of the image"


async def test_a_setup_that_only_changes_the_workspace_needs_no_copy_of_the_image(
    bubblewrap: BubblewrapBackend, archive: Path, place: Path
) -> None:
    assert await seen(bubblewrap, SandboxSpec(image=str(archive), setup="echo made > it; ls /"), "cat it") == "made\n"
    (baked,) = entries(place, "baked")
    assert [path.name for path in baked.iterdir()] == ["workspace.tar"]


async def test_root_in_a_setup_is_contained(bubblewrap: BubblewrapBackend, archive: Path, place: Path) -> None:
    setup = f"(ls {place}; cat /proc/net/dev; echo ours > /proc/sys/kernel/domainname) > out 2>&1; true"
    said = await seen(bubblewrap, SandboxSpec(image=str(archive), setup=setup), "cat out")
    assert f"cannot access '{place}'" in said
    assert [line.split(":")[0].strip() for line in said.splitlines() if line.count(" 0") > 8] == ["lo"]
    assert "domainname: Read-only file system" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="what an ordinary user makes is that user's")
async def test_what_a_setup_leaves_is_closed_to_other_users(
    bubblewrap: BubblewrapBackend, archive: Path, place: Path
) -> None:
    setup = "cd /opt; cp /bin/true set-id; chmod 6777 set-id; touch mine; chmod 600 mine; chown 1000:1000 mine"
    assert await seen(bubblewrap, SandboxSpec(image=str(archive), setup=setup), "cat /opt/mine") == ""
    (baked,) = entries(place, "baked")
    set_id, mine = ((baked / "root/opt" / name).stat() for name in ("set-id", "mine"))
    assert stat.S_IMODE(set_id.st_mode) == 0o755
    assert (mine.st_uid, mine.st_gid) == (0, 0)
    assert stat.S_IMODE((baked / "workspace.tar").stat().st_mode) & 0o022 == 0


async def test_a_setup_is_run_once(bubblewrap: BubblewrapBackend) -> None:
    spec = SandboxSpec(setup=UNIQUE)
    assert len({await seen(bubblewrap, spec, "cat unique") for _ in range(3)}) == 1


async def test_many_starts_at_once_in_several_processes_run_a_setup_once(
    bubblewrap: BubblewrapBackend, archive: Path, place: Path
) -> None:
    spec = SandboxSpec(image=str(archive), setup=f"{UNIQUE}; sleep 0.5; cp unique /opt")
    # Another backend shares nothing with this one but the store, as another process would.
    other = BubblewrapBackend()
    starts = (seen(backend, spec, "cat unique /opt/unique") for backend in [bubblewrap, other] * 8)
    assert len(set(await asyncio.gather(*starts))) == 1
    assert len(entries(place, "baked")) == len(entries(place, "unpacked")) == 1
    await other.close()


async def test_other_content_is_another_setup(bubblewrap: BubblewrapBackend, place: Path) -> None:
    given = place / "given"
    found = set()
    for text in ("one", "two"):
        given.write_text(text)
        for setup in (UNIQUE, f"{UNIQUE}; true"):
            for env in ({}, {"A": "b"}):
                spec = SandboxSpec(files={"given": given}, setup=setup, env=env)
                found.add(await seen(bubblewrap, spec, "cat given unique"))
    assert len(found) == 8


async def test_a_setup_that_fails_says_so_to_everybody_and_is_tried_again(local: LocalBackend, place: Path) -> None:
    spec = SandboxSpec(setup=f"echo x >> {place}/tries; sleep 0.3; echo 'no such package' >&2; exit 7")
    for tries in (1, 2):
        errors = await asyncio.gather(*(local.start(spec) for _ in range(4)), return_exceptions=True)
        for error in errors:
            assert isinstance(error, SandboxError)
            assert error.cause == "setup"
            assert "ended with 7: no such package" in str(error)
        assert (place / "tries").read_text() == "x\n" * tries
    assert list((place / "home/rl/images/baked").glob("*.part")) == []


async def test_a_setup_that_needs_an_image_says_so(bubblewrap: BubblewrapBackend) -> None:
    with pytest.raises(SandboxError, match=r"Read-only file system.*name an image in sandbox_spec"):
        await bubblewrap.start(SandboxSpec(setup="mkdir /opt"))


@pytest.mark.parametrize("name", ["/opt/file", "../up"])
async def test_a_file_outside_the_workspace_needs_an_image(bubblewrap: BubblewrapBackend, name: str) -> None:
    with pytest.raises(ConfigError, match="with an image: name an image, or a path below the workspace"):
        await bubblewrap.start(SandboxSpec(files={name: ""}))


@pytest.mark.parametrize("name", ["/tmp/file", "/proc/file", "/", ".", "/workspace"])
async def test_a_file_that_would_not_stay_is_refused(bubblewrap: BubblewrapBackend, archive: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="files there do not stay"):
        await bubblewrap.start(SandboxSpec(image=str(archive), files={name: ""}))


async def test_local_bakes_its_own_workspace(local: LocalBackend) -> None:
    spec = SandboxSpec(files={"a/in": "text", "/workspace/b": "too"}, setup=f"cat a/in b > out; {UNIQUE}")
    assert await seen(local, spec, "cat out") == "texttoo"
    assert len({await seen(local, spec, "cat unique") for _ in range(2)}) == 1


async def test_a_cancelled_start_does_not_stop_the_setup_that_others_wait_for(local: LocalBackend, place: Path) -> None:
    spec = SandboxSpec(setup=f"echo x >> {place}/tries; sleep 1")
    first = asyncio.ensure_future(local.start(spec))
    while not (place / "tries").exists():
        await asyncio.sleep(0.01)
    second = asyncio.ensure_future(local.start(spec))
    first.cancel()
    await (await second).close()
    assert first.cancelled()
    assert (place / "tries").read_text() == "x\n"


async def test_closing_the_backend_gives_up_what_it_prepares(local: LocalBackend, place: Path) -> None:
    spec = SandboxSpec(setup=f"touch {place}/began; sleep 600")
    starting = asyncio.ensure_future(local.start(spec))
    while not (place / "began").exists():
        await asyncio.sleep(0.01)
    await local.close()
    with pytest.raises(SandboxError, match="closed while it prepared"):
        await starting
    assert list((place / "home/rl/images/baked").glob("*.part")) == []


async def test_what_a_dead_process_left_half_done_is_begun_anew(bubblewrap: BubblewrapBackend, place: Path) -> None:
    spec = SandboxSpec(setup=UNIQUE)
    await seen(bubblewrap, spec, "true")
    (baked,) = entries(place, "baked")
    half = baked.rename(baked.with_name(f"{baked.name}.part"))
    (half / "rest").touch()
    await seen(bubblewrap, spec, "true")
    assert [path.name for path in baked.iterdir()] == ["workspace.tar"]
    assert not half.exists()


ORDINARY = """
    import asyncio, sys
    from hermes_rl.sandbox.backends.bubblewrap import BubblewrapBackend
    from hermes_rl.sandbox.spec import SandboxSpec

    async def main():
        backend = BubblewrapBackend()
        spec = SandboxSpec(image="IMAGE", files={"a": "text", "/opt/b": "outside"}, setup="id -u > /opt/c; id -u > d")
        for _ in range(2):
            async with await backend.start(spec) as sandbox:
                said = await sandbox.exec("id -un; cat a /opt/b /opt/c d /opt/own; echo > /opt/c", timeout=20)
                print(said.stdout.decode(), said.stderr.decode())

    asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="this process is an ordinary user already, as in every other test")
def test_images_and_setup_work_for_an_ordinary_user(place: Path, archive: Path) -> None:
    ran = run_as_nobody(ORDINARY.replace("IMAGE", str(archive)), place)
    once = "agent\ntextoutside0\n0\nof the image bash: line 1: /opt/c: Read-only file system\n\n"
    assert ran.stdout == once * 2, ran.stderr


# --- unpacking ---


def add(tar: tarfile.TarFile, name: str, text: str = "", **about: object) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(text)
    for field, value in about.items():
        setattr(member, field, value)
    tar.addfile(member, io.BytesIO(text.encode()))


def packed(path: Path, *members: Mapping[str, object], mode: str = "w") -> Path:
    """An archive with /usr and these members."""
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        add(tar, "usr", type=tarfile.DIRTYPE, mode=0o755)
        for member in members:
            add(tar, **member)  # type: ignore[arg-type]
    return path


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> dict[str, object]:
    return {"name": name, "linkname": target, "type": kind}


@pytest.mark.parametrize(
    "member",
    [
        {"name": "/absolute"},
        {"name": "../above"},
        {"name": "usr/../../above"},
        link("hard", "../../etc/passwd", tarfile.LNKTYPE),
        link("hard", "/etc/passwd", tarfile.LNKTYPE),
        link("hard", "usr", tarfile.LNKTYPE),
    ],
)
def test_a_name_that_leads_out_of_the_archive_is_refused(tmp_path: Path, member: dict[str, object]) -> None:
    with pytest.raises(BadRootfsError, match=r"leads out of it|not a file in it"):
        unpack(packed(tmp_path / "tar", member), tmp_path / "root")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "root") == ["tar"]


@pytest.mark.parametrize("target", ["/../../outside", "../../../outside", "/outside"])
def test_a_link_leads_to_where_it_would_in_the_sandbox(tmp_path: Path, target: str) -> None:
    archive = packed(tmp_path / "tar", link("usr/way", target), {"name": "usr/way/file", "text": "text"})
    unpack(archive, tmp_path / "root")
    assert (tmp_path / "root/outside/file").read_text() == "text"
    assert not (tmp_path / "outside").exists()


def test_a_file_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "host").write_text("host")
    archive = packed(tmp_path / "tar", link("way", str(tmp_path / "host")), {"name": "way", "text": "other"})
    unpack(archive, tmp_path / "root")
    assert (tmp_path / "host").read_text() == "host"
    assert (tmp_path / "root/way").read_text() == "other"


def test_links_that_lead_in_a_circle_are_refused(tmp_path: Path) -> None:
    archive = packed(tmp_path / "tar", link("a", "b"), link("b", "a"), {"name": "a/file"})
    with pytest.raises(BadRootfsError, match="not a directory"):
        unpack(archive, tmp_path / "root")


def test_device_nodes_and_pipes_are_left_out(tmp_path: Path) -> None:
    archive = packed(tmp_path / "tar", {"name": "usr/disk", "type": DEVICE}, {"name": "usr/pipe", "type": PIPE})
    unpack(archive, tmp_path / "root")
    assert list((tmp_path / "root/usr").iterdir()) == []


def test_nobody_but_the_owner_may_write_and_set_id_bits_are_gone(tmp_path: Path) -> None:
    modes = {"set-id": (0o6755, 0), "open": (0o666, 0), "secret": (0o600, 0), "agents": (0o700, 1000), "locked": (0, 0)}
    members = [{"name": f"usr/{name}", "mode": mode, "uid": uid} for name, (mode, uid) in modes.items()]
    unpack(packed(tmp_path / "tar", *members), tmp_path / "root")
    got = {name: stat.S_IMODE((tmp_path / "root/usr" / name).stat().st_mode) for name in modes}
    assert got == {"set-id": 0o755, "open": 0o644, "secret": 0o600, "agents": 0o705, "locked": 0o600}


@pytest.mark.parametrize("mode", ["w:gz", "w:xz", "w:bz2"])
def test_a_compressed_archive_is_unpacked_too(tmp_path: Path, mode: str) -> None:
    unpack(packed(tmp_path / "tar", {"name": "usr/file", "text": "text"}, mode=mode), tmp_path / "root")
    assert (tmp_path / "root/usr/file").read_text() == "text"


@pytest.mark.skipif(shutil.which("zstd") is None, reason="zstd is not installed (apt-get install zstd)")
def test_an_archive_compressed_with_zstd_is_unpacked_too(tmp_path: Path) -> None:
    subprocess.run(["zstd", "-q", packed(tmp_path / "tar", {"name": "usr/file", "text": "text"})], check=True)
    unpack(tmp_path / "tar.zst", tmp_path / "root")
    assert (tmp_path / "root/usr/file").read_text() == "text"


@pytest.mark.parametrize("left", [100, 600, 2000])
def test_an_archive_that_was_cut_short_is_refused(tmp_path: Path, left: int) -> None:
    whole = packed(tmp_path / "tar", {"name": "usr/file", "text": "x" * 5000}).read_bytes()
    (tmp_path / "cut").write_bytes(whole[:left])
    with pytest.raises(BadRootfsError):
        unpack(tmp_path / "cut", tmp_path / "root")


def test_an_archive_of_something_else_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "tar", "w") as tar:
        add(tar, "project/file")
    with pytest.raises(BadRootfsError, match="not a root filesystem"):
        unpack(tmp_path / "tar", tmp_path / "root")


LAYERS: tuple[list[dict[str, object]], ...] = (
    [{"name": "usr/kept"}, {"name": "usr/gone"}, {"name": "opt/a/b"}, {"name": "opt/c"}, link("lib", "usr/lib")],
    [{"name": "usr/.wh.gone"}, {"name": "opt/a/new"}, {"name": "opt/.wh..wh..opq"}, {"name": "lib/file"}],
)


def saved(directory: Path, *, oci: bool) -> Path:
    """What `docker save` writes, or an OCI archive."""
    blobs = {}
    for number, layer in enumerate(LAYERS):
        content = packed(directory / f"layer{number}", *layer, mode="w:gz").read_bytes()
        blobs[hashlib.sha256(content).hexdigest()] = content
    layers = list(blobs)
    files = {f"blobs/sha256/{digest}": content for digest, content in blobs.items()}
    if oci:
        manifest = json.dumps({"layers": [{"digest": f"sha256:{digest}"} for digest in layers]}).encode()
        digest = hashlib.sha256(manifest).hexdigest()
        files |= {
            f"blobs/sha256/{digest}": manifest,
            "oci-layout": b"{}",
            "index.json": json.dumps({"manifests": [{"digest": f"sha256:{digest}"}]}).encode(),
        }
    else:
        files["manifest.json"] = json.dumps([{"Layers": [f"blobs/sha256/{digest}" for digest in layers]}]).encode()
    with tarfile.open(directory / "saved", "w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return directory / "saved"


@pytest.mark.parametrize("oci", [False, True])
def test_layers_are_laid_over_each_other(tmp_path: Path, oci: bool) -> None:
    unpack(saved(tmp_path, oci=oci), tmp_path / "root")
    root = tmp_path / "root"
    found = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and path.parent != root / "etc"}
    assert found == {"usr/kept", "opt/a/new", "usr/lib/file"}
    assert (root / "lib").is_symlink()


names = st.lists(st.sampled_from(["a", "b", "usr", "..", ".", "", ".wh.a", ".wh..wh..opq"]), min_size=1, max_size=4)
paths = names.map("/".join)
kinds = st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
members = st.lists(st.fixed_dictionaries({"name": paths.filter(bool), "linkname": paths, "type": kinds}), max_size=8)


@given(members)
def test_whatever_an_archive_holds_nothing_outside_is_touched(members: list[dict[str, object]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        outside, root = Path(directory, "outside"), Path(directory, "outside/deep/root")
        root.parent.mkdir(parents=True)
        for name in ("a", "b", "usr"):
            (outside / name).write_text("before")
            (outside / "deep" / name).write_text("before")
        before = {path for path in outside.rglob("*") if not path.is_relative_to(root)}
        with contextlib.suppress(BadRootfsError, OSError):
            unpack(packed(Path(directory, "tar"), *members), root)
        after = {path for path in outside.rglob("*") if not path.is_relative_to(root)}
        assert after == before
        assert {path.read_text() for path in after if path.is_file()} == {"before"}
