"""Exit status 0 when each table's summary is the expected one; a mean may differ by how one rounds a half."""

import json
import re
import sys
from pathlib import Path


def close(found: object, expected: float, by: float) -> bool:
    return isinstance(found, int | float) and not isinstance(found, bool) and abs(found - expected) < by


def same(found: object, expected: dict[str, dict[str, float]]) -> bool:
    if not isinstance(found, dict) or found.keys() != expected.keys():
        return False
    return all(
        isinstance(found[name], dict)
        and found[name].keys() == numbers.keys()
        and all(close(found[name][key], numbers[key], 0.0101 if key == "mean" else 1e-9) for key in numbers)
        for name, numbers in expected.items()
    )


said = Path(sys.argv[1]).read_text(errors="replace")
wanted = json.loads(Path(sys.argv[2]).read_text())
parts = re.findall(r"(.*?)\n--- end of ([a-z]+)\.csv\n", said, re.DOTALL)
try:
    summaries = {table: json.loads(text) for text, table in parts}
except (ValueError, RecursionError) as error:
    sys.exit(f"no JSON: {error}")
sys.exit(not (len(parts) == len(wanted) == len(summaries) and all(same(summaries.get(t), wanted[t]) for t in wanted)))
