"""verifiers' own loop and scores on recorded rollouts; run in the environment of verifiers 0.3.1.

Reads {package: [[row, steps], …]} from standard input, writes {package: [{reward, metrics, roles}, …]}. A package with
group rewards gets all of its rollouts as one group.
"""

import asyncio
import json
import sys
from typing import Any

import verifiers as vf
from verifiers.types import ClientConfig, Response, ResponseMessage, ToolCall

CLIENT = ClientConfig(client_type="openai_chat_completions", api_base_url="http://127.0.0.1:9/v1", api_key_var="NO_KEY")


async def play(package: str, rollouts: list[Any]) -> list[dict[str, Any]]:
    env = vf.load_environment(package)
    left = [list(steps) for _, steps in rollouts]
    playing: dict[str, list[Any]] = {}

    async def answer(state: Any, prompt: Any, **_: Any) -> Response:
        steps = playing.setdefault(
            state["trajectory_id"], left[0] if state["trajectory_id"] in playing else left.pop(0)
        )
        step = steps.pop(0)
        calls = None
        if isinstance(step, list):
            calls = [ToolCall(id=f"c{at}", name=one[0], arguments=json.dumps(one[1])) for at, one in enumerate(step)]
        message = ResponseMessage(
            content="" if calls else step,
            tool_calls=calls,
            finish_reason="tool_calls" if calls else "stop",
            is_truncated=False,
        )
        return Response(id="r", created=0, model="recorded", message=message)

    env.get_model_response = answer
    data = env.get_dataset()
    rows = [dict(data[row]) for row, _ in rollouts]
    if env.requires_group_rollouts:
        outputs = await env.run_group(rows, CLIENT, "recorded", {})
    else:
        outputs = [await env.run_rollout(row, CLIENT, "recorded", {}) for row in rows]
    return [
        {"reward": one["reward"], "metrics": one["metrics"], "roles": [each["role"] for each in one["completion"]]}
        for one in outputs
    ]


async def main() -> None:
    asked = json.load(sys.stdin)
    print(json.dumps({package: await play(package, rollouts) for package, rollouts in asked.items()}))


asyncio.run(main())
