"""Example records for pictures of the viewer: a word-guessing game as a policy learns it, in a HERMES_HOME of its own.

    HERMES_HOME=/tmp/example/home python -m scripts.viewer_examples /tmp/example

It makes two runs with metrics, groups, a lineage and logs, two evaluations at different temperatures, and a file of
groups. Everything is drawn from a seed; no model was trained.
"""

import argparse
import asyncio
import json
import math
import random
import time
from pathlib import Path
from typing import Any

from hermes_rl.core.errors import Failure, FailureSource
from hermes_rl.core.trajectory import (
    Group,
    Provenance,
    Rollout,
    Sampling,
    Sequence,
    Span,
    StopReason,
    Timing,
    ToolUse,
    TurnState,
    Usage,
)
from hermes_rl.evaluation.metrics import EvaluationCounts
from hermes_rl.orchestration.run_paths import RunPaths
from hermes_rl.orchestration.run_state import Phase
from hermes_rl.store.codec import encode
from hermes_rl.store.database.registrations import TrainerRow
from hermes_rl.store.database.store import open_store
from hermes_rl.store.records import RecordWriter, group_to_record, write_document
from hermes_rl.training.checkpoints import Checkpoint, Lineage
from tests.support.recorded_runs import make_run, run_file, write_log

WORDS = "apple bread chair dance eagle flame grape house juice knife lemon mouse night ocean piano queen".split()
TURNS, GROUP_SIZE, STEPS = 5, 8, 60
PROMPT = "Guess the hidden five-letter word. Call guess with one word; the answer marks each letter: + right, . wrong."
SETTINGS = {"system_prompt": PROMPT, "max_agent_turns": TURNS, "max_token_length": 256, "seed": 0}


def skill(step: float) -> float:
    return 0.15 + 0.75 / (1 + math.exp(-(step - STEPS / 2) / 7))


def make_rollout(rng: random.Random, index: int, word: str, level: float) -> Rollout:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": PROMPT},
        {"role": "user", "content": f"The word has {len(word)} letters and begins with {word[0]}. Guess it."},
    ]
    states, uses, timings, steps = [TurnState(0, {"word": word, "left": TURNS, "known": "....."})], [], [], []
    known, clock = ".....", 0.2
    for turn in range(1, TURNS + 1):
        guess = word if rng.random() < level / 2 else rng.choice(WORDS)
        name = " guess" if rng.random() < 0.04 else "guess"
        marks = "".join("+" if a == b else "." for a, b in zip(guess, word, strict=True))
        known = "".join(b if mark == "+" else a for a, b, mark in zip(known, word, marks, strict=True))
        call, arguments = f"call-{turn}", json.dumps({"word": guess})
        error = f"unknown tool {name!r}; available: guess" if name != "guess" else None
        messages += [
            {
                "role": "assistant",
                "content": "",
                "reasoning_content": f"Known so far: {known}. I try {guess}.",
                "tool_calls": [{"id": call, "type": "function", "function": {"name": name, "arguments": arguments}}],
            },
            {"role": "tool", "tool_call_id": call, "content": error or marks},
        ]
        uses.append(ToolUse(turn, call, name, arguments, error or marks, error))
        timings += [Timing(Span.MODEL, "model", clock, 0.9), Timing(Span.TOOL, name, clock + 0.95, 0.02)]
        clock += 0.9 + rng.random() / 2
        if error is None:
            states.append(TurnState(turn, {"word": word, "left": TURNS - turn, "known": known}))
            steps.append({"turn": turn, "value": round(0.1 * marks.count("+"), 2), "note": f"letters right: {marks}"})
        if guess == word and error is None:
            break
    won = known == word
    failed = rng.random() < 0.02
    ended = rng.random() < 0.9
    stop = StopReason.ENDED if won else StopReason.MAX_TURNS if ended else StopReason.UNPARSED_TOOL_CALL
    score = 1.0 if won else round(0.1 * sum(letter != "." for letter in known), 2)
    length = 20 * len(uses)
    mask = tuple(int(place % 20 > 6) for place in range(length))
    return Rollout(
        item_id=word,
        index=index,
        seed=rng.randrange(10**6),
        messages=messages,
        score=None if failed else score,
        stop_reason=None if failed else stop,
        failure=Failure(FailureSource.ENDPOINT, "overloaded", "the model server answered 503") if failed else None,
        components={"solved": float(won), "letters": sum(letter != "." for letter in known) / 5},
        turns_used=len(uses),
        tool_uses=tuple(uses),
        usage=Usage(180 * len(uses), 21 * len(uses)),
        timings=tuple(timings),
        seconds=round(clock, 2),
        sequences=(
            Sequence(
                tuple(rng.randrange(40_000) for _ in range(length)),
                mask,
                tuple(-rng.expovariate(4) if sampled else None for sampled in mask),
                tuple(3 if sampled else None for sampled in mask),
                Sampling(1.0),
            ),
        ),
        metadata={"prompt_length": 2, "step_rewards": steps, **({"end_reason": "solved"} if won else {})},
        states=tuple(states),
        notes={"checker": f"the word was {word}; known letters at the end: {known}"},
    )


