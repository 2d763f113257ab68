#!/usr/bin/env python3
"""Makes or reuses a model as the folder that vLLM and transformers load, in float32, and prints its path.

scripts/hf_model.py           SmolLM2-135M-Instruct from its GGUF: 540 MB, half a minute the first time
scripts/hf_model.py --tiny    a Qwen3 of two layers with random weights, the same ones each time: 1 MB

The path is the only line on stdout. Kept in ~/.cache/hermes-rl-ci, keyed by what is pinned and by how it is made.
"""

import argparse
import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
sys.path.insert(0, str(CHECKOUT))

from scripts.small_model import PACKAGE, SHA256, SmallModelError, fetch_weights, tell  # noqa: E402

PINS = CHECKOUT / "constraints" / "vllm.txt"
ENVIRONMENT = CHECKOUT / "scripts" / "engine_environment"
CONVERTER = Path(__file__).with_name("hf_model_convert.py")
# The environment takes four minutes of an idle machine the first time, and waits for whoever makes it already.
ENVIRONMENT_DEADLINE_S, CONVERSION_DEADLINE_S, LOCK_DEADLINE_S = 2200.0, 900.0, 3600.0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a random model of two layers instead of SmolLM2")
    try:
        print(model_folder("tiny" if parser.parse_args(argv).tiny else "smollm2"))
    except SmallModelError as error:
        tell(f"error: {error}")
        return 1
    return 0


def vllm_python() -> Path:
    """The Python of the vLLM environment, which is made when there is none."""
    made = subprocess.run(
        [ENVIRONMENT, "vllm"], stdout=subprocess.PIPE, text=True, check=False, timeout=ENVIRONMENT_DEADLINE_S
    )
    if made.returncode != 0:
        raise SmallModelError(f"{ENVIRONMENT.name} vllm ended with {made.returncode}; what it said is above")
    return Path(made.stdout.strip()) / "bin" / "python"


def model_folder(name: str) -> Path:
    """The folder of `smollm2` or `tiny`; made on first use, by one process at a time."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hermes-rl-ci"
    home = cache / _key(name)
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(home.with_suffix(".lock")):
        complete = home / "complete"
        if not complete.exists():
            _make(name, home)
        # Also on reuse: .ci/run clears away what nobody used for two weeks.
        complete.touch()
    return home / "model"


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    deadline = time.monotonic() + LOCK_DEADLINE_S
    with path.open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise SmallModelError(
                        f"another process has held {path} for {LOCK_DEADLINE_S:g} s; end it and try again"
                    ) from None
                time.sleep(0.5)
        yield


def _key(name: str) -> str:
    recipe = (PINS.read_bytes(), CONVERTER.read_bytes(), f"{name} {PACKAGE} {SHA256}".encode())
    return hashlib.sha256(b"\0".join(recipe)).hexdigest()[:16]


def _make(name: str, home: Path) -> None:
    python = vllm_python()
    began = time.monotonic()
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    with tempfile.TemporaryDirectory(dir=home) as scratch:
        source = [str(fetch_weights(Path(scratch)))] if name == "smollm2" else []
        tell(f"making {home / 'model'} ...")
        done = subprocess.run(
            [python, CONVERTER, home / "model", *source],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=CONVERSION_DEADLINE_S,
        )
    if done.returncode != 0:
        raise SmallModelError(f"{CONVERTER.name} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    tell(f"made in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
