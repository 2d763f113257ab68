"""An agent on the protocol's own SDK, which asks before each command: `python acp_agent.py`, in a sandbox."""

import asyncio
import json
import os
import subprocess
from typing import Any

import acp  # type: ignore[import-not-found]
from acp.schema import PermissionOption, ToolCallUpdate  # type: ignore[import-not-found]
from openai import AsyncOpenAI

COMMAND = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
TERMINAL: Any = {"type": "function", "function": {"name": "terminal", "parameters": COMMAND}}
YES = PermissionOption(option_id="yes", name="Yes", kind="allow_once")
NO = PermissionOption(option_id="no", name="No", kind="reject_once")


class Worker:
    client: acp.Client

    def on_connect(self, conn: acp.Client) -> None:
        self.client = conn

    async def initialize(self, protocol_version: int, *_: Any, **__: Any) -> acp.InitializeResponse:
        return acp.InitializeResponse(protocol_version=protocol_version)

    async def new_session(self, *_: Any, **__: Any) -> acp.NewSessionResponse:
        return acp.NewSessionResponse(session_id="one")

    async def prompt(self, prompt: list[Any], session_id: str, **_: Any) -> acp.PromptResponse:
        messages: list[Any] = [{"role": "user", "content": prompt[0].text}]
        while True:
            answer = await AsyncOpenAI().chat.completions.create(
                model=os.environ["MODEL"], messages=messages, tools=[TERMINAL]
            )
            message: Any = answer.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                await self.client.session_update(session_id, acp.update_agent_message_text(message.content))
                return acp.PromptResponse(stop_reason="end_turn")
            for call in message.tool_calls:
                about = ToolCallUpdate(tool_call_id=call.id, title="terminal")
                said: Any = await self.client.request_permission(
                    session_id=session_id, options=[NO, YES], tool_call=about
                )
                assert said.outcome.option_id == "yes"
                command = json.loads(call.function.arguments)["command"]
                done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
                content = f"{done.stdout}[exit status {done.returncode}]"
                messages.append({"role": "tool", "tool_call_id": call.id, "content": content})


asyncio.run(acp.run_agent(Worker()))
