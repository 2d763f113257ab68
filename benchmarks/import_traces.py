"""Time and memory of `hermes-rl import` for many traces.

    python benchmarks/import_traces.py                # 10,000 traces of each form
    python benchmarks/import_traces.py --traces 1000

Four traces share a task. Each has a system prompt, the task, `--turns` calls of a tool with results of about 1 kB, and
an answer; one in a hundred has a key in a result. `conversations` are OpenAI chat lines. `calls` are Langfuse
generations, one per model call, each of which repeats the whole conversation so far; they are in random order.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TOOL = {"type": "function", "function": {"name": "terminal", "parameters": {"type": "object"}}}
WORDS = "the count of each line is in this file and none of them has more than one value per row".split()


def conversation(number: int, turns: int) -> list[dict[str, Any]]:
    rng, task = random.Random(number), random.Random(number // 4)
    said: list[dict[str, Any]] = [
        {"role": "system", "content": "You are a careful assistant."},
        {"role": "user", "content": f"Task {number // 4}: {' '.join(task.choices(WORDS, k=30))}"},
    ]
    for turn in range(turns):
        call = {"id": f"call_{turn}", "type": "function",
                "function": {"name": "terminal", "arguments": json.dumps({"command": f"cat {turn}.txt"})}}  # fmt: skip
        key = f" sk-{rng.getrandbits(128):032x}" if turn == 0 and number % 100 == 0 else ""
        said.append({"role": "assistant", "content": "I look.", "tool_calls": [call]})
        said.append(
            {"role": "tool", "tool_call_id": f"call_{turn}", "content": " ".join(rng.choices(WORDS, k=220)) + key}
        )
    return [*said, {"role": "assistant", "content": "Done."}]


def conversations(count: int, turns: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {"messages": conversation(number, turns), "tools": [TOOL], "score": number % 2}


def calls(count: int, turns: int) -> Iterator[dict[str, Any]]:
    made = [(number, turn) for number in range(count) for turn in range(turns + 1)]
    random.Random(0).shuffle(made)
    for number, turn in made:
        said = conversation(number, turns)
        yield {
            "id": f"{number}-{turn}", "traceId": f"trace-{number}", "type": "GENERATION",
            "startTime": f"2026-11-01T10:00:{turn:02}Z", "model": "m", "metadata": {"task": number // 4},
            "input": {"messages": said[: 2 + 2 * turn], "tools": [TOOL]}, "output": said[2 + 2 * turn],
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=3)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for form in (conversations, calls):
            path, out = Path(folder) / f"{form.__name__}.jsonl", Path(folder) / "groups.jsonl"
            with path.open("w", encoding="utf-8") as file:
                file.writelines(f"{json.dumps(row)}\n" for row in form(wanted.traces, wanted.turns))
            command = [sys.executable, "-m", "hermes_rl", "import", str(path), "-o", str(out), "--overwrite", "--json"]
            began = time.monotonic()
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
                assert process.stdout is not None
                told = json.loads(process.stdout.read())
                _, status, used = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
            seconds = time.monotonic() - began
            print(
                f"{form.__name__}: {told['traces']:,} traces in {told['groups']:,} groups from {told['records']:,} "
                f"records ({path.stat().st_size / 1e6:,.0f} MB) in {seconds:.1f} s, CPU "
                f"{used.ru_utime + used.ru_stime:.1f} s, peak memory {used.ru_maxrss / 1024:,.0f} MiB, "
                f"{sum(one['distinct'] for one in told['secrets'].values()):,} secrets redacted"
            )


if __name__ == "__main__":
    main()
