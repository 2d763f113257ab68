"""`hermes-rl quickstart` (Run): try a small model on this machine: rollouts, an evaluation, with --train training.

Always true: each stage runs a command that a person can run, and prints it. When it ends, also by Ctrl-C, nothing that
it started is left running.
"""

import shlex
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click

from hermes_rl.cli.child_command import CommandFailedError, run_command
from hermes_rl.cli.local_server import SMALL_MODEL, RunServerSettings, run_server, small_model_folder
from hermes_rl.console.output import echo
from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.private_files import private_folder

ENVIRONMENT, TRAINED_ENVIRONMENT = "terminal_test", "append_log"
PORT = 8901
# The extra that brings each package.
SERVING = {"xllamacpp": "quickstart", "gguf": "quickstart"}
TRAINING = {**SERVING, "tinker": "train", "renderers": "tokens", "transformers": "tokens"}


@dataclass(slots=True)
class Stages:
    """Announces and times the stages."""

    total: int
    results: list[dict[str, Any]] = field(default_factory=list)

    @contextmanager
    def stage(self, title: str, by_hand: str) -> Iterator[None]:
        number = len(self.results) + 1
        echo(f"\n[{number}/{self.total}] {title}", err=True, bold=True)
        echo(f"      by hand: {by_hand}", err=True)
        began = time.monotonic()
        yield
        seconds = time.monotonic() - began
        self.results.append({"stage": title, "command": by_hand, "seconds": round(seconds, 1)})
        echo(f"      done in {seconds:.1f} s", err=True)

    def run(self, title: str, words: Sequence[str], **options: Any) -> dict[str, Any]:
        with self.stage(title, f"hermes-rl {shlex.join(words)}"):
            return run_command(words, **options)


