"""`hermes-rl run test`: try an environment on models before training."""

from typing import Any

import click

from hermes_rl.cli.progress import progress
from hermes_rl.console.output import echo
from hermes_rl.console.run_command import run_async
from hermes_rl.core import fast_json


@click.command("test", context_settings={"show_default": True, "max_content_width": 110})
@click.argument("environment", metavar="ENV")
@click.option("--steps", "num_steps", default=3, type=click.IntRange(1), help="Try this many items with each model.")
@click.option("--group-size", default=16, type=click.IntRange(1), help="Sample this many completions per item.")
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="NAME|JSON",
    help='Test this OpenRouter model, or {"model", "base_url", "api_key": "env:NAME"}; repeatable.',
    show_default="three OpenRouter models, small to large",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def test_command(environment: str, num_steps: int, group_size: int, models: tuple[str, ...], as_json: bool) -> int:
    """Test an environment on models without training: loading, prompts, parsing and scores."""
    from hermes_rl.orchestration.discovery.lookup import find_environment
    from hermes_rl.orchestration.inference_test.runner import run_test as test_inference

    found = find_environment(environment)
    chosen = [fast_json.loads(text) if text.lstrip().startswith("{") else text for text in models] or None
    with progress(f"testing {found.name}", num_steps * len(chosen or "123")) as steps:
        report = run_async(
            test_inference(
                found.reference,
                found.name,
                {},
                chosen,
                num_steps=num_steps,
                group_size=group_size,
                progress=lambda done, _, message: steps.show(done, message),
            )
        )
    if as_json:
        echo(fast_json.dumps(report).decode())
    else:
        _show_test(report)
    return 0 if report["summary"]["environment_working"] else 1


def _show_test(report: dict[str, Any]) -> None:
    for model in report["models_tested"]:
        accuracy = model.get("accuracy")
        shown = "–" if accuracy is None else f"{accuracy:.0%}"
        echo(f"{model['model']:<32} {shown}  {model.get('error') or ''}".rstrip())
    for name, check in report["summary"]["checks"].items():
        result = check if isinstance(check, dict) else {"verdict": check}
        echo(f"  {name:<24} {result.get('verdict')}  {result.get('why') or ''}".rstrip())
    working = report["summary"]["environment_working"]
    echo(f"the environment {'works' if working else 'does not work'}; details: {report['summary']['output_directory']}")
