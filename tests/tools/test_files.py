from pathlib import Path

import pytest

from hermes_rl.tools.files import MAX_LINE_CHARS
from hermes_rl.tools.session import ToolSession
from tests.tools.conftest import Call


async def raw(session: ToolSession, path: str) -> bytes:
    sandbox = await session.sandbox()
    return await sandbox.read(f"{sandbox.workspace}/{path}")


async def put(session: ToolSession, path: str, data: bytes) -> None:
    sandbox = await session.sandbox()
    await sandbox.write(f"{sandbox.workspace}/{path}", data)


# read_file


async def test_a_file_is_shown_with_line_numbers(call: Call) -> None:
    await call("write_file", path="a.txt", content="one\ntwo\n")
    assert await call("read_file", path="a.txt") == {
        "content": "1|one\n2|two",
        "total_lines": 2,
        "truncated": False,
    }


async def test_a_part_of_a_file_is_said_to_be_one(call: Call) -> None:
    await call("write_file", path="a.txt", content="one\ntwo\nthree\nfour")
    assert await call("read_file", path="a.txt", offset=2, limit=2) == {
        "content": "2|two\n3|three",
        "total_lines": 4,
        "truncated": True,
    }


async def test_an_offset_beyond_the_end_shows_nothing(call: Call) -> None:
    await call("write_file", path="a.txt", content="one\n")
    assert await call("read_file", path="a.txt", offset=9) == {"content": "", "total_lines": 1, "truncated": True}


async def test_an_empty_file_has_no_lines(call: Call) -> None:
    await call("write_file", path="empty", content="")
    assert await call("read_file", path="empty") == {"content": "", "total_lines": 0, "truncated": False}


async def test_a_very_long_line_says_how_much_was_left_out(call: Call) -> None:
    await call("write_file", path="a.txt", content="x" * (MAX_LINE_CHARS + 5))
    assert (await call("read_file", path="a.txt"))["content"].endswith("x… 5 characters left out")


async def test_text_in_another_encoding_can_be_read(session: ToolSession, call: Call) -> None:
    await put(session, "latin.txt", "café".encode("latin-1"))
    assert (await call("read_file", path="latin.txt"))["content"] == "1|caf\ufffd"


async def test_a_binary_file_is_refused(session: ToolSession, call: Call) -> None:
    await put(session, "image.png", b"\x89PNG\r\n\x1a\n\0\0\0")
    assert await call("read_file", path="image.png") == {"error": "image.png is a binary file of 11 bytes"}


async def test_a_missing_file_is_told(call: Call) -> None:
    assert await call("read_file", path="missing.txt") == {"error": "there is no file missing.txt"}


@pytest.mark.parametrize("path", [".", "~", ""])
async def test_a_directory_is_told(call: Call, path: str) -> None:
    assert await call("read_file", path=path) == {"error": f"{path} is a directory"}


async def test_a_named_pipe_does_not_hang_the_reader(call: Call) -> None:
    await call("terminal", command="mkfifo pipe")
    assert "not a regular file" in (await call("read_file", path="pipe"))["error"]


# write_file


async def test_a_file_is_written_with_its_directories(session: ToolSession, call: Call) -> None:
    answer = await call("write_file", path="new/dir/a.txt", content="žluť 日本\n")
    assert answer == {"path": "new/dir/a.txt", "bytes_written": len("žluť 日本\n".encode())}
    assert await raw(session, "new/dir/a.txt") == "žluť 日本\n".encode()


async def test_a_file_is_replaced_whole(session: ToolSession, call: Call) -> None:
    await call("write_file", path="a.txt", content="a long first content")
    await call("write_file", path="a.txt", content="short")
    assert await raw(session, "a.txt") == b"short"


async def test_writing_onto_a_directory_is_told(call: Call) -> None:
    await call("terminal", command="mkdir dir")
    assert "not a regular file" in (await call("write_file", path="dir", content="x"))["error"]


async def test_writing_below_a_file_is_told(call: Call) -> None:
    await call("write_file", path="file", content="x")
    assert "file" in (await call("write_file", path="file/below", content="x"))["error"]


@pytest.mark.parametrize("path", ["~/a.txt", "./a.txt", "a.txt"])
async def test_a_tilde_and_a_relative_path_are_the_workspace(session: ToolSession, call: Call, path: str) -> None:
    await call("write_file", path=path, content="x")
    assert await raw(session, "a.txt") == b"x"


async def test_an_absolute_path_is_taken_as_it_is(session: ToolSession, call: Call) -> None:
    place = f"{(await session.sandbox()).workspace}/a.txt"
    await call("write_file", path=place, content="x")
    assert (await call("read_file", path=place))["content"] == "1|x"


async def test_a_name_with_spaces_and_quotes_is_only_a_name(call: Call) -> None:
    name = 'it\'s a "file" $(touch pwned).txt'
    await call("write_file", path=name, content="x")
    assert (await call("terminal", command="ls"))["output"] == f"{name}\n"


# patch


async def test_a_piece_of_text_is_replaced(session: ToolSession, call: Call) -> None:
    await call("write_file", path="a.py", content="x = 1\r\ny = 2\r\n")
    assert await call("patch", path="a.py", old_string="x = 1", new_string="x = 日") == {
        "path": "a.py",
        "replacements": 1,
    }
    assert await raw(session, "a.py") == "x = 日\r\ny = 2\r\n".encode()


async def test_what_a_patch_does_not_replace_keeps_its_bytes(session: ToolSession, call: Call) -> None:
    await put(session, "latin.txt", "café = 1\n".encode("latin-1"))
    await call("patch", path="latin.txt", old_string="= 1", new_string="= 2")
    assert await raw(session, "latin.txt") == "café = 2\n".encode("latin-1")


