"""The client of the Agent Client Protocol, against an agent of a few lines on the other end of its pipes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hermes_rl.agent.harnesses import acp_client

START = """
import json, sys

def read():
    return json.loads(sys.stdin.readline())

def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

def answer(**result):
    asked = read()
    send(id=asked["id"], result=result)
    return asked

first = answer(protocolVersion=1)
session = answer(sessionId="s1")
"""


def run(folder: Path, agent: str) -> "subprocess.CompletedProcess[str]":
    """The client with an agent that goes on like this after the session is open."""
    (folder / "agent.py").write_text(START + agent)
    (folder / "prompt").write_text("Write a word.")
    return subprocess.run(
        [sys.executable, "-I", acp_client.__file__, sys.executable, "agent.py"],
        env={"PATH": os.environ["PATH"], "PROMPT_FILE": "prompt"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_agent_is_sent_the_prompt_and_its_text_is_printed(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
asked = read()
for text in ("It is ", "done."):
    chunk = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    send(method="session/update", params={"sessionId": "s1", "update": chunk})
send(method="session/update", params={"sessionId": "s1", "update": {"sessionUpdate": "plan", "entries": []}})
send(id=asked["id"], result={"stopReason": "end_turn"})
json.dump([first, session, asked], open("seen.json", "w"))
""",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "It is done.", "\nthe turn ended: end_turn\n")
    first, session, asked = json.loads((tmp_path / "seen.json").read_text())
    assert (first["method"], first["params"]["protocolVersion"]) == ("initialize", 1)
    assert session["params"] == {"cwd": str(tmp_path), "mcpServers": []}
    assert asked["params"] == {"sessionId": "s1", "prompt": [{"type": "text", "text": "Write a word."}]}


@pytest.mark.parametrize(
    ("kinds", "outcome"),
    [
        (["reject_once", "allow_once", "allow_always"], {"outcome": "selected", "optionId": "allow_always"}),
        (["reject_once", "allow_once"], {"outcome": "selected", "optionId": "allow_once"}),
        (["reject_once"], {"outcome": "cancelled"}),
    ],
)
def test_what_the_agent_asks_for_is_allowed(tmp_path: Path, kinds: list[str], outcome: dict[str, str]) -> None:
    options = [{"optionId": kind, "kind": kind, "name": kind} for kind in kinds]
    done = run(
        tmp_path,
        f"""
asked = read()
send(id="mine", method="session/request_permission", params={{"sessionId": "s1", "options": {options!r}}})
json.dump(read(), open("seen.json", "w"))
send(id=asked["id"], result={{"stopReason": "end_turn"}})
""",
    )
    assert done.returncode == 0
    assert json.loads((tmp_path / "seen.json").read_text()) == {
        "jsonrpc": "2.0",
        "id": "mine",
        "result": {"outcome": outcome},
    }


def test_a_method_that_the_client_does_not_have_is_answered_with_an_error(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
asked = read()
send(id=7, method="fs/read_text_file", params={"sessionId": "s1", "path": "/etc/passwd"})
json.dump(read(), open("seen.json", "w"))
send(id=asked["id"], result={"stopReason": "end_turn"})
""",
    )
    assert done.returncode == 0
    assert json.loads((tmp_path / "seen.json").read_text())["error"]["code"] == -32601


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        ('send(id=read()["id"], error={"code": -32000, "message": "no model"})', '"message": "no model"'),
        ("read(); sys.exit(3)", "it ended before it answered session/prompt, with exit status 3"),
        ("sys.exit(4)", "exit status 4"),
    ],
)
def test_an_agent_that_fails_is_told(tmp_path: Path, agent: str, said: str) -> None:
    done = run(tmp_path, agent)
    assert done.returncode == 1
    assert said in done.stderr


def test_lines_that_are_no_messages_are_passed_on(tmp_path: Path) -> None:
    done = run(tmp_path, 'asked = read()\nprint("warning: slow", flush=True)\nsend(id=asked["id"], result={})\n')
    assert (done.returncode, done.stderr) == (0, "warning: slow\n\nthe turn ended: end_turn\n")


def test_an_agent_that_does_not_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "agent.py").write_text(
        START + 'send(id=read()["id"], result={"stopReason": "max_tokens"})\nimport time\ntime.sleep(600)\n'
    )
    (tmp_path / "prompt").write_text("Write a word.")
    monkeypatch.setenv("PROMPT_FILE", str(tmp_path / "prompt"))
    monkeypatch.setattr(sys, "argv", ["acp_client.py", sys.executable, str(tmp_path / "agent.py")])
    monkeypatch.setattr(acp_client, "SECONDS_TO_END", 0.1)
    assert acp_client.main() == 0
    assert capsys.readouterr().err.endswith("the turn ended: max_tokens\n")


def test_a_command_that_cannot_be_started_and_none_at_all_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prompt").write_text("")
    monkeypatch.setenv("PROMPT_FILE", str(tmp_path / "prompt"))
    monkeypatch.setattr(sys, "argv", ["acp_client.py", str(tmp_path / "missing")])
    assert acp_client.main() == 1
    assert "missing cannot be started" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["acp_client.py"])
    assert acp_client.main() == 2
