"""The extra `datasets`: items of `gsm8k` from a file, read by that package."""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any


def main(_given: dict[str, Any]) -> str:
    rows = [{"question": f"What is {n} + 1?", "answer": f"It is one more.\n#### {n + 1}"} for n in range(20)]
    Path("sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    # Only in an installation.
    gsm8k = import_module("hermes_rl.bundled.gsm8k_env")
    train, held_out = gsm8k.load(gsm8k.Gsm8kConfig(dataset_name="sums.jsonl"))
    assert (len(train), len(held_out)) == (18, 2), (len(train), len(held_out))
    return "18 items to train on and 2 held out, from a file"


if __name__ == "__main__":
    print(main(json.loads(sys.argv[1])))
