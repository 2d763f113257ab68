"""A GGUF file in llama.cpp, as a program: llama_cpp_model.py FILE. A line of JSON in, a line out.

{"prompt": ids, "vocabulary": n}: what it gives each of n tokens after the prompt, as {"logprobs"}.
{"text": text}: its ids, as {"tokens"}.
"""

import json
import os
import sys
import urllib.request
from typing import Any

import xllamacpp


def main(file: str) -> None:
    ours = os.fdopen(os.dup(1), "w")
    # What native code says is no answer.
    os.dup2(2, 1)
    params = xllamacpp.CommonParams()
    params.model.path = file
    params.hostnames, params.port, params.ui = ["127.0.0.1"], 0, False
    params.n_parallel, params.n_ctx = 1, 512
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.cache_ram_mib, params.verbosity = 0, 0
    # Attention computes in half precision else.
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    # It ends with its last reference.
    server = xllamacpp.Server(params)
    address = str(server.listening_address)
    for line in sys.stdin:
        asked = json.loads(line)
        said = tokens(address, asked["text"]) if "text" in asked else distribution(address, **asked)
        print(json.dumps(said), file=ours, flush=True)
    os._exit(0)


def tokens(address: str, text: str) -> dict[str, Any]:
    return {"tokens": post(f"{address}/tokenize", {"content": text, "add_special": False})["tokens"]}


def distribution(address: str, prompt: list[int], vocabulary: int) -> dict[str, Any]:
    # The server tells nothing of a token that is half a letter, so a whole one is drawn; what is told is of the model.
    body = {"prompt": prompt, "n_predict": 1, "n_probs": vocabulary, "logit_bias": [["a", 1000.0]], "temperature": 0}
    [row] = post(f"{address}/completion", body)["completion_probabilities"]
    told = {one["id"]: one["logprob"] for one in row["top_logprobs"]}
    return {"logprobs": [told[token] for token in range(vocabulary)]}


def post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as response:
        return json.load(response)


if __name__ == "__main__":
    main(sys.argv[1])
