"""The program that serves a GGUF file with llama.cpp: `python -m hermes_rl.training.local_model.llama_cpp FILE`.

What is sampled is the model's own distribution: the defaults are temperature 1 with every filter off (llama.cpp's own
are 0.8, top_k 40, top_p 0.95, min_p 0.05), and a request may set them. What is answered is the model's own text:
`tools` in a request change neither the prompt nor the answer, and `tool_calls` is never filled.
"""

import argparse
import os
import threading
from pathlib import Path
from typing import Any


def main() -> None:
    """Serve until killed. Prints `ready: URL` once; everything else goes to standard error."""
    options = _options()
    import xllamacpp

    with os.fdopen(os.dup(1), "w") as ours:
        # llama.cpp writes its log to both streams.
        os.dup2(2, 1)
        server = xllamacpp.Server(_parameters(xllamacpp, options))
        print(f"ready: {server.listening_address}", file=ours, flush=True)
        threading.Event().wait()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="llama_cpp", description=__doc__)
    parser.add_argument("file", type=Path)
    for name in ("name", "host", "chat_template"):
        parser.add_argument(f"--{name}", required=name != "chat_template")
    for name in ("port", "parallel", "threads", "context"):
        parser.add_argument(f"--{name}", type=int, required=True)
    return parser.parse_args()


def _parameters(xllamacpp: Any, options: argparse.Namespace) -> Any:
    params = xllamacpp.CommonParams()
    params.model.path = str(options.file)
    params.model_alias = {options.name}
    params.hostnames = [options.host]
    params.port = options.port
    params.ui = False
    params.verbosity = 2
    params.n_parallel = options.parallel
    params.n_ctx = options.context * options.parallel
    params.cpuparams.n_threads = options.threads
    params.cpuparams_batch.n_threads = options.threads
    params.cache_ram_mib = 0  # else finished prompts are kept in up to 8 GB of memory
    # With jinja off every request that carries `tools` is answered with a 500.
    params.use_jinja = True
    if options.chat_template:
        params.chat_template = options.chat_template
    # Else `tools` in a request turn on a grammar that lets no malformed call be sampled: not the model's own behaviour.
    params.force_pure_content_parser = True
    params.reasoning_format = xllamacpp.common_reasoning_format.COMMON_REASONING_FORMAT_NONE
    params.sampling.temp = 1.0
    params.sampling.top_k = 0
    params.sampling.top_p = 1.0
    params.sampling.min_p = 0.0
    return params


if __name__ == "__main__":
    main()
