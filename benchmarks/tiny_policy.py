"""A random model of 0.2 million parameters that learns a text game on a CPU: imitation first, then GRPO.

What self_play.py and word_game.py share. Always true: finished parts are files and are not repeated, training resumes
from its last checkpoint, and every evaluation samples at temperature 1. It needs torch and TRL: run it with the Python
of `scripts/interop_environment trainers`.
"""

import asyncio
import json
import os
import sys
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

os.environ |= {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import torch  # noqa: E402
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402
from trl import GRPOConfig  # noqa: E402

from hermes_rl.core.trajectory import Rollout  # noqa: E402
from hermes_rl.environment.base import HermesAgentBaseEnv  # noqa: E402
from hermes_rl.interop.trainers.environment_host import host_environment  # noqa: E402
from hermes_rl.interop.trainers.model_policy import ModelPolicy  # noqa: E402
from hermes_rl.interop.trainers.trl import HermesGRPOTrainer  # noqa: E402
from hermes_rl.rollout.group import run_group  # noqa: E402

# Its classes have no types.
transformers: Any = import_module("transformers")
PADDING, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""
CONTEXT, SFT_ROWS, GROUP = 1024, 32, 8

Talk = list[dict[str, str]]
Metrics = dict[str, float]


@dataclass(frozen=True)
class Task:
    """What the model learns: where it trains, what it imitates first, and how it is measured."""

    training: type[HermesAgentBaseEnv[Any, Any]]
    evaluation: type[HermesAgentBaseEnv[Any, Any]]
    talks: Callable[[Random], Sequence[Talk]]
    """Some random conversations to imitate."""
    texts: Sequence[str]
    """What the tokenizer has words for."""
    measure: Callable[[Sequence[Rollout]], Metrics]


def new_model(folder: Path, texts: Iterable[str], seed: int) -> None:
    """A Qwen3 of two layers with random weights, and a tokenizer with a token for each digit."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        [*texts, "user\n", "assistant\n"] * 2,
        trainers.BpeTrainer(
            vocab_size=320,
            special_tokens=[PADDING, START, END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=END, pad_token=PADDING, chat_template=CHAT_TEMPLATE
    )
    torch.manual_seed(seed)
    config = transformers.Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=3,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = transformers.Qwen3ForCausalLM(config)
    model.generation_config = transformers.GenerationConfig(eos_token_id=tokenizer.eos_token_id)
    save(model, tokenizer, folder)


def save(model: Any, tokenizer: Any, folder: Path) -> None:
    # The configuration, which says that all is there, is written by a rename.
    part = folder.with_name(f"{folder.name}.part")
    model.save_pretrained(part)
    tokenizer.save_pretrained(part)
    part.rename(folder)


def row(tokenizer: Any, talk: Talk) -> tuple[list[int], list[int]]:
    """Tokens and labels; only the answers and their ends are learned."""
    ids, labels = [], []
    for message in talk:
        head = tokenizer.encode(f"{START}{message['role']}\n", add_special_tokens=False)
        text = tokenizer.encode(f"{message['content']}{END}", add_special_tokens=False)
        learned = text if message["role"] == "assistant" else [-100] * len(text)
        end = tokenizer.encode("\n", add_special_tokens=False)
        ids += [*head, *text, *end]
        labels += [*([-100] * len(head)), *learned, *([-100] * len(end))]
    return ids, labels


def imitate(source: Path, target: Path, talks: Callable[[Random], Sequence[Talk]], steps: int, seed: int) -> None:
    """Fine-tune on random conversations."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    random = Random(seed)
    model.train()
    for step in range(steps):
        rows: list[tuple[list[int], list[int]]] = []
        while len(rows) < SFT_ROWS:
            rows += [row(tokenizer, talk) for talk in talks(random)]
        width = max(len(ids) for ids, _ in rows)
        ids = torch.tensor([ids + [tokenizer.pad_token_id] * (width - len(ids)) for ids, _ in rows])
        labels = torch.tensor([labels + [-100] * (width - len(labels)) for _, labels in rows])
        mask = torch.tensor([[1] * len(ids) + [0] * (width - len(ids)) for ids, _ in rows])
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 49:
            print(f"imitation, step {step + 1}: loss {loss.item():.3f}", file=sys.stderr, flush=True)
    save(model, tokenizer, target)


def reinforce(task: Task, source: Path, folder: Path, chosen: Namespace) -> None:
    """GRPO on the training environment; a checkpoint every `--measure-every` steps, and the log of its steps."""
    args = GRPOConfig(
        str(folder),
        use_cpu=True,
        bf16=False,
        report_to=[],
        seed=chosen.seed,
        max_steps=chosen.steps,
        num_generations=GROUP,
        per_device_train_batch_size=chosen.items * GROUP,
        gradient_accumulation_steps=1,
        learning_rate=chosen.learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=10,
        save_steps=chosen.measure_every,
        logging_steps=1,
        disable_tqdm=True,
    )
    trainer = HermesGRPOTrainer(
        str(source),
        environment=task.training,
        args=args,
        settings={"seed": chosen.seed, "terminal_backend": "local", "worker_timeout": 3600},
        selection={"advantage": "mean"},
    )
    trainer.train(resume_from_checkpoint=any(folder.glob("checkpoint-*")))
    lines = [line for line in trainer.state.log_history if "reward" in line]
    (folder / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def evaluate(task: Task, folder: Path, games: int, seed: int) -> Metrics:
    """`games` rollouts of each held-out item."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    policy = ModelPolicy(lambda: model, context_tokens=CONTEXT)

    async def play() -> list[Rollout]:
        settings = {"terminal_backend": "local", "worker_timeout": 3600, "seed": seed}
        async with host_environment(
            task.evaluation, policy, str(folder), settings=settings, context_tokens=CONTEXT
        ) as env:
            running = asyncio.Semaphore(max(1, 128 // games))

            async def group(item: Any) -> Sequence[Rollout]:
                async with running:
                    return (await run_group(env, item, size=games, split="eval", temperature=1.0)).rollouts

            groups = await asyncio.gather(*map(group, env.eval_items()))
        return [rollout for rollouts in groups for rollout in rollouts]

    rollouts = asyncio.run(play())
    scored = [rollout for rollout in rollouts if rollout.score is not None]
    return {"games": len(scored), "unscored": len(rollouts) - len(scored), **task.measure(scored)}


def kept(path: Path, make: Callable[[], Any]) -> Any:
    """The JSON in the file, made on first use."""
    if not path.exists():
        path.write_text(json.dumps(make()))
    return json.loads(path.read_text())


def run(task: Task, description: str | None, *, imitation_steps: int, steps: int, games: int) -> None:
    """The command: make, imitate and reinforce a model, and print what each checkpoint does as a line of JSON."""
    parser = ArgumentParser(description=description, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--imitation-steps", type=int, default=imitation_steps, help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=steps, help="steps of GRPO (default: %(default)s)")
    parser.add_argument("--items", type=int, default=8, help=f"groups of {GROUP} a step (default: %(default)s)")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="of GRPO (default: %(default)s)")
    parser.add_argument("--measure-every", type=int, default=50, help="steps (default: %(default)s)")
    parser.add_argument("--games", type=int, default=games, help="for each held-out item (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of weights, games and rollouts (default: %(default)s)")
    chosen = parser.parse_args()
    out: Path = chosen.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    new, imitated, checkpoints = out / "new", out / "imitated", out / "checkpoints"
    if not new.exists():
        new_model(new, task.texts, chosen.seed)
    if not imitated.exists():
        imitate(new, imitated, task.talks, chosen.imitation_steps, chosen.seed)

    def measured(step: int, folder: Path) -> None:
        figures = kept(out / f"step-{step}.json", lambda: evaluate(task, folder, chosen.games, chosen.seed))
        print(json.dumps({"step": step, **figures}), flush=True)

    measured(0, imitated)
    last = checkpoints / f"checkpoint-{chosen.steps}"
    if not last.exists():
        began = time.monotonic()
        reinforce(task, imitated, checkpoints, chosen)
        print(f"GRPO: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    # The result first, then the curve.
    for step in (chosen.steps, *range(chosen.measure_every, chosen.steps, chosen.measure_every)):
        measured(step, checkpoints / f"checkpoint-{step}")
