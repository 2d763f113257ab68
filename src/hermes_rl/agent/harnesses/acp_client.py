"""Runs an agent that speaks the Agent Client Protocol: `python3 acp_client.py AGENT WORDS…`, in the sandbox.

It starts the agent, opens one session in the working directory, sends the prompt of $PROMPT_FILE, allows what the agent
asks for, prints the agent's text and ends with the turn. The sandbox's own Python runs it, so it imports nothing else.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PROTOCOL_VERSION = 1
NO_SUCH_METHOD = {"code": -32601, "message": "this client has no such method"}
ALLOW = ("allow_always", "allow_once")
SECONDS_TO_END = 5


class AgentError(Exception):
    """What the agent did that the protocol does not allow, or the error that it answered."""


class Connection:
    """JSON-RPC over the agent's standard input and output, one message per line."""

    def __init__(self, agent: subprocess.Popen[str]) -> None:
        self._agent = agent
        self._requests = 0

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a request. What the agent asks or tells in between is handled."""
        self._requests += 1
        number = self._requests
        self._send({"id": number, "method": method, "params": params})
        for line in self._agent.stdout or ():
            message = read_message(line)
            if "method" in message:
                self._handle(message)
            elif message.get("id") == number:
                if "error" in message:
                    raise AgentError(f"{method}: {json.dumps(message['error'])}")
                result: dict[str, Any] = message.get("result") or {}
                return result
        raise AgentError(f"it ended before it answered {method}, with exit status {self._agent.wait()}")

    def _handle(self, message: dict[str, Any]) -> None:
        params = message.get("params") or {}
        if message["method"] == "session/update":
            show(params.get("update") or {})
        if "id" not in message:
            return
        if message["method"] == "session/request_permission":
            self._send({"id": message["id"], "result": {"outcome": allowed(params.get("options") or [])}})
        else:
            self._send({"id": message["id"], "error": NO_SUCH_METHOD})

    def _send(self, message: dict[str, Any]) -> None:
        assert self._agent.stdin is not None  # noqa: S101 - a pipe
        try:
            self._agent.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            self._agent.stdin.flush()
        except BrokenPipeError:
            raise AgentError(f"it ended with exit status {self._agent.wait()}") from None


def read_message(line: str) -> dict[str, Any]:
    """The message on a line; empty for a line that is none, since some agents print warnings."""
    try:
        message = json.loads(line)
    except ValueError:
        message = None
    if isinstance(message, dict):
        return message
    warn(line.rstrip())
    return {}


def show(update: dict[str, Any]) -> None:
    content = update.get("content") or {}
    if update.get("sessionUpdate") == "agent_message_chunk" and isinstance(content, dict):
        print(content.get("text") or "", end="", flush=True)  # noqa: T201 - in the sandbox


def warn(text: str) -> None:
    print(text, file=sys.stderr)  # noqa: T201 - in the sandbox


def allowed(options: list[dict[str, Any]]) -> dict[str, Any]:
    """The most lasting permission on offer."""
    for kind in ALLOW:
        for option in options:
            if option.get("kind") == kind:
                return {"outcome": "selected", "optionId": option["optionId"]}
    return {"outcome": "cancelled"}


def run(agent: subprocess.Popen[str], prompt: str) -> str:
    """Run one turn, and return why it ended."""
    connection = Connection(agent)
    files = {"readTextFile": False, "writeTextFile": False}
    abilities = {"fs": files, "terminal": False}
    connection.ask("initialize", protocolVersion=PROTOCOL_VERSION, clientCapabilities=abilities)
    session = connection.ask("session/new", cwd=str(Path.cwd()), mcpServers=[])["sessionId"]
    answer = connection.ask("session/prompt", sessionId=session, prompt=[{"type": "text", "text": prompt}])
    return str(answer.get("stopReason", "end_turn"))


def main() -> int:
    if len(sys.argv) < 2:
        warn("name the agent's command: agent:acp WORDS")
        return 2
    prompt = Path(os.environ["PROMPT_FILE"]).read_text(encoding="utf-8")
    try:
        agent = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8")
    except OSError as error:
        warn(f"{sys.argv[1]} cannot be started: {error}")
        return 1
    with agent:
        try:
            reason = run(agent, prompt)
        except AgentError as error:
            warn(f"the agent failed: {error}")
            return 1
        finally:
            end(agent)
    warn(f"\nthe turn ended: {reason}")
    return 0


def end(agent: subprocess.Popen[str]) -> None:
    """Let the agent end, or kill it."""
    assert agent.stdin is not None  # noqa: S101 - a pipe
    try:
        agent.stdin.close()
        agent.wait(SECONDS_TO_END)
    except (OSError, subprocess.TimeoutExpired):
        agent.kill()
        agent.wait()


if __name__ == "__main__":
    sys.exit(main())
