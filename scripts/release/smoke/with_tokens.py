"""The extra `tokens`: a conversation becomes ids, and the ids a reply, by a tokenizer and its chat template."""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from hermes_rl.inference.tokens.chat_format import FormatSettings
from hermes_rl.inference.tokens.factory import chat_format
from hermes_rl.inference.tokens.tokenizer import load_tokenizer

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MARKS = ["<|im_start|>", "<|im_end|>"]


def main(_given: dict[str, Any]) -> str:
    # The other half of the extra.
    import_module("renderers")
    tokenizer = load_tokenizer(str(made(Path("tokenizer"))))
    written = chat_format(tokenizer, FormatSettings(renderer="template"))
    messages: list[Any] = [{"role": "user", "content": "List the files."}]
    prompt = written.prompt(messages, [])
    assert written.decode(prompt) == written.transcript(messages, []), written.decode(prompt)
    sampled = [*written.encode("It is done."), *tokenizer.encode("<|im_end|>")]
    reply = written.reply(sampled, prompt, [])
    assert reply.content == "It is done.", reply
    return f"a conversation as {len(prompt)} ids and a reply read back"


def made(folder: Path) -> Path:
    """A byte-level tokenizer that needs no download."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    transformers: Any = import_module("transformers")

    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, special_tokens=MARKS, show_progress=False)
    plain.train_from_iterator(["user assistant system List the files. It is done."], trainer)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<|im_end|>")  # noqa: S106 - a mark, no secret
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    print(main(json.loads(sys.argv[1])))
