"""The fuzzer finds what it looks for: an exception, a hang, a 5xx, a process that ends."""

import copy
import http.server
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from scripts.fuzz.__main__ import append_row, lost, read_rows, totals
from scripts.fuzz.worker import current_input, watched
from tests.fuzz import surface as fuzzing
from tests.fuzz.inputs import SCALARS, spoiled
from tests.fuzz.servers import Client, pack, sender, unpack
from tests.fuzz.surface import (
    DefectError,
    Findings,
    Kind,
    NotSentError,
    Surface,
    case_from_text,
    case_to_text,
    fuzz,
    opened,
    reader,
    shrink,
)


def _divide(data: bytes) -> None:
    if b"0" in data:
        raise ZeroDivisionError("nothing")
    if b"!" in data:
        raise ValueError("refused")


DIVIDE = reader(_divide, (ValueError,))


def test_an_exception_that_is_no_refusal_is_a_crash() -> None:
    surface = Surface("divide", lambda: st.sampled_from([b"0", b"!", b"1"]), lambda: opened(DIVIDE))
    found = Findings()
    with surface.open() as run:
        fuzz(surface, run, found, 1, lambda: True, 50)
    assert (found.counts[Kind.HANG], found.counts[Kind.SERVER_ERROR]) == (0, 0)
    assert found.counts[Kind.CRASH] > 0
    assert [data for _, data in found.defects.values()] == [b"0"]


def test_a_case_is_made_short() -> None:
    with pytest.raises(DefectError) as caught:
        DIVIDE(b"a" * 100 + b"0" + b"b" * 50)
    assert shrink(DIVIDE, b"a" * 100 + b"0" + b"b" * 50, caught.value.key) == b"0"


def test_an_input_that_takes_too_long_is_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzing, "HANG_SECONDS", 0.05)

    def spin(_: bytes) -> None:
        while True:
            pass

    with pytest.raises(DefectError) as caught:
        reader(spin, ())(b"")
    assert caught.value.kind is Kind.HANG


def test_a_case_survives_its_file() -> None:
    data = bytes(range(256)) + b"\\n\n"
    assert case_from_text(case_to_text(data)) == data
    assert case_to_text(data).isascii()


def test_a_request_survives_its_file() -> None:
    request = ("POST", "/a?b=%00", {"Accept": "é"}, b"\xff\0")
    assert unpack(pack(*request)) == request
    with pytest.raises(NotSentError):
        unpack(b"no request")


@contextmanager
def server(status: int, seconds: float = 0.0) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            time.sleep(seconds)
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_port}"
        finally:
            listening.shutdown()
            thread.join()


@dataclass
class Known:
    """A server that is already there."""

    client: Client
    alive: bool = True
    log: str = "Traceback"


def outcome(url: str, seconds: float = 10.0) -> Kind | None:
    client = Client(url, {}, {})
    client._line.timeout = seconds
    try:
        sender(lambda: Known(client))(pack("GET", "/x", {}, b""))
    except DefectError as defect:
        return defect.kind
    finally:
        client.close()
    return None


@pytest.mark.parametrize(
    ("status", "kind"), [(200, None), (404, None), (500, Kind.SERVER_ERROR), (503, Kind.SERVER_ERROR)]
)
def test_a_status_of_500_or_more_is_a_defect(status: int, kind: Kind | None) -> None:
    with server(status) as url:
        assert outcome(url) is kind


def test_an_answer_that_does_not_come_is_a_hang() -> None:
    with server(200, seconds=0.5) as url:
        assert outcome(url, seconds=0.1) is Kind.HANG


def test_a_server_that_is_gone_is_a_crash() -> None:
    with server(200) as url:
        pass
    assert outcome(url) is Kind.CRASH


def test_the_input_of_a_process_that_ends_is_known(tmp_path: Path) -> None:
    process = os.fork()
    if process == 0:
        watched(lambda _: os.kill(os.getpid(), signal.SIGKILL), tmp_path / "input")(b"deadly")
    _, status = os.waitpid(process, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert current_input(tmp_path / "input") == b"deadly"
    row = lost("groups", -signal.SIGKILL, False, b"deadly", "", cases=False)
    assert (row["crash"], row["defects"]["crash of the process"]["message"]) == (1, "ended by SIGKILL")


def test_results_of_the_same_source_add_up_and_a_torn_line_is_skipped(tmp_path: Path) -> None:
    out = tmp_path / "fuzz.jsonl"
    row = {"surface": "groups", "seconds": 60.0, "executions": 5, "crash": 0, "hang": 0, "5xx": 0, "defects": {}}
    append_row(out, {"source": "a", **row})
    with out.open("a") as file:
        file.write(json.dumps({"source": "a", **row})[:20])
    append_row(out, {"source": "a", **row})
    append_row(out, {"source": "b", **row})
    [total] = totals(read_rows(out, "a"), ["groups"])
    assert (total["seconds"], total["executions"]) == (120.0, 10)


def test_spoiling_a_document_leaves_the_values_to_draw_from_as_they_were() -> None:
    before = copy.deepcopy(SCALARS)

    @seed(1)
    @settings(max_examples=300, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(spoiled([[[]], {"a": [1]}]))
    def draw(_: object) -> None: ...

    draw()
    assert before == SCALARS
