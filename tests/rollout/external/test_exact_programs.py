"""Every token that a program's contexts sampled is in the record: its own, its subagent's, those after a compaction."""

from pathlib import Path
from typing import Any

from tests.environment.test_exact_rollouts import exact, ids
from tests.rollout.external.programs import python
from tests.support.token_servers import Asked, Tokens, VLLMServer


def answers(asked: Asked) -> Tokens:
    return Tokens(ids(f"answer {len(asked.prompt)}"))


def sampled(tokens: tuple[int, ...], mask: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(token for token, kept in zip(tokens, mask, strict=True) if kept)


async def test_a_program_and_its_subagent_have_a_sequence_each(tmp_path: Path) -> None:
    program = """
def talk(messages):
    body = json.dumps({"model": "any", "messages": messages}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    with urllib.request.urlopen(request) as answer: messages.append(json.load(answer)["choices"][0]["message"])
main = [{"role": "user", "content": "begin"}]
talk(main)
talk([{"role": "user", "content": "you are a subagent"}])
main.append({"role": "user", "content": "go on"})
talk(main)
"""
    settings: dict[str, Any] = {"agent_command": python(program), "group_size": 1, "rollout_retries": 0}
    async with VLLMServer(answers) as server, exact(server, tmp_path, **settings) as env:
        (rollout,) = (await env.collect_group({"number": 7})).rollouts
        asked = [len(body["token_ids"]) for body in server.bodies]
    assert rollout.scored, rollout.failure
    main, subagent = rollout.sequences
    assert sampled(main.tokens, main.mask) == (*ids(f"answer {asked[0]}"), *ids(f"answer {asked[2]}"))
    assert sampled(subagent.tokens, subagent.mask) == ids(f"answer {asked[1]}")
    assert [message["role"] for message in rollout.messages] == ["user", "assistant"] * 2