@click.command(context_settings={"show_default": True, "max_content_width": 110})
@click.option(
    "--train", "trains", is_flag=True, help="Also train the model and compare before and after: about 15 minutes."
)
@click.option("--view", is_flag=True, help="Open the rollouts in a browser at the end, until Ctrl-C.")
@click.option("--groups", default=5, type=click.IntRange(1, 32), help="Make this many groups of 4 rollouts.")
@click.option("--eval-items", default=20, type=click.IntRange(1, 100), help="Evaluate on this many held-out items.")
@click.option("--steps", default=10, type=click.IntRange(1), help="With --train: make this many training steps.")
@click.option(
    "--set", "changes", multiple=True, metavar="FIELD=VALUE", help="With --train: set a field of the run; repeatable."
)
@click.option(
    "-o", "--output", "out", type=click.Path(path_type=Path, file_okay=False), default="quickstart",
    help="Write rollouts and evaluations to this folder; replaces those of an earlier quickstart.",
)  # fmt: skip
@click.option("--base-url", help="Use the model at this URL, with --model, instead of the small one.")
@click.option("--model", help="Use this model of --base-url.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as one JSON object.")
def quickstart(
    trains: bool, view: bool, groups: int, eval_items: int, steps: int, changes: tuple[str, ...], out: Path,
    base_url: str | None, model: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Try hermes-rl in one command: no second terminal, no key, no GPU.

    Gets a small model (93 MB, once), starts it on this machine, makes rollouts of a bundled environment in sandboxes
    and evaluates the model on held-out items. With --train it then trains the model and shows the difference. Each
    stage prints what it does, how long it took, and the command that does the same.
    """
    if (base_url is None) != (model is None):
        raise click.UsageError("--base-url and --model go together")
    if trains and base_url is not None:
        raise click.UsageError("--train trains the small model; remove --base-url and --model")
    _require_packages(trains=trains, serves=base_url is None)
    signal.signal(signal.SIGTERM, _interrupt)
    private_folder(out)
    stages = Stages(total=2 + (base_url is None) + 2 * trains)
    result: dict[str, Any] = {}
    with ExitStack() as servers:
        if base_url is None or model is None:
            base_url, model = _start_model(stages, servers)
        endpoint = ["--openai.base_url", base_url, "--openai.model_name", model]
        result |= _try(stages, endpoint, out, groups, eval_items)
    if trains:
        result |= _train(stages, eval_items, steps, changes)
    result["stages"] = stages.results
    show_results(result)
    if as_json:
        echo(fast_json.dumps(result).decode())
    if view:
        _view(result["rollouts"]["path"])


def _require_packages(*, trains: bool, serves: bool) -> None:
    needed = TRAINING if trains else SERVING if serves else {}
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        extras = ",".join(dict.fromkeys(needed.values()))
        raise ConfigError(f"the quickstart needs {' and '.join(missing)}: pip install 'hermes-rl[{extras}]'")


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _start_model(stages: Stages, servers: ExitStack) -> tuple[str, str]:
    title = "Start a small model on this machine: SmolLM2, 135M parameters, on llama.cpp (93 MB to download, once)"
    port = _free_port()
    with stages.stage(title, f"hermes-rl engine serve {SMALL_MODEL} --port {port}"):
        server = servers.enter_context(run_server(RunServerSettings(SMALL_MODEL, port=port)))
        echo(f"      ready: {server.base_url} model={server.name}", err=True)
    return server.base_url, server.name


def _free_port() -> int:
    """The default of `engine serve` if it is free, so that the commands shown work with it; else another one."""
    for port in (PORT, 0):
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise ConfigError("this machine has no free port on 127.0.0.1")


def _try(stages: Stages, endpoint: list[str], out: Path, groups: int, eval_items: int) -> dict[str, Any]:
    """Rollouts and an evaluation of the untrained model."""
    words = ["process", ENVIRONMENT, "--env.total_steps", str(groups), "--env.group_size", "4"]
    words += ["--env.data_path_to_save_groups", str(out / "rollouts.jsonl"), "--overwrite", *endpoint]
    title = f"Make rollouts of {ENVIRONMENT}, {groups} x 4: each writes a word into a file, in its own sandbox"
    rollouts = stages.run(title, words)
    title = f"Evaluate it on {eval_items} held-out items, at temperature 0"
    words = ["evaluate", ENVIRONMENT, "--env.eval_size", str(eval_items)]
    words += ["--env.data_dir_to_save_evals", str(out / "evaluation"), *endpoint]
    return {"rollouts": rollouts, "evaluation": stages.run(title, words)}


def _train(stages: Stages, eval_items: int, steps: int, changes: tuple[str, ...]) -> dict[str, Any]:
    """A training run, which is evaluated before its first step and after its last one."""
    title = "Convert the model for training: float32, 540 MB"
    with stages.stage(title, "hermes-rl engine model"):
        folder = small_model_folder()
    words = ["start", TRAINED_ENVIRONMENT, "--preset", "laptop", "--set", f"base_model={folder}"]
    words += ["--eval-items", str(eval_items)]
    for change in (f"total_steps={steps}", *changes):
        words += ["--set", change]
    title = (
        f"Train it on {TRAINED_ENVIRONMENT}, {steps} steps of 20 to 60 seconds, and evaluate it before and after on "
        f"{eval_items} held-out items; the first start installs the engine (1.1 GB) and compiles"
    )
    with stages.stage(title, f"hermes-rl train {shlex.join(words[1:])}"):
        report = _followed_run(words)
    return {"run_id": report["run_id"], "training": run_command(["run", "results", report["run_id"]])}


def _followed_run(words: list[str]) -> dict[str, Any]:
    """Start a run, and wait for its end. A run outlives the command that started it, so it is stopped on Ctrl-C."""
    run_id = str(run_command(["run", *words], guarded=False)["run_id"])
    ended = False
    try:
        report = run_command(["run", "status", run_id, "--watch"])
        ended = bool(report["ended"])
    finally:
        if not ended:
            echo(f"      stopping {run_id}; continue it with: hermes-rl run resume {run_id}", err=True)
            run_command(["run", "stop", run_id], guarded=False)
    if report["status"] != "finished":
        raise CommandFailedError(f"run {run_id} {report['status']}; see `hermes-rl run logs {run_id}`")
    return report


def show_results(result: dict[str, Any]) -> None:
    """Print the figures and what to do next."""
    rollouts = result["rollouts"]["path"]
    echo("\nResults", err=True, bold=True)
    echo(f"  {ENVIRONMENT}, at temperature 0: {_rate(result['evaluation'])}", err=True)
    if "training" in result:
        from hermes_rl.cli.run.results import held_out_rows

        for text in held_out_rows(result["training"]["held_out"]).values():
            echo(f"  {TRAINED_ENVIRONMENT}: {text}", err=True)
    echo("\nNext", err=True, bold=True)
    steps = {f"hermes-rl view {rollouts}": "look at each rollout in a browser"}
    if "run_id" in result:
        steps |= {
            f"hermes-rl run results {result['run_id']}": "the curve and the weights",
            f"hermes-rl engine serve {result['run_id']}": "the trained model as an endpoint",
        }
    else:
        steps |= {
            "hermes-rl init my_env": "write an environment of your own",
            "hermes-rl quickstart --train": "train the model, and compare",
        }
    width = max(map(len, steps)) + 2
    for command, what in steps.items():
        echo(f"  {command:<{width}}{what}", err=True)


def _rate(evaluation: dict[str, Any]) -> str:
    metrics = evaluation["metrics"]
    return f"mean reward {metrics['eval/mean_reward']:.3f} on {metrics['eval/scored']:.0f} scored rollouts"


def _view(file: str) -> None:
    from hermes_rl.cli.view import view

    view.main([file], prog_name="hermes-rl view", standalone_mode=False)
