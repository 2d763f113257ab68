"""Policy lag against corrections of the importance ratio, on the tiny model and the real engine.

Each run samples from weights that are `lag` steps old and trains with one correction; every arm has several seeds. Two
more arms have a sampler that reports noisy logprobs, and one that decodes and encodes the answer again. Prints a table.
Results are appended to a file, and a run that is in it is not repeated: stop and start it as you like.

    python benchmarks/policy_lag.py --out lag.jsonl                    # everything: 120 runs
    python benchmarks/policy_lag.py --out lag.jsonl --lags 0 8 --seeds 2
    python benchmarks/policy_lag.py --out lag.jsonl --table            # only print
"""

import argparse
import asyncio
import json
import string
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from hermes_rl.core.trajectory import Group, Provenance, Rollout, Sampling, StopReason  # noqa: E402
from hermes_rl.core.trajectory import Sequence as TokenSequence  # noqa: E402
from hermes_rl.inference.token_engines.sampling import SamplingRequest  # noqa: E402
from hermes_rl.inference.tokens.sampled import Sampled  # noqa: E402
from hermes_rl.inference.tokens.tokenizer import decode_ids, load_tokenizer  # noqa: E402
from hermes_rl.store.codec import encode  # noqa: E402
from hermes_rl.training.config import TrainerSettings  # noqa: E402
from hermes_rl.training.engines.tinker import TinkerEngine  # noqa: E402
from hermes_rl.training.step import GRPOStep  # noqa: E402
from hermes_rl.training.utilization import BusyTimer  # noqa: E402
from scripts.hf_model import model_folder  # noqa: E402
from tests.support.skyrl_engine import SkyrlEngine  # noqa: E402

PLAIN = frozenset(string.ascii_letters + string.digits + " ")
PROMPTS = ["Write a word.", "Write a name.", "Write a line.", "Say hello."]
HELD_OUT = ["Say a colour.", "Name a fruit.", "Name a town.", "Tell a story."]
GROUP, TOKENS, EVALUATED = 16, 16, 16
UNLIMITED = {"max_importance_weight": None}
CORRECTIONS: dict[str, dict[str, Any]] = {
    "none": {"loss": "reinforce"},
    "IS": UNLIMITED,
    "TIS": {},
    "ppo": {"loss": "ppo"} | UNLIMITED,
    "GSPO": {"loss": "ppo", "ratio_level": "sequence", "loss_aggregation": "sequence_mean"} | UNLIMITED,
}
LAGS = (0, 2, 8, 16)
SAMPLERS = ("exact", "noisy", "retokenised")
NOISE = 0.3
SOURCE = Provenance("plain", "hash", "tiny", {"hermes-rl": "0"})


def score(text: str) -> float:
    return sum(character in PLAIN for character in text) / len(text) if text else 0.0


