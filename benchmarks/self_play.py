"""A random model of 0.2 million parameters learns tic-tac-toe on a CPU: random legal games first, then self-play.

Measures illegal moves and the win rate against a player of random legal moves, on held-out openings, before and after
self-play. Stop and start it as you like: finished parts are not repeated, and self-play resumes from its last
checkpoint. It needs torch and TRL: run it with the Python of `scripts/interop_environment trainers`.

    $(scripts/interop_environment trainers)/bin/python benchmarks/self_play.py --out self_play
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Callable
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

from examples.tic_tac_toe_env import Board, Item, TicTacToeEnv  # noqa: E402
from hermes_rl import SeatAnswer  # noqa: E402
from hermes_rl.interop.trainers.environment_host import host_environment  # noqa: E402
from hermes_rl.interop.trainers.model_policy import ModelPolicy  # noqa: E402
from hermes_rl.interop.trainers.trl import HermesGRPOTrainer  # noqa: E402
from hermes_rl.rollout.group import run_group  # noqa: E402
from hermes_rl.rollout.seats import with_observation  # noqa: E402

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
CONTEXT, SFT_ROWS, RL_ROWS = 1024, 32, 32


class VersusRandom(TicTacToeEnv):
    """The policy plays one seat, random legal moves the other."""

    name = "versus_random"

    def eval_items(self) -> list[Item]:
        return [{**item, "player": seat} for item in super().eval_items() for seat in self.seats]

    def next_seat(self, item: Item, state: Board, last: SeatAnswer | None) -> str | None:
        following = super().next_seat(item, state, last)
        if following in (None, item["player"]):
            return following
        state.play(following, Random().choice(state.free()))
        return None if state.over() else item["player"]


def new_model(folder: Path, seed: int) -> None:
    """A Qwen3 of two layers with random weights, and a tokenizer with a token for each square of a board."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    env = openings()
    words = [env.seat_prompt(env.train_items()[0], seat) for seat in env.seats]
    bpe.train_from_iterator(
        [*words, "user\n", "assistant\n"] * 2,
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
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def random_game(env: TicTacToeEnv, random: Random) -> list[list[dict[str, str]]]:
    """The conversations of both seats in a game of random legal moves."""
    item = random.choice(env.train_items())
    board, seats = env.initial_state(item), list(env.seats)
    talks: dict[str, list[dict[str, str]]] = {seat: [] for seat in seats}
    while not board.over():
        seat = seats[0]
        prompt = talks[seat] or [{"role": "user", "content": env.seat_prompt(item, seat)}]
        told = [{"role": "user", "content": str(board)}]
        talks[seat] = [*prompt, *told] if talks[seat] else with_observation(prompt, str(board))
        move = random.choice(board.free())
        talks[seat].append({"role": "assistant", "content": move})
        board.play(seat, move)
        seats.reverse()
    return [talk for talk in talks.values() if talk]


def row(tokenizer: Any, talk: list[dict[str, str]]) -> tuple[list[int], list[int]]:
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


def imitate(source: Path, target: Path, steps: int, seed: int) -> None:
    """Fine-tune on random legal games."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    env, random = openings(), Random(seed)
    model.train()
    for step in range(steps):
        talks = [talk for _ in range(SFT_ROWS // 2) for talk in random_game(env, random)]
        rows = [row(tokenizer, talk) for talk in talks]
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
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def openings() -> TicTacToeEnv:
    """The environment with its items, not open: nothing is asked."""
    env = object.__new__(TicTacToeEnv)
    asyncio.run(env.setup())
    return env


def self_play(source: Path, folder: Path, target: Path, steps: int, learning_rate: float, seed: int) -> None:
    """Both seats are the policy; each seat's games of one opening are a group."""
    args = GRPOConfig(
        str(folder),
        use_cpu=True,
        bf16=False,
        report_to=[],
        seed=seed,
        max_steps=steps,
        num_generations=8,
        per_device_train_batch_size=RL_ROWS,
        gradient_accumulation_steps=1,
        learning_rate=learning_rate,
        lr_scheduler_type="constant",
        save_steps=25,
        save_total_limit=1,
        logging_steps=1,
        disable_tqdm=True,
    )
    trainer = HermesGRPOTrainer(
        str(source),
        environment=TicTacToeEnv,
        args=args,
        settings={"seed": seed, "terminal_backend": "local"},
        selection={"advantage": "mean"},
    )
    trainer.train(resume_from_checkpoint=any(folder.glob("checkpoint-*")))
    trainer.save_model(str(target))
    lines = [line for line in trainer.state.log_history if "reward" in line]
    (target / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def evaluate(folder: Path, games: int) -> dict[str, float]:
    """Against random legal moves, sampled at temperature 1: `games` for each held-out opening and seat."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    policy = ModelPolicy(lambda: model, context_tokens=CONTEXT)

    async def play() -> list[Any]:
        settings = {"terminal_backend": "local", "worker_timeout": 3600}
        async with host_environment(
            VersusRandom, policy, str(folder), settings=settings, context_tokens=CONTEXT
        ) as env:
            groups = [
                await run_group(env, item, size=games, split="eval", temperature=1.0) for item in env.eval_items()
            ]
        return [rollout for group in groups for rollout in group.rollouts]

    rollouts = asyncio.run(play())
    scored = [rollout for rollout in rollouts if rollout.score is not None]
    # An illegal move ends its game, and so does an answer of more than one token.
    illegal = sum(
        rollout.stop_reason == "length" or rollout.states[-1].value["illegal"] == rollout.seat for rollout in scored
    )
    return {
        "games": len(scored),
        "unscored": len(rollouts) - len(scored),
        "illegal_moves": illegal / sum(rollout.turns_used for rollout in scored),
        "wins": sum(rollout.score == 1.0 for rollout in scored) / len(scored),
        "mean_score": sum(rollout.score for rollout in scored) / len(scored),
    }


def kept(path: Path, make: Callable[[], Any]) -> Any:
    """The JSON in the file, made on first use."""
    if not path.exists():
        path.write_text(json.dumps(make()))
    return json.loads(path.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--imitation-steps", type=int, default=400, help="steps on random games (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=200, help="steps of self-play (default: %(default)s)")
    parser.add_argument("--learning-rate", type=float, default=3e-4, help="of self-play (default: %(default)s)")
    parser.add_argument("--games", type=int, default=16, help="per held-out opening and seat (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of weights, games and rollouts (default: %(default)s)")
    chosen = parser.parse_args()
    out: Path = chosen.out.resolve()
    new, imitated, trained = out / "new", out / "imitated", out / "trained"
    if not (new / "config.json").exists():
        new_model(new, chosen.seed)
    if not (imitated / "config.json").exists():
        imitate(new, imitated, chosen.imitation_steps, chosen.seed)
    results = {"before": kept(out / "before.json", lambda: evaluate(imitated, chosen.games))}
    print(json.dumps(results), flush=True)
    if not (trained / "steps.jsonl").exists():
        self_play(imitated, out / "checkpoints", trained, chosen.steps, chosen.learning_rate, chosen.seed)
    results["after"] = kept(out / "after.json", lambda: evaluate(trained, chosen.games))
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
