"""Tokenizers and chat templates of seven families, made here: real ones in kind, small, and nothing to download.

Each is a byte-level BPE in transformers' own class, with the special tokens of its family and a template that behaves
as the family's does, in what it rewrites too. A model is made once a process and shared: do not change its tokenizer.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

VOCABULARY = 1200


@dataclass(frozen=True, slots=True)
class ChatModel:
    """`parser` is our parser's name, `renderer` the one of the `renderers` package or None.

    `rewrites`: the template writes some of the past differently once more messages follow. `stop_ids` are all ids a
    model of the family ends a turn with.
    """

    family: str
    tokenizer: Any
    parser: str
    renderer: str | None
    rewrites: bool
    stop_ids: tuple[int, ...]

    def save(self, folder: Path) -> Path:
        """The tokenizer as a folder that transformers loads, with the generation settings that name the stops."""
        self.tokenizer.save_pretrained(folder)
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": list(self.stop_ids)}))
        return folder


@dataclass(frozen=True, slots=True)
class Family:
    parser: str
    renderer: str | None
    rewrites: bool
    template: str
    special: tuple[str, ...]
    eos: str
    stops: tuple[str, ...]
    bos: str | None = None
    words: tuple[str, ...] = ()
    """Added tokens that are not special: decoding keeps them, as in Qwen's tokenizers."""


CHATML = """
{%- for message in messages %}
{%- if loop.first and messages[0]['role'] != 'system' %}
{{- '<|im_start|>system\nYou are a helpful AI assistant named Smol, trained at home<|im_end|>\n' }}
{%- endif %}
{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}"""

QWEN3 = """
{%- if tools %}
{{- '<|im_start|>system\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{% endif %}
{{- '# Tools\n\nThe functions you may call, within <tools></tools>:\n<tools>' }}
{%- for tool in tools %}{{- '\n' + (tool | tojson) }}{% endfor %}
{{- '\n</tools>\n\nCall one as JSON within <tool_call></tool_call>.<|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(searching=true, last_query=messages | length - 1) %}
{%- for message in messages[::-1] %}
{%- if ns.searching and message.role == 'user'
    and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
{%- set ns.searching = false %}
{%- set ns.last_query = messages | length - 1 - loop.index0 %}
{%- endif %}
{%- endfor %}
{%- for message in messages %}
{%- set content = message.content if message.content is string else '' %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}
{%- elif message.role == 'assistant' %}
{%- set thought = '' %}
{%- if message.reasoning_content is string %}
{%- set thought = message.reasoning_content %}
{%- elif '</think>' in content %}
{%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\n') %}
{%- endif %}
{{- '<|im_start|>assistant\n' }}
{%- if loop.index0 > ns.last_query and (loop.last or thought) %}
{{- '<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
{%- else %}{{- content }}{% endif %}
{%- for call in message.tool_calls or [] %}
{%- if not loop.first or content %}{{- '\n' }}{% endif %}
{%- set arguments = call.function.arguments %}
{{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- arguments if arguments is string else arguments | tojson }}
{{- '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{% endif %}
{{- '\n<tool_response>\n' + content + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{% endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{% endif %}
{%- endif %}"""

