"""`hermes-rl run test`: an environment tried on models before any training."""

from typing import Any

import click

from hermes_rl import jsontext
from hermes_rl.cli.progress import progress
from hermes_rl.runs.discovery.finding import find_environment
from hermes_rl.runs.inference_test.testing import run_test as test_inference
from hermes_rl.terminal.running import on_a_loop


@click.command("test", context_settings={"show_default": True, "max_content_width": 110})
@click.argument("environment", metavar="ENV")
@click.option("--steps", "num_steps", default=3, type=click.IntRange(1), help="Items to try with each model.")
@click.option("--group-size", default=16, type=click.IntRange(1), help="Completions of each item.")
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="NAME|JSON",
    help='A model of OpenRouter, or {"model", "base_url", "api_key": "env:NAME"}.',
    show_default="three of OpenRouter, small to large",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def test_command(environment: str, num_steps: int, group_size: int, models: tuple[str, ...], as_json: bool) -> int:
    """Try an environment on models, without training: does it load, prompt, parse and score."""
    found = find_environment(environment)
    chosen = [jsontext.loads(text) if text.lstrip().startswith("{") else text for text in models] or None
    with progress(f"testing {found.name}", num_steps * len(chosen or "123")) as shown_steps:
        report = on_a_loop(
            test_inference(
                found.reference,
                found.name,
                {},
                chosen,
                num_steps=num_steps,
                group_size=group_size,
                progress=lambda done, _, message: shown_steps.show(done, message),
            )
        )
    if as_json:
        click.echo(jsontext.dumps(report).decode())
    else:
        _show_test(report)
    return 0 if report["summary"]["environment_working"] else 1


def _show_test(report: dict[str, Any]) -> None:
    for one in report["models_tested"]:
        accuracy = one.get("accuracy")
        click.echo(
            f"{one['model']:<32} {'–' if accuracy is None else f'{accuracy:.0%}'}  {one.get('error') or ''}".rstrip()
        )
    for name, check in report["summary"]["checks"].items():
        told = check if isinstance(check, dict) else {"verdict": check}
        click.echo(f"  {name:<24} {told.get('verdict')}  {told.get('why') or ''}".rstrip())
    working = report["summary"]["environment_working"]
    click.echo(f"the environment {'works' if working else 'does not work'}; {report['summary']['output_directory']}")
