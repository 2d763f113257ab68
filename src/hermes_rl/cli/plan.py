"""`hermes-rl plan --model NAME --gpus N` (Train): estimate layout, memory and speed of a run on GPUs."""

import re
from pathlib import Path
from typing import Any

import click

from hermes_rl.console.output import echo
from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.training.sizing.model_shape import KNOWN, ModelShape, known_shape
from hermes_rl.training.sizing.plan import GPUS, PlannedRun, plan_run


class Tokens(click.ParamType[int]):
    """A number of tokens, as 32768 or 32k."""

    name = "tokens"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+)(k?)", value.strip().lower())
        if match is None or int(match[1]) == 0:
            self.fail(f"{value!r} is not a number of tokens; write 32768 or 32k", param, ctx)
        return int(match[1]) * (1024 if match[2] else 1)


@click.command(context_settings={"show_default": True, "max_content_width": 110})
@click.option(
    "--model", required=True, help="Plan for this model: a folder, a hub name, or a size such as 32B (then Qwen3)."
)
@click.option("--gpus", required=True, type=click.IntRange(1), help="Plan for this many GPUs.")
@click.option(
    "--gpu", type=click.Choice(sorted(GPUS), case_sensitive=False), default="H100", help="Select the type of GPU."
)
@click.option("--context", type=Tokens(), default="32k", help="Allow sequences of up to this many tokens.")
@click.option("--rollouts", type=click.IntRange(1), default=512, help="Train on this many rollouts per optimizer step.")
@click.option(
    "--tokens", type=Tokens(), help="Assume this mean number of tokens per rollout.", show_default="half of the context"
)
@click.option("--sampled", type=click.FloatRange(0, 1, min_open=True), default=0.25,
              help="Assume that the model writes this share of them; prompts and tool results the rest.")  # fmt: skip
@click.option("--turns", type=click.IntRange(1), default=20, help="Assume this mean number of turns per rollout.")
@click.option("--rank", type=click.IntRange(1), default=32, help="Give the LoRA adapter this rank.")
@click.option("--mfu", type=click.FloatRange(0, 1, min_open=True), default=0.4,
              help="Assume this share of the peak FLOP/s (MFU).")  # fmt: skip
@click.option("--bandwidth-use", type=click.FloatRange(0, 1, min_open=True), default=0.6,
              help="Assume this share of the memory bandwidth in sampling.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the plan as one JSON object.")
def plan(model: str, gpu: str, tokens: int | None, as_json: bool, **options: Any) -> None:
    """Estimate how to divide GPUs between training and sampling, what fits, and the steps per hour.

    Computed from published figures of the GPUs and from overheads measured by this project; never compared with a run
    on GPUs. docs/reports/scale-model.md has the formulas.

    \b
        hermes-rl plan --model 32B --gpus 8 --context 32k --rollouts 512
    """  # noqa: D301 (\b keeps a paragraph's line breaks in click)
    name, shape = _shape(model)
    run = PlannedRun(shape=shape, gpu=GPUS[gpu], tokens=tokens or options["context"] // 2, **options)
    if run.tokens > run.context:
        raise ConfigError(f"--tokens {run.tokens} is more than --context {run.context}; lower it")
    made = plan_run(run)
    result = {"model": name, "gpu": gpu, "gpus": run.gpus, **made.as_json()}
    if as_json:
        echo(fast_json.dumps(result).decode())
        return
    training, sampling = result["training"], result["sampling"]
    split = (
        "one GPU, half of its memory each" if made.shared else f"{training['gpus']} train, {sampling['gpus']} sample"
    )
    room = run.gpu.memory / 1e9
    lines = {
        "model": f"{name}: {result['parameters'] / 1e9:.1f}B parameters; the adapter has "
        f"{result['adapter_parameters'] / 1e6:.0f}M",
        "layout": f"{run.gpus} × {gpu}: {split}",
        "train": f"hermes-rl engine start --cuda {training['options']}",
        "sample": f"{sampling['servers']} × vllm serve --tensor-parallel-size {sampling['tensor_parallel_size']}, "
        f"{sampling['sequences_per_server']} sequences each",
        "memory": f"{training['memory_per_gpu'] / 1e9:.0f} of {room:.0f} GB in training; "
        f"{sampling['cache_per_server'] / 1e9:.0f} GB of KV cache per server",
        "tokens/s": f"{training['tokens_per_second']:,.0f} trained, {sampling['tokens_per_second']:,.0f} sampled",
        "step": f"{result['step_seconds']:,.0f} s: {training['seconds']:,.0f} s training, {sampling['seconds']:,.0f} s "
        f"sampling; {result['steps_per_hour']:.1f} steps per hour",
        "environments": f"{result['environment_cores']:.2g} cores, without sandboxes and the tasks themselves",
        "basis": f"computed with {run.mfu:g} of the peak FLOP/s and {run.bandwidth_use:g} of the bandwidth, both "
        "assumed; never run on a GPU",
    }
    for label, text in lines.items():
        echo(f"{label:<13} {text}")


def _shape(model: str) -> tuple[str, ModelShape]:
    config = Path(model).expanduser() / "config.json"
    if config.is_file():
        shape = ModelShape.from_config(fast_json.loads(config.read_bytes()))
        if shape is not None:
            return model, shape
        raise ConfigError(f"--model {model}: only dense Llama and Qwen3 models, and Qwen3 with experts, are estimated")
    if (found := known_shape(model)) is None:
        raise ConfigError(f"--model {model}: not a folder with config.json, nor one of {', '.join(KNOWN)}")
    return found