def make_group(number: int, level: float, *, size: int = GROUP_SIZE, split: str = "train") -> Group:
    rng = random.Random(f"{split} {number} {level:.4f}")
    word = WORDS[number % len(WORDS)]
    return Group(
        item_id=word,
        item={"word": word, "question": f"Guess the word that begins with {word[0]} (game {number})"},
        rollouts=tuple(make_rollout(rng, index, word, level) for index in range(size)),
        provenance=Provenance("word_guess", "4c1d0f2a9be37756", "example-model", {"hermes-rl": "0.3"}),
        tools=("guess",),
        id=f"{split}-{number}-{level:.3f}",
        draw=number,
        split=split,
        created_at=f"2026-11-19T0{number // 60 % 10}:{number % 60:02}:00+00:00",
    )


async def write_groups(places: RunPaths, lineage: Lineage, gain: float) -> None:
    async with open_store(places.database) as store:
        await store.register_trainer(TrainerRow("trainer", 2 * GROUP_SIZE, None))
        environment = (await store.register_environment("word_guess")).id
        lineage.add(Checkpoint(0, 0, (), "state-0", "sampler-0"))
        number = 0
        for step in range(1, STEPS + 1):
            # A failed rollout makes a batch need another group.
            while (batch := await store.lease("trainer", seconds=600)) is None:
                number += 1
                await store.add(environment, encode(make_group(number, skill(step * gain))))
            lineage.add(Checkpoint(step, step, (batch.id,), f"state-{step}", f"sampler-{step}"))
            await store.ack(batch.id)
        await store.add(environment, encode(make_group(1_000, skill(STEPS))))


def write_run(name: str, gain: float) -> None:
    places = make_run(name, phase=Phase.FINISHED, file=run_file(name, ("word_guess",), tinker={"total_steps": STEPS}))
    rng = random.Random(name)
    now = time.time()
    for step in range(1, STEPS + 1):
        mean = min(1.0, max(0.0, skill(step * gain) + rng.gauss(0, 0.06)))
        spread = math.sqrt(mean * (1 - mean)) * 0.9
        write_steps_line(places, step, now, mean, spread, rng)
    asyncio.run(write_groups(places, Lineage(places.folder / "lineage.jsonl"), gain))
    lines = [f"2026-11-19 03:{step - 1:02}:12 INFO step {step}: 16 rollouts\n" for step in range(1, STEPS + 1)]
    write_log(places, "trainer", "".join(lines))
    write_log(places, "env", "2026-11-19 03:00:01 INFO serving word_guess\n")


def write_steps_line(places: RunPaths, step: int, now: float, mean: float, spread: float, rng: random.Random) -> None:
    metrics = {
        "time": now - 20 * (STEPS - step), "step": step, "reward/mean": mean, "reward/std": spread,
        "reward/min": 0.0, "reward/max": 1.0, "rollouts/scored": 16, "groups/total": 2,
        "groups/zero_signal": int(rng.random() < mean / 2), "entropy": 1.4 - mean, "time/step": 19 + rng.random(),
        "staleness/mean": rng.random() * 1.5, "tokens/per_second": 800 + 80 * rng.random(),
        "kl/sample_train_k3": 4e-4 * rng.random(),
    }  # fmt: skip
    path = places.folder / "metrics.jsonl"
    with path.open("a") as file:
        file.write(json.dumps(metrics) + "\n")


def write_evaluation(folder: Path, temperature: float, level: float) -> None:
    folder.mkdir(parents=True)
    groups = [make_group(number, level, size=4, split="eval") for number in range(len(WORDS))]
    counts = EvaluationCounts([group.item_id for group in groups], 4, temperature, 1.0)
    with RecordWriter(folder / "groups.jsonl") as writer:
        for group in groups:
            writer.write(group_to_record(group))
            counts.add(group)
    settings = {**SETTINGS, "thinking_mode": temperature > 0.5}
    report = {
        "format": "hermes-rl/evaluation/1", "task": "word_guess", "model": "example-model",
        "metrics": counts.metrics(41.5), "samples": 4 * len(groups), "seconds": 41.5,
        "finished_at": "2026-11-19T03:30:00+00:00",
        "generation_parameters": {"temperature": temperature, "max_tokens": 256},
        "provenance": {"environment": "word_guess", "environment_hash": "h", "dataset_hash": "d", "config_hash": "c",
                       "model": "example-model"},
        "policy": None, "settings": settings, **counts.details(),
    }  # fmt: skip
    write_document(folder / "metrics.json", report)


def main(folder: Path) -> None:
    write_run("word-guess-1", 1.0)
    write_run("word-guess-2", 0.7)
    write_evaluation(folder / "cool", 0.2, 0.75)
    write_evaluation(folder / "warm", 1.0, 0.45)
    with RecordWriter(folder / "word_guess.jsonl") as writer:
        for number in range(40):
            writer.write(group_to_record(make_group(number, 0.5)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the evaluations and the file of groups are written")
    main(parser.parse_args().folder)