class Arm:
    def __init__(self, engine: SkyrlEngine, tokenizer: Any, run: dict[str, Any], steps: int, rate: float) -> None:
        self.engine, self.tokenizer, self.run, self.steps = engine, tokenizer, run, steps
        self.settings = TrainerSettings(
            base_url=engine.url,
            base_model=engine.model,
            lora_rank=8,
            seed=run["seed"],
            total_steps=steps,
            learning_rate=rate,
            max_staleness=1000,
            **CORRECTIONS[run["correction"]],
        )
        self.random = np.random.default_rng(run["seed"])

    async def result(self) -> dict[str, Any]:
        policy = await TinkerEngine.open(
            self.settings, None, busy=BusyTimer(), decode=lambda ids: decode_ids(self.tokenizer, ids), context=2048
        )
        try:
            return await self._trained(policy)
        finally:
            await policy.close()

    async def _trained(self, policy: TinkerEngine) -> dict[str, Any]:
        paths, rewards, divergences = [await policy.save_sampler("v0")], [], []
        step = GRPOStep(self.settings)
        for number in range(self.steps):
            version = max(0, number - self.run["lag"])
            sampler = await policy.sampler(paths[version])
            groups = await asyncio.gather(*(self._group(sampler, prompt, version, number) for prompt in PROMPTS))
            outcome = await step.run(policy, [encode(group) for group in groups], step=number, version=number)
            paths.append(await policy.save_sampler(f"v{number + 1}"))
            rewards.append(mean(rollout.score or 0.0 for group in groups for rollout in group.rollouts))
            divergences.append(outcome.metrics.get("kl/sample_train_k3"))
        last = await policy.sampler(paths[-1])
        return {
            "rewards": rewards,
            "kl": divergences,
            "sampled": await self._evaluated(last, 1.0, EVALUATED),
            "greedy": await self._evaluated(last, 0.0, 1),
        }

    async def _evaluated(self, sampler: Any, temperature: float, count: int) -> float:
        request = SamplingRequest(max_tokens=TOKENS, temperature=temperature, n=count, seed=1)
        answers = await asyncio.gather(*(sampler.sample(self._ids(prompt), request) for prompt in HELD_OUT))
        return mean(score(self._text(each)) for answer in answers for each in answer.completions)

    async def _group(self, sampler: Any, prompt: str, version: int, number: int) -> Group:
        ids = self._ids(prompt)
        request = SamplingRequest(max_tokens=TOKENS, n=GROUP, seed=1000 * self.run["seed"] + number)
        answer = await sampler.sample(ids, request)
        return Group(
            item_id=prompt,
            item=None,
            rollouts=tuple(self._rollout(prompt, ids, each, version) for each in answer.completions),
            provenance=SOURCE,
        )

    def _rollout(self, prompt: str, ids: Sequence[int], each: Sampled, version: int) -> Rollout:
        tokens, logprobs = list(each.tokens), list(each.logprobs)
        if self.run["sampler"] == "noisy":
            logprobs = [min(0.0, value + NOISE * self.random.normal()) for value in logprobs]
        if self.run["sampler"] == "retokenised":
            # What a trainer gets that keeps messages instead of tokens: other ids, each with the logprob at its place.
            tokens = self.tokenizer.encode(decode_ids(self.tokenizer, tokens), add_special_tokens=False) or tokens
            logprobs = [logprobs[min(place, len(logprobs) - 1)] for place in range(len(tokens))]
        before = [None] * len(ids)
        sequence = TokenSequence(
            (*ids, *tokens),
            (*(0 for _ in ids), *(1 for _ in tokens)),
            (*before, *logprobs),
            (*before, *(version for _ in tokens)),
            Sampling(1.0, logprobs="raw"),
        )
        return Rollout(
            item_id=prompt,
            index=0,
            seed=0,
            messages=[],
            score=score(self._text(each)),
            stop_reason=StopReason.NATURAL,
            failure=None,
            sequences=(sequence,),
        )

    def _ids(self, prompt: str) -> list[int]:
        return list(self.tokenizer.encode(prompt, add_special_tokens=False))

    def _text(self, each: Sampled) -> str:
        return str(self.tokenizer.decode(list(each.tokens), skip_special_tokens=True))


def arms(lags: Sequence[int], seeds: int) -> Iterator[dict[str, Any]]:
    for seed in range(seeds):
        for lag in lags:
            for correction in CORRECTIONS:
                yield {"sampler": "exact", "lag": lag, "correction": correction, "seed": seed}
        for sampler in SAMPLERS[1:]:
            for correction in ("none", "TIS"):
                yield {"sampler": sampler, "lag": 0, "correction": correction, "seed": seed}


def table(lines: Sequence[dict[str, Any]]) -> str:
    by_arm: dict[tuple[str, int, str], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        by_arm[line["sampler"], line["lag"], line["correction"]].append(line)
    rows = ["| sampler | lag | correction | seeds | reward, last 5 steps | sampled | greedy | KL k3, last 5 |"]
    rows.append("|---|---|---|---|---|---|---|---|")
    for (sampler, lag, correction), runs in by_arm.items():
        last = [mean(run["rewards"][-5:]) for run in runs]
        spread = f" ± {stdev(last):.3f}" if len(last) > 1 else ""
        kl = [value for run in runs for value in run["kl"][-5:] if value is not None]
        figures = f"{mean(run['sampled'] for run in runs):.3f} | {mean(run['greedy'] for run in runs):.3f}"
        divergence = f"{mean(kl):.2g}" if kl else ""
        rows.append(
            f"| {sampler} | {lag} | {correction} | {len(runs)} | {mean(last):.3f}{spread} | {figures} | {divergence} |"
        )
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lags", type=int, nargs="+", default=LAGS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rate", type=float, default=1e-2)
    parser.add_argument("--table", action="store_true")
    told = parser.parse_args()
    lines = [json.loads(line) for line in told.out.read_text().splitlines()] if told.out.exists() else []
    if not told.table:
        done = {tuple(line[name] for name in ("sampler", "lag", "correction", "seed")) for line in lines}
        waiting = [run for run in arms(told.lags, told.seeds) if tuple(run.values()) not in done]
        model = model_folder("tiny")
        tokenizer = load_tokenizer(str(model))
        options = ("--rank", "8", "--samples", "64", "--micro-batch", "64", "--adapters", "24")
        with tempfile.TemporaryDirectory() as home, SkyrlEngine(model, Path(home), *options) as engine:
            for number, run in enumerate(waiting):
                line = run | asyncio.run(Arm(engine, tokenizer, run, told.steps, told.rate).result())
                lines.append(line)
                with told.out.open("a") as out:
                    out.write(json.dumps(line) + "\n")
                print(
                    f"{number + 1}/{len(waiting)} {run} {mean(line['rewards'][-5:]):.3f}", file=sys.stderr, flush=True
                )
    print(table(lines))


if __name__ == "__main__":
    main()
