"""`hermes-rl export RUN --to peft|merged|gguf`: export the weights of a training run with a model card."""

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_rl.cli.last import run_reference
from hermes_rl.cli.progress import progress
from hermes_rl.console.live_display import console
from hermes_rl.console.output import echo
from hermes_rl.core import fast_json
from hermes_rl.core.secrets import is_literal

if TYPE_CHECKING:
    from hermes_rl.training.weights.download import Remote

FORMS = ("peft", "merged", "gguf")
KINDS = ("f32", "f16", "bf16", "q8_0")
MEGABYTE = 10**6
PERCENT = 100


class ExportVerb(click.Group):
    """Has a command for each form of rollouts, also as `FILE... --to FORM`; another first argument is a run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        args = self._form_first(args)
        if args and args[0] not in {*self.commands, "--help"}:
            if not any(argument == "--help" or argument.split("=")[0] == "--to" for argument in args):
                raise click.UsageError(
                    f"{args[0]!r} is neither sft, dpo nor atif; to export weights: "
                    f"hermes-rl export {args[0]} --to peft|merged|gguf",
                    ctx,
                )
            args = ["weights", *args]
        return super().parse_args(ctx, args)

    def _form_first(self, args: list[str]) -> list[str]:
        """`FILE --to sft` as `sft FILE`."""
        for form in self.commands.keys() - {"weights"}:
            if f"--to={form}" in args:
                return [form, *(argument for argument in args if argument != f"--to={form}")]
            for at in range(len(args) - 1):
                if args[at : at + 2] == ["--to", form]:
                    return [form, *args[:at], *args[at + 2 :]]
        return args


@click.command()
@click.argument("run")
@click.option("--to", "form", required=True, type=click.Choice(FORMS), help="Select the format.")
@click.option(
    "-o", "--output", "out", type=click.Path(path_type=Path), help="Write to this folder.", show_default="NAME-FORM"
)
@click.option("--step", type=click.IntRange(min=0), help="Export the weights after this step instead of the last.")
@click.option("--base-model", help="Use this base model: a folder or a hub name.",
              show_default="from the run")  # fmt: skip
@click.option(
    "--base-url", help="Download from the engine at this URL.", show_default="from the run, else hosted Tinker"
)
@click.option("--api-key", help="Set the key of hosted Tinker: env:NAME or file:PATH.")
@click.option("--type", "kind", type=click.Choice(KINDS), help="Set the weight type of a GGUF file.",
              show_default="the base model's")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace the folder if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def weights(
    run: str,
    form: str,
    out: Path | None,
    step: int | None,
    base_model: str | None,
    base_url: str | None,
    api_key: str | None,
    kind: str | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Export the weights of a training run with a model card that gives their origin.

    RUN is the name of a run of `hermes-rl trainer`, a prefix of it, `last`, its folder, a PEFT folder or a tinker://
    path. The word `weights` is optional.

    \b
    peft    the adapter, for vLLM, PEFT or further training
    merged  the whole model, for vLLM and transformers
    gguf    the whole model, for llama.cpp

    \b
    hermes-rl export words-1 --to merged
    hermes-rl export words-1 --to gguf --type q8_0 -o words.gguf.d
    hermes-rl export tinker://model_1/sampler_weights/one --base-url http://127.0.0.1:8010 --to peft
    """  # noqa: D301 - click's own mark for lines that are kept
    from hermes_rl.training.weights.adapter import Adapter
    from hermes_rl.training.weights.export import ExportRequest, WeightFormat, export_weights
    from hermes_rl.training.weights.source import find_source

    if api_key is not None and is_literal(api_key):
        echo("warning: --api-key holds a literal secret; use env:NAME or file:PATH", err=True)
    if kind is not None and form != "gguf":
        raise click.UsageError("--type needs --to gguf; merged weights keep the base model's type")
    source = find_source(run_reference(run), base_url=base_url, api_key=api_key, step=step)
    request = ExportRequest(WeightFormat(form), out or Path(f"{source.name}-{form}"), base_model, kind, overwrite)
    with tempfile.TemporaryDirectory() as scratch:
        adapter = Adapter(local_adapter(source.location, Path(scratch)))
        with progress(f"export {form}", PERCENT) as shown:
            done = export_weights(
                source, adapter, request, lambda part, whole, tensor: shown.show(part * PERCENT // whole, tensor)
            )
    console().print(f"written: {done.folder} ({done.size / MEGABYTE:,.1f} MB)", soft_wrap=True)
    if as_json:
        result = {
            "form": done.form,
            "path": str(done.folder),
            "base_model": done.base_model,
            "step": done.step,
            "files": done.files,
            "bytes": done.size,
        }
        echo(fast_json.dumps(result))


def local_adapter(place: "Path | Remote", scratch: Path) -> Path:
    """The adapter's folder, unpacked or downloaded from the engine if needed."""
    from hermes_rl.training.weights.download import download_adapter, unpack_adapter

    if isinstance(place, Path):
        if place.is_dir():
            return place
        unpack_adapter(place, scratch)
        return scratch

    with progress("download", PERCENT) as shown:
        asyncio.run(
            download_adapter(
                place,
                scratch,
                lambda part, whole: shown.show(part * PERCENT // (whole or part), f"{part / MEGABYTE:,.1f} MB"),
            )
        )
    return scratch
