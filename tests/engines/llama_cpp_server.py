"""A GGUF file in a llama.cpp server that reads tool calls itself, as a program: llama_cpp_server.py FILE SLOTS.

Its first line on stdout is where it listens. It ends with its standard input.
"""

import os
import sys
from pathlib import Path

import xllamacpp

CHECKOUT = Path(__file__).parents[2]
sys.path.insert(0, str(CHECKOUT))

from scripts.small_model import parameters, parse  # noqa: E402


def main(file: str, slots: str) -> None:
    ours = os.fdopen(os.dup(1), "w")
    # What native code says is no answer.
    os.dup2(2, 1)
    params = parameters(xllamacpp, parse(["--port", "0", "--parallel", slots]), Path(file))
    params.force_pure_content_parser = False
    # Attention computes in half precision else.
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    # It ends with its last reference.
    server = xllamacpp.Server(params)
    print(server.listening_address, file=ours, flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
