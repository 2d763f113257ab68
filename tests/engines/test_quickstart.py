"""`hermes-rl quickstart` with the real small model, and its converted tokenizer against llama.cpp's own."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from hermes_rl.cli.local_server import RunServerSettings, run_server, small_model_folder

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(900)]

TEXTS = (
    "In 2024 I had 42 of 1,000.",
    "a  42\n 3\t4   5",
    "x10 é9 日本7",
    "<|im_start|>user\nEcho 7 into out.txt<|im_end|>\n",
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("home")
        patch.setenv("HERMES_HOME", str(home))
        yield home


@pytest.mark.usefixtures("home")
def test_a_newcomer_gets_rollouts_and_an_evaluation(tmp_path: Path) -> None:
    words = ["quickstart", "--groups", "2", "--eval-items", "4", "--json"]
    command = [sys.executable, "-m", "hermes_rl", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=800, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["rollouts"]["scored"] == 8
    # At temperature 0 the small model solves this environment; below that something else answered.
    assert result["evaluation"]["metrics"]["eval/mean_reward"] >= 0.75
    assert len(result["stages"]) == 3


@pytest.mark.usefixtures("home")
def test_the_converted_tokenizer_makes_the_tokens_of_llama_cpp() -> None:
    tokenizer = Tokenizer.from_file(str(small_model_folder() / "tokenizer.json"))
    with run_server(RunServerSettings("smollm2", parallel=1, context=256)) as server:
        url = f"{server.base_url.removesuffix('/v1')}/tokenize"
        for text in TEXTS:
            body = json.dumps({"content": text, "parse_special": True}).encode()
            request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as response:
                assert tokenizer.encode(text).ids == json.load(response)["tokens"], text
