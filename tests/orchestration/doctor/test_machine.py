"""Ports, disks, memory and clock."""

import os
import shutil
import socket
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hermes_rl.core import memory
from hermes_rl.orchestration.doctor import machine
from hermes_rl.orchestration.doctor.finding import DoctorFinding, FindingState


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def with_free(monkeypatch: pytest.MonkeyPatch, free: int) -> list[DoctorFinding]:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**12, 0, free))
    return machine.disk()


def test_a_port_that_is_held_names_its_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(machine, "PORTS", {server.getsockname()[1]: ("hermes-rl api", "the line")})
        (found,) = machine.ports()
    assert found.state is FindingState.WARN
    assert f"(process {os.getpid()})" in found.what
    assert found.fix == "the line"


def test_a_port_that_nobody_holds_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
    monkeypatch.setattr(machine, "PORTS", {number: ("hermes-rl api", "")})
    assert [one.state for one in machine.ports()] == [FindingState.OK]


def test_a_disk_with_room_is_ok(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {one.state for one in with_free(monkeypatch, 50 * 10**9)} == {FindingState.OK}


def test_a_disk_that_is_nearly_full_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [one.state for one in with_free(monkeypatch, 2 * 10**9)] == [FindingState.WARN, FindingState.OK]


def test_a_full_disk_is_missing_room(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {one.state for one in with_free(monkeypatch, 10**6)} == {FindingState.MISSING}


def test_a_home_that_is_not_there_yet_is_measured_where_it_will_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "not" / "yet"))
    assert str(tmp_path / "not" / "yet") in machine.disk()[0].what
    assert not (tmp_path / "not").exists()


def test_a_home_that_cannot_be_written_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert {one.state for one in machine.disk()} == {FindingState.MISSING}


@pytest.mark.parametrize(
    ("free", "state"), [(10**10, FindingState.OK), (10**9, FindingState.WARN), (None, FindingState.WARN)]
)
def test_little_memory_is_warned_of(monkeypatch: pytest.MonkeyPatch, free: int | None, state: FindingState) -> None:
    monkeypatch.setattr(machine, "free_memory", lambda: free)
    assert [one.state for one in machine.memory()] == [state]


def test_memory_is_what_this_control_group_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_free_in_cgroups", lambda: iter([1234]))
    assert memory.free_memory() == 1234


def test_a_clock_before_our_own_files_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_1970(*_: Any) -> float:
        return 1000.0

    monkeypatch.setattr(time, "time", in_1970)
    (found,) = machine.clock()
    assert found.state is FindingState.WARN
    assert "1970-01-01" in found.what