@pytest.mark.parametrize("old", ["y = 2", ""])
async def test_text_that_does_not_occur_is_told(call: Call, old: str) -> None:
    await call("write_file", path="a.py", content="x = 1\n")
    answer = await call("patch", path="a.py", old_string=old, new_string="z")
    assert answer["error"].startswith("old_string does not occur in a.py")


async def test_text_that_occurs_twice_is_told_and_nothing_changes(session: ToolSession, call: Call) -> None:
    await call("write_file", path="a.py", content="x\nx\n")
    answer = await call("patch", path="a.py", old_string="x", new_string="y")
    assert answer["error"].startswith("old_string occurs 2 times in a.py")
    assert await raw(session, "a.py") == b"x\nx\n"


async def test_replace_all_replaces_each(session: ToolSession, call: Call) -> None:
    await call("write_file", path="a.py", content="x\nx\n")
    answer = await call("patch", path="a.py", old_string="x", new_string="y", replace_all=True)
    assert (answer["replacements"], await raw(session, "a.py")) == (2, b"y\ny\n")


async def test_patching_a_missing_file_is_told(call: Call) -> None:
    assert await call("patch", path="no.py", old_string="x", new_string="y") == {"error": "there is no file no.py"}


# search_files


async def a_small_project(call: Call) -> None:
    await call("write_file", path="src/a.py", content="import os\nprint('hello')\n")
    await call("write_file", path="src/b.txt", content="hello\n")
    await call("write_file", path=".git/config", content="hello\n")


def names(matches: list[str]) -> list[str]:
    return sorted(match.split(":")[0].rsplit("/", 1)[-1] for match in matches)


async def test_content_is_found_with_file_and_line(session: ToolSession, call: Call) -> None:
    await a_small_project(call)
    found = await call("search_files", pattern="^import +os$")
    place = f"{(await session.sandbox()).workspace}/src/a.py"
    assert found == {"matches": [f"{place}:1:import os"], "total": 1, "truncated": False}


async def test_version_control_is_not_searched(call: Call) -> None:
    await a_small_project(call)
    assert names((await call("search_files", pattern="hello"))["matches"]) == ["a.py", "b.txt"]
    assert (await call("search_files", pattern="config", target="files"))["matches"] == []


async def test_a_glob_limits_the_files_looked_into(call: Call) -> None:
    await a_small_project(call)
    assert names((await call("search_files", pattern="hello", file_glob="*.py"))["matches"]) == ["a.py"]


async def test_one_file_can_be_searched_and_is_named(call: Call) -> None:
    await a_small_project(call)
    assert names((await call("search_files", pattern="hello", path="src/b.txt"))["matches"]) == ["b.txt"]


async def test_files_are_found_by_name(call: Call) -> None:
    await a_small_project(call)
    assert names((await call("search_files", pattern="*.py", target="files"))["matches"]) == ["a.py"]


async def test_nothing_found_is_no_error(call: Call) -> None:
    await a_small_project(call)
    assert await call("search_files", pattern="absent") == {"matches": [], "total": 0, "truncated": False}


@pytest.mark.parametrize(("lines", "truncated"), [(5, False), (6, True)])
async def test_more_hits_than_the_limit_are_cut_and_said_to_be(call: Call, lines: int, truncated: bool) -> None:
    await call("write_file", path="a.txt", content="hit\n" * lines)
    found = await call("search_files", pattern="hit", limit=5)
    assert (len(found["matches"]), found["total"], found["truncated"]) == (5, 5, truncated)


async def test_one_line_is_one_hit_whatever_is_in_it(call: Call) -> None:
    await call("write_file", path="a.txt", content="hit\x0c\x1c\u2028 and on\r\n")
    [match] = (await call("search_files", pattern="hit"))["matches"]
    assert match.endswith(":1:hit\x0c\x1c\u2028 and on")


async def test_a_pattern_is_never_an_option_or_a_command(call: Call) -> None:
    await call("write_file", path="a.txt", content="--version $(touch pwned)\n")
    assert names((await call("search_files", pattern="--version"))["matches"]) == ["a.txt"]
    assert (await call("search_files", pattern="$(touch pwned)", target="files"))["matches"] == []
    assert (await call("terminal", command="ls"))["output"] == "a.txt\n"


async def test_a_broken_expression_is_told(call: Call) -> None:
    assert "grep" in (await call("search_files", pattern="(unclosed"))["error"]


@pytest.mark.parametrize("target", ["content", "files"])
async def test_a_missing_place_is_told(call: Call, target: str) -> None:
    assert "No such file" in (await call("search_files", pattern="x", path="missing", target=target))["error"]


# Links out of the sandbox.


@pytest.mark.parametrize("backend", ["bubblewrap"], indirect=True)
async def test_a_link_out_of_the_sandbox_does_not_lead_to_the_hosts_files(call: Call, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("the host's")
    await call("terminal", command=f"ln -s {tmp_path}/secret link")
    assert await call("read_file", path="link") == {"error": "there is no file link"}


@pytest.mark.parametrize("backend", ["bubblewrap"], indirect=True)
async def test_writing_through_a_link_out_of_the_sandbox_does_not_reach_the_host(call: Call, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("the host's")
    await call("terminal", command=f"ln -s {tmp_path}/file link; ln -s {tmp_path} links")
    await call("write_file", path="link", content="forged")
    await call("write_file", path="links/new", content="forged")
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"file": "the host's"}
