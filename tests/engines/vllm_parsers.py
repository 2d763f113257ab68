"""vLLM's own tool-call parsers over texts; run inside the environment of `scripts/engine_environment vllm`.

Reads {"tools": [...], "texts": {format: [text, ...]}} on stdin. Writes {format: [[[name, arguments], ...], ...]}, the
arguments as the string that vLLM gives. No engine and no model: a tokenizer of a few words stands for the model's.
"""

import json
import logging
import os
import sys
from importlib import import_module
from typing import Any

os.environ |= {"VLLM_LOGGING_LEVEL": "CRITICAL", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}

# Our name of the format, vLLM's name of the parser, and the tokens by which it knows its tokenizer.
PARSERS = {
    "hermes": ("hermes", ("<tool_call>", "</tool_call>")),
    "qwen": ("qwen3_json", ("<tool_call>", "</tool_call>")),
    "longcat": ("longcat", ("<longcat_tool_call>", "</longcat_tool_call>")),
    "mistral": ("mistral", ("[TOOL_CALLS]",)),
    # [ARGS] in the vocabulary is how vLLM tells the second form.
    "mistral_named": ("mistral", ("[TOOL_CALLS]", "[ARGS]")),
    "llama3_json": ("llama3_json", ("<|python_tag|>",)),
    "llama4_json": ("llama4_json", ("<|python_tag|>",)),
    "qwen3_coder": ("qwen3_coder", ("<tool_call>", "</tool_call>", "<think>", "</think>")),
    "deepseek_v3": (
        "deepseek_v3",
        (
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁end｜>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁sep｜>",
        ),
    ),
    "deepseek_v3_1": (
        "deepseek_v31",
        (
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁end｜>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁sep｜>",
        ),
    ),
    "kimi_k2": (
        "kimi_k2",
        (
            "<|tool_calls_section_begin|>",
            "<|tool_calls_section_end|>",
            "<|tool_call_begin|>",
            "<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
            "<think>",
            "</think>",
        ),
    ),
    "glm45": ("glm45", ("<tool_call>", "</tool_call>", "<think>", "</think>")),
    "glm47": ("glm47", ("<tool_call>", "</tool_call>", "<think>", "</think>")),
}


def tokenizer(tokens: tuple[str, ...]) -> Any:
    tokenizers = import_module("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    words.add_tokens(list(tokens))
    return import_module("transformers").PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")


def extracted(name: str, texts: list[str], tools: list[dict[str, Any]]) -> list[list[list[str]]]:
    protocol = import_module("vllm.entrypoints.openai.chat_completion.protocol")
    registered, tokens = PARSERS[name]
    known = tokenizer(tokens)
    request = protocol.ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "x"}], tools=tools)
    parser = import_module("vllm.tool_parsers").ToolParserManager.get_tool_parser(registered)
    results = []
    for text in texts:
        # A server makes a parser for each request; what one holds must not reach the next.
        found = parser(known, request.tools).extract_tool_calls(text, request)
        results.append([[call.function.name, call.function.arguments] for call in found.tool_calls])
    return results


def main() -> None:
    asked = json.load(sys.stdin)
    logging.disable(logging.CRITICAL)
    # vLLM prints when it is imported; the answer alone goes to stdout.
    answer, sys.stdout = sys.stdout, sys.stderr
    json.dump({name: extracted(name, texts, asked["tools"]) for name, texts in asked["texts"].items()}, answer)


if __name__ == "__main__":
    main()