LLAMA3 = """
{{- bos_token }}
{%- set system = '' %}
{%- if messages[0].role == 'system' %}
{%- set system = messages[0].content | trim %}
{%- set messages = messages[1:] %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\n' }}
{%- if tools %}{{- 'Environment: ipython\n' }}{% endif %}
{{- 'Cutting Knowledge Date: December 2023\nToday Date: ' + (date_string or '26 Jul 2024') + '\n\n' }}
{{- system + '<|eot_id|>' }}
{%- for message in messages %}
{%- if message.role in ('tool', 'ipython') %}
{{- '<|start_header_id|>ipython<|end_header_id|>\n\n' + (message.content | tojson) + '<|eot_id|>' }}
{%- elif message.tool_calls %}
{%- if message.tool_calls | length != 1 %}{{- raise_exception('only one call at once') }}{% endif %}
{%- set function = message.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' + function.name + '", "parameters": ' }}
{{- (function.arguments | tojson) + '}<|eot_id|>' }}
{%- else %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' }}
{%- if tools and loop.first %}
{{- 'Answer with a function call in JSON, {"name": ..., "parameters": ...}, to one of these:\n\n' }}
{%- for tool in tools %}{{- (tool | tojson(indent=4)) + '\n\n' }}{% endfor %}
{%- endif %}
{{- (message.content | trim) + '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""

MISTRAL = """
{%- set system = '' %}
{%- if messages[0].role == 'system' %}
{%- set system = messages[0].content + '\n\n' %}
{%- set messages = messages[1:] %}
{%- endif %}
{%- set users = messages | selectattr('role', 'equalto', 'user') | list %}
{{- bos_token }}
{%- for message in messages %}
{%- if message.role == 'user' %}
{%- if tools and message == users[-1] %}
{{- '[AVAILABLE_TOOLS] ' + (tools | list | tojson) + '[/AVAILABLE_TOOLS]' }}
{%- endif %}
{{- '[INST] ' + (system if loop.last else '') + message.content + '[/INST]' }}
{%- elif message.role == 'assistant' and message.tool_calls %}
{{- '[TOOL_CALLS] [' }}
{%- for call in message.tool_calls %}
{%- if call.id is not defined or call.id | length != 9 %}
{{- raise_exception('tool call ids must have 9 characters') }}
{%- endif %}
{{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' + ('' if loop.last else ', ') }}
{%- endfor %}
{{- ']' + eos_token }}
{%- elif message.role == 'assistant' %}
{{- ' ' + (message.content | trim) + eos_token }}
{%- elif message.role == 'tool' %}
{%- if message.tool_call_id is not defined or message.tool_call_id | length != 9 %}
{{- raise_exception('tool call ids must have 9 characters') }}
{%- endif %}
{{- '[TOOL_RESULTS] {"content": ' + (message.content | tojson) + ', "call_id": "' + message.tool_call_id }}
{{- '"}[/TOOL_RESULTS]' }}
{%- else %}{{- raise_exception('only user, assistant and tool roles are known') }}
{%- endif %}
{%- endfor %}"""

# No tools section, as DeepSeek's own.
DEEPSEEK = """
{%- set ns = namespace(system='', after_tool=false) %}
{%- for message in messages %}
{%- if message.role == 'system' %}
{%- set ns.system = ns.system + ('\n\n' if ns.system else '') + message.content %}
{%- endif %}
{%- endfor %}
{{- bos_token + ns.system }}
{%- for message in messages %}
{%- if message.role == 'user' %}
{{- ('<｜tool▁outputs▁end｜>' if ns.after_tool else '') + '<｜User｜>' + message.content }}
{%- set ns.after_tool = false %}
{%- elif message.role == 'assistant' %}
{{- '<｜tool▁outputs▁end｜>' if ns.after_tool else '<｜Assistant｜>' }}
{%- set ns.after_tool = false %}
{{- (message.content or '').split('</think>')[-1] }}
{%- for call in message.tool_calls or [] %}
{{- '<｜tool▁calls▁begin｜>' if loop.first else '\n' }}
{{- '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + call.function.name + '\n```json\n' }}
{{- call.function.arguments + '\n```<｜tool▁call▁end｜>' + ('<｜tool▁calls▁end｜>' if loop.last else '') }}
{%- endfor %}
{{- '<｜end▁of▁sentence｜>' }}
{%- elif message.role == 'tool' %}
{{- '\n' if ns.after_tool else '<｜tool▁outputs▁begin｜>' }}
{{- '<｜tool▁output▁begin｜>' + message.content + '<｜tool▁output▁end｜>' }}
{%- set ns.after_tool = true %}
{%- endif %}
{%- endfor %}
{%- if ns.after_tool %}{{- '<｜tool▁outputs▁end｜>' }}{% endif %}
{%- if add_generation_prompt and not ns.after_tool %}{{- '<｜Assistant｜>' }}{% endif %}"""

DEEPSEEK_R1 = DEEPSEEK + "{%- if add_generation_prompt %}{{- '<think>\\n' }}{% endif %}"

GLM = """
{{- '[gMASK]<sop>' }}
{%- if tools %}
{{- '<|system|>\n# Tools\n\nThe functions you may call, within <tools></tools>:\n<tools>\n' }}
{%- for tool in tools %}{{- (tool | tojson) + '\n' }}{% endfor %}
{{- '</tools>\n\nCall one as <tool_call>name, a line each of <arg_key>key</arg_key> and ' }}
{{- '<arg_value>value</arg_value>, and </tool_call>' }}
{%- endif %}
{%- set ns = namespace(last_user=-1) %}
{%- for message in messages %}
{%- if message.role == 'user' %}{%- set ns.last_user = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
{%- set content = message.content if message.content is string else '' %}
{%- if message.role == 'user' %}
{{- '<|user|>\n' + content }}
{{- '/nothink' if enable_thinking is defined and not enable_thinking else '' }}
{%- elif message.role == 'system' %}
{{- '<|system|>\n' + content }}
{%- elif message.role == 'assistant' %}
{%- set thought = '' %}
{%- if message.reasoning_content is string %}
{%- set thought = message.reasoning_content %}
{%- elif '</think>' in content %}
{%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\n') %}
{%- endif %}
{{- '<|assistant|>\n<think>' + (thought.strip() if loop.index0 > ns.last_user else '') + '</think>' }}
{%- if content.strip() %}{{- '\n' + content.strip() }}{% endif %}
{%- for call in message.tool_calls or [] %}
{{- '\n<tool_call>' + call.function.name + '\n' }}
{%- for key, value in call.function.arguments.items() %}
{{- '<arg_key>' + key + '</arg_key>\n<arg_value>' }}
{{- value if value is string else value | tojson }}
{{- '</arg_value>\n' }}
{%- endfor %}
{{- '</tool_call>' }}
{%- endfor %}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|observation|>' }}{% endif %}
{{- '\n<tool_response>\n' + content + '\n</tool_response>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|assistant|>' }}
{{- '\n<think></think>' if enable_thinking is defined and not enable_thinking else '' }}
{%- endif %}"""

_DEEPSEEK_SPECIAL = (
    *("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
    *(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
    ),
    *("<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
)
_TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")


def _deepseek(renderer: str, template: str) -> Family:
    return Family(
        parser="deepseek_v3",
        renderer=renderer,
        rewrites=True,
        template=template,
        special=_DEEPSEEK_SPECIAL,
        words=("<think>", "</think>"),
        bos="<｜begin▁of▁sentence｜>",
        eos="<｜end▁of▁sentence｜>",
        stops=("<｜end▁of▁sentence｜>",),
    )


_FAMILIES = {
    "chatml": Family(
        parser="hermes",
        renderer=None,
        rewrites=False,
        template=CHATML,
        special=("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        eos="<|im_end|>",
        stops=("<|im_end|>",),
    ),
    "qwen3": Family(
        parser="qwen",
        renderer="qwen3",
        rewrites=True,
        template=QWEN3,
        special=("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        words=_TAGS,
        eos="<|im_end|>",
        stops=("<|im_end|>", "<|endoftext|>"),
    ),
    "llama3": Family(
        parser="llama3_json",
        renderer="llama-3",
        rewrites=False,
        template=LLAMA3,
        special=(
            *("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
            *("<|eom_id|>", "<|eot_id|>", "<|python_tag|>"),
        ),
        bos="<|begin_of_text|>",
        eos="<|eot_id|>",
        stops=("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
    ),
    "mistral": Family(
        parser="mistral",
        renderer=None,
        rewrites=True,
        template=MISTRAL,
        special=(
            *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]"),
            *("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        ),
        bos="<s>",
        eos="</s>",
        stops=("</s>",),
    ),
    "deepseek": _deepseek("deepseek-v3", DEEPSEEK),
    "deepseek_r1": _deepseek("deepseek-r1", DEEPSEEK_R1),
    "glm": Family(
        parser="glm45",
        renderer="glm-4.5",
        rewrites=True,
        template=GLM,
        special=("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
        words=(*_TAGS, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        eos="<|endoftext|>",
        stops=("<|user|>", "<|observation|>", "<|endoftext|>"),
    ),
}
FAMILIES: tuple[str, ...] = tuple(_FAMILIES)


@cache
def chat_model(family: str) -> ChatModel:
    made = _FAMILIES[family]
    trained = Tokenizer.from_str(_trained())
    trained.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in made.special])
    trained.add_tokens([AddedToken(text, normalized=False, special=False) for text in made.words])
    names = {"eos_token": made.eos} | ({"bos_token": made.bos} if made.bos else {})
    tokenizer: Any = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=trained, chat_template=made.template.strip(), clean_up_tokenization_spaces=False, **names
    )
    stops = tuple(tokenizer.convert_tokens_to_ids(text) for text in made.stops)
    return ChatModel(family, tokenizer, made.parser, made.renderer, made.rewrites, stops)


@cache
def _trained() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS.splitlines(keepends=True), trainer)
    return tokenizer.to_str()


CORPUS = r"""
You are a helpful assistant. Answer the question of the user in plain words, and say so when you do not know.
The user asks for a file to be read, changed and written again; the assistant calls a tool and waits for its result.
Please make a directory named hello and put a file in it. Then list what is there, and tell me how large each one is.
I think the answer is forty-two, but let me check it first. The weather in Paris is sunny with a high of 21 degrees.
When the tool returned an error, the model tried again with another path and found what it was looking for.
Numbers: 0 1 2 3 4 5 6 7 8 9 10 12 16 24 32 64 100 128 256 512 1000 1024 2048 3.14 2.718 1e-5 -1 +5 20% $30.
It is not the same thing: this one was there before, that one came after, and these have been here all the time.
Okay, so the user wants me to find the sum of the list. First I should read the numbers, then add them together.
What would happen if the connection were lost in the middle? We would start again from the last thing we had saved.
{"name": "terminal", "arguments": {"command": "ls -la /workspace"}}
{"name": "read_file", "arguments": {"path": "notes.txt", "limit": 20, "offset": 0}}
{"name": "web_search", "parameters": {"query": "the height of the tower in metres", "count": 5}}
{"type": "function", "function": {"name": "write_file", "description": "Write a file", "parameters": {"type": "object",
"properties": {"path": {"type": "string"}, "content": {"type": "string"}}, "required": ["path", "content"]}}}
{"output": "hello world\n", "exit_code": 0, "error": null, "done": true, "more": false, "items": [1, 2, 3]}
def add(first, second):
    return first + second

for line in open("notes.txt"):
    if line.startswith("#"):
        print(line.strip())
class Point:
    def __init__(self, x: int, y: int) -> None:
        self.x = x
        self.y = y
import os, sys, json; print(json.dumps({"a": [1, 2, {"b": None}]}, indent=2))
$ mkdir -p hello && cd hello && echo "one two three" > out.txt && cat out.txt | grep two | wc -l
<html><body><p>Some text with a <b>bold</b> word.</p></body></html>
# Tools: the functions you may call, each with its name, its description and its parameters as a JSON schema.
Grüße aus Köln, où est la bibliothèque, ¿dónde está?, Привет мир, 你好世界, こんにちは, 안녕하세요, नमस्ते
Emoji: 😀 🎉 👩‍💻 ✅ ❌ — “quotes” … and dashes – here too; maths: ∑ x² ≤ ∞ → 5 × 3 ÷ 2 ≠ 8.
"""
