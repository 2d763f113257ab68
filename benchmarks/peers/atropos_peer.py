"""atroposlib with the seed's loop: a BaseEnv whose `collect_trajectory` is the seed's, its groups in Atropos' JSONL.

The environment, the loop and its thread pool follow the seed as it was published, in the phase it calls 1 (an OpenAI
endpoint, placeholder tokens). BaseEnv's `process` makes one group after the other, so the groups here are made beside
each other, each with the calls that `process` makes for one; its `serve` would need a trainer.
"""

import asyncio
import json
import logging
import math
import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig

from benchmarks.peers.work import TOOL_NAME, Job, Kept, Recording, Sandboxes, called, name_in, tool_schema

VERSION = version("atroposlib")
SETTINGS = (
    "groups of one rollout, as many at once as rollouts in flight, num_max_requests_at_once likewise, a server "
    "configuration for each 1,000; the seed's pool of 128 threads for tools; health_check off; "
    "timeout as the patience; retries as they are"
)
SANDBOXES = Sandboxes()
TOOL_POOL = ThreadPoolExecutor(128)
MAX_TURNS = 30


@dataclass
class AgentResult:
    messages: list[dict[str, Any]]
    turns_used: int = 0
    finished_naturally: bool = False
    tool_errors: list[str] = field(default_factory=list)


class ToolContext:
    """The verifier's door to the sandbox; the seed makes one on the way to the reward, and no other way closes it."""

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id

    def cleanup(self) -> None:
        SANDBOXES.close(self.task_id)


def handle_function_call(arguments: dict[str, Any], task_id: str) -> str:
    SANDBOXES.ensure(task_id)
    return called(arguments["command"])


class HermesAgentLoop:
    def __init__(self, server: Any, task_id: str) -> None:
        self.server, self.task_id = server, task_id
        self.tool_schemas = [tool_schema()]

    async def run(self, messages: list[dict[str, Any]]) -> AgentResult:
        result = AgentResult(messages)
        for turn in range(MAX_TURNS):
            result.turns_used = turn + 1
            try:
                completion = await self.server.chat_completion(
                    messages=messages, n=1, temperature=1.0, tools=self.tool_schemas
                )
            except Exception:
                # The seed logs it and hands over what there is; the result does not tell.
                logging.getLogger(__name__).exception("API call failed on turn %d", turn + 1)
                return result
            if not completion or not completion.choices:
                return result
            message = completion.choices[0].message
            said: dict[str, Any] = {"role": "assistant", "content": message.content or ""}
            if not message.tool_calls:
                messages.append(said)
                result.finished_naturally = True
                return result
            said["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": TOOL_NAME, "arguments": call.function.arguments},
                }
                for call in message.tool_calls
            ]
            messages.append(said)
            for call in message.tool_calls:
                text = await self.called(json.loads(call.function.arguments), result)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
        return result

    async def called(self, arguments: dict[str, Any], result: AgentResult) -> str:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(TOOL_POOL, handle_function_call, arguments, self.task_id)
        except Exception as error:  # noqa: BLE001 (as the seed does)
            result.tool_errors.append(str(error))
            return json.dumps({"error": f"Tool execution failed: {type(error).__name__}: {error}"})


class PlaybackEnv(BaseEnv):
    name = "playback"
    job: Job

    async def setup(self) -> None:
        self.waiting = iter(self.job.names)

    async def get_next_item(self) -> dict[str, str] | None:
        name = next(self.waiting, None)
        return None if name is None else {"prompt": self.job.prompt(name)}

    async def collect_trajectory(self, item: dict[str, str]) -> tuple[dict[str, Any], list[Any]]:
        task_id = str(uuid.uuid4())
        result = await HermesAgentLoop(self.server, task_id).run([{"role": "user", "content": item["prompt"]}])
        if result.turns_used == 0 or all(message["role"] in ("system", "user") for message in result.messages):
            reward = 0.0
        else:
            context = ToolContext(task_id)
            try:
                reward = self.compute_reward(result)
            except Exception:  # noqa: BLE001 (as the seed does)
                reward = 0.0
            finally:
                context.cleanup()
        text = "\n".join(message["content"] for message in result.messages if message.get("content"))
        tokens = self.tokenizer.encode(text, add_special_tokens=True)
        masks = [-100, *tokens[1:]]
        return {"tokens": tokens, "masks": masks, "scores": reward, "messages": result.messages}, []

    def compute_reward(self, result: AgentResult) -> float:
        return Recording.named(self.job.recording).score(result.messages[0]["content"], result.messages[-1]["content"])

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        pass

    async def group(self, item: dict[str, str]) -> None:
        """One group, as `process_manager` makes it."""
        collected, _ = await self.collect_trajectories(item)
        processed = await self.postprocess_histories(collected)
        await self.handle_send_to_api(processed, item, do_send_to_api=False, abort_on_any_max_length_exceeded=False)


def drive(job: Job) -> None:
    logging.disable(logging.CRITICAL)
    config = BaseEnvConfig(
        group_size=1,
        use_wandb=False,
        include_messages=True,
        ensure_scores_are_not_same=False,
        max_token_length=100_000,
        tokenizer_name=word_tokenizer(Path(job.folder) / "tokenizer"),
        data_path_to_save_groups=str(records(job)),
    )
    # The openai client of each server has 1,000 connections at most.
    clients = math.ceil(job.in_flight / 1000)
    server = APIServerConfig(
        base_url=job.base_url,
        api_key="none",
        model_name="null",
        timeout=max(1, round(job.patience)),
        num_max_requests_at_once=math.ceil(job.in_flight / clients),
        health_check=False,
    )
    asyncio.run(play(PlaybackEnv(config, [server] * clients), job))


async def play(env: PlaybackEnv, job: Job) -> None:
    env.job = job
    await env.setup()

    async def worker() -> None:
        while (item := await env.get_next_item()) is not None:
            await env.group(item)

    await asyncio.gather(*(worker() for _ in range(job.in_flight)))
    env.jsonl_writer.close()


def records(job: Job) -> Path:
    return Path(job.folder) / "groups.jsonl"


def kept(job: Job) -> Kept:
    found = Kept(open_sandboxes=len(SANDBOXES.open))
    with records(job).open() as lines:
        for group in map(json.loads, lines):
            for messages, score in zip(group["messages"], group["scores"], strict=True):
                found.scores[name_in(messages[0]["content"])] = score
    return found


def word_tokenizer(folder: Path) -> str:
    """A tokenizer of words, as BaseEnv loads one whatever the endpoint."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]").save_pretrained(folder)
    return str(folder)
