"""Tree groups and flat ones on the tiny model and the real engine: does it learn, and with how many sampled tokens.

The task is that of policy_lag.py: write letters, digits and spaces. An answer of 16 tokens counts as four turns of
four. A flat group is 16 answers; a tree group is 4 answers and 12 branches, at turns chosen at random, which continue
the tokens of these. Same prompts, learning rate and steps. Results are appended to a file, and a run that is in it is
not repeated.

    python benchmarks/tree_learning.py --out trees.jsonl
    python benchmarks/tree_learning.py --out trees.jsonl --table            # only print
"""

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from statistics import mean, stdev
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.policy_lag import GROUP, SOURCE, TOKENS, Arm, score  # noqa: E402
from hermes_rl.core.trajectory import Branch, Group, Rollout, SampledCall, Sampling, StopReason  # noqa: E402
from hermes_rl.core.trajectory import Sequence as TokenSequence  # noqa: E402
from hermes_rl.inference.token_engines.sampling import SamplingRequest  # noqa: E402
from hermes_rl.inference.tokens.sampled import Sampled  # noqa: E402
from hermes_rl.inference.tokens.tokenizer import load_tokenizer  # noqa: E402
from scripts.hf_model import model_folder  # noqa: E402
from tests.support.skyrl_engine import SkyrlEngine  # noqa: E402

STRATEGIES = ("flat", "tree")
ROOTS, TURN = 4, 4


class Learner(Arm):
    """Counts what it samples for training, and branches where its run says so."""

    sampled = 0

    async def result(self) -> dict[str, Any]:
        return await super().result() | {"sampled_tokens": self.sampled}

    async def _group(self, sampler: Any, prompt: str, version: int, number: int) -> Group:
        ids, chance = self._ids(prompt), 1000 * self.run["seed"] + number
        tree = self.run["strategy"] == "tree"
        request = SamplingRequest(max_tokens=TOKENS, n=ROOTS if tree else GROUP, seed=chance)
        roots = (await sampler.sample(ids, request)).completions
        made = [self._answer(prompt, ids, [], root, version) for root in roots]
        if tree:
            places = [self._place(place % ROOTS, roots) for place in range(GROUP - ROOTS)]
            made += await asyncio.gather(
                *(
                    self._branch(sampler, prompt, roots, branch, version, chance + 7 * place)
                    for place, branch in enumerate(places)
                )
            )
        return Group(item_id=prompt, item=None, rollouts=tuple(made), provenance=SOURCE)

    def _place(self, root: int, roots: tuple[Sampled, ...]) -> Branch | None:
        """A turn of the root after its first; None if it has only one."""
        turns = -(-len(roots[root].tokens) // TURN)
        return Branch(root, int(self.random.integers(2, turns + 1))) if turns > 1 else None

    async def _branch(
        self, sampler: Any, prompt: str, roots: tuple[Sampled, ...], branch: Branch | None, version: int, seed: int
    ) -> Rollout:
        ids = self._ids(prompt)
        before = list(roots[branch.rollout].tokens[: TURN * (branch.turn - 1)]) if branch else []
        request = SamplingRequest(max_tokens=TOKENS - len(before), n=1, seed=seed)
        [sampled] = (await sampler.sample([*ids, *before], request)).completions
        return self._answer(prompt, ids, before, sampled, version, branch)

    def _answer(
        self,
        prompt: str,
        ids: list[int],
        before: list[int],
        sampled: Sampled,
        version: int,
        branch: Branch | None = None,
    ) -> Rollout:
        context, count = [*ids, *before], len(sampled.tokens)
        self.sampled += count
        sequence = TokenSequence(
            (*context, *sampled.tokens),
            (*[0] * len(context), *[1] * count),
            (*[None] * len(context), *sampled.logprobs),
            (*[None] * len(context), *[version] * count),
            Sampling(1.0, logprobs="raw"),
            tuple(
                SampledCall((len(before) + at) // TURN, len(context) + at)
                for at in range(0, max(count, 1), TURN)
                if count
            ),
        )
        text = str(self.tokenizer.decode([*before, *sampled.tokens], skip_special_tokens=True))
        return Rollout(
            item_id=prompt,
            index=0,
            seed=0,
            messages=[],
            score=score(text),
            stop_reason=StopReason.NATURAL,
            turns_used=-(-(len(before) + count) // TURN),
            sequences=(sequence,),
            branch=branch,
        )


def table(lines: list[dict[str, Any]]) -> str:
    rows = ["| group | seeds | reward, first step | last 5 steps | held out, sampled | greedy | sampled tokens |"]
    rows.append("|---|---|---|---|---|---|---|")
    for strategy in STRATEGIES:
        runs = [line for line in lines if line["strategy"] == strategy]
        if runs:
            last = [mean(run["rewards"][-5:]) for run in runs]
            spread = f" ± {stdev(last):.3f}" if len(last) > 1 else ""
            figures = [f"{mean(run[name] for run in runs):.3f}" for name in ("sampled", "greedy")]
            first, tokens = mean(run["rewards"][0] for run in runs), mean(run["sampled_tokens"] for run in runs)
            rows.append(
                f"| {strategy} | {len(runs)} | {first:.3f} | {mean(last):.3f}{spread} | {' | '.join(figures)} | "
                f"{tokens:,.0f} |"
            )
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rate", type=float, default=1e-2)
    parser.add_argument("--table", action="store_true")
    told = parser.parse_args()
    lines = [json.loads(line) for line in told.out.read_text().splitlines()] if told.out.exists() else []
    if not told.table:
        done = {(line["strategy"], line["seed"]) for line in lines}
        waiting = [
            {"sampler": "exact", "lag": 0, "correction": "TIS", "strategy": strategy, "seed": seed}
            for seed in range(told.seeds)
            for strategy in STRATEGIES
            if (strategy, seed) not in done
        ]
        model = model_folder("tiny")
        tokenizer = load_tokenizer(str(model))
        options = ("--rank", "8", "--samples", "64", "--micro-batch", "64", "--adapters", "24")
        with tempfile.TemporaryDirectory() as home, SkyrlEngine(model, Path(home), *options) as engine:
            for number, run in enumerate(waiting):
                learner = Learner(engine, tokenizer, run, told.steps, told.rate)
                line: dict[str, Any] = run | asyncio.run(learner.result())
                lines.append(line)
                with told.out.open("a") as out:
                    out.write(json.dumps(line) + "\n")
                print(f"{number + 1}/{len(waiting)} {run['strategy']} {line['rewards'][-1]:.3f}", flush=True)
    print(table(lines))


if __name__ == "__main__":
    main()
