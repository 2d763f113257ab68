"""Files of a training run, as the trainer writes them."""

import json
from pathlib import Path
from typing import Any


def run_folder(folder: Path, lineage: list[Any], metrics: list[Any] | None = None, **told: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(told))
    for name, lines in (("lineage.jsonl", lineage), ("metrics.jsonl", metrics or [])):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def saved(step: int, **more: Any) -> dict[str, Any]:
    return {"step": step, "version": step + 1, "sampler": f"tinker://m/sampler_weights/{step}", "batches": [], **more}
