"""An exported environment in verifiers' own hands: WHAT ENDPOINT PACKAGE [OUTPUT].

eval: `vf-eval`, which writes OUTPUT/**/traces.jsonl. serve: an env server and a client of it, as prime-rl's
orchestrator uses them: the client loads the taskset, and sends the data of each task. Prints the rewards as JSON last.
"""

import asyncio
import json
import sys
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.cli.eval.main import main
from verifiers.v1.configs.cli.eval import EvalConfig
from verifiers.v1.configs.client import EvalClientConfig
from verifiers.v1.serve import EnvClient, EnvServer


async def serve(endpoint: str, package: str) -> list[Any]:
    chosen = {"taskset": {"id": package}, "agent": {"runtime": {"type": "subprocess"}}}
    env = EvalConfig.model_validate({"env": chosen, "model": "scripted"}).env
    server = EnvServer(env, "tcp://127.0.0.1:0")
    running = asyncio.create_task(server.run())
    client = EnvClient(address=server.address)
    try:
        await client.wait_for_server_startup(timeout=300)
        # Off the loop, as prime-rl does it.
        tasks = await asyncio.to_thread(lambda: list(vf.load_taskset(env.taskset)))
        model = EvalClientConfig(base_url=endpoint, api_key_var="OPENAI_API_KEY")
        episodes = [
            await client.run(
                client=model,
                model="scripted",
                sampling=vf.SamplingConfig(),
                task_data=task.data.model_dump(mode="json"),
            )
            for task in tasks
        ]
    finally:
        await client.close()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return [episode.traces[0].reward if episode.ok else str(episode.traces[0].errors) for episode in episodes]


if __name__ == "__main__":
    what, endpoint, package, *output = sys.argv[1:]
    if what == "serve":
        print(json.dumps(asyncio.run(serve(endpoint, package))))
    else:
        client = ["--client.base-url", endpoint, "--client.api-key-var", "OPENAI_API_KEY"]
        runtime = ["--env.agent.runtime.type", "subprocess"]
        sys.argv = ["vf-eval", package, "-m", "scripted", "--no-push", "-o", *output, *client, *runtime]
        main()
