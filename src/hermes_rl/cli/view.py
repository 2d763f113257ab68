"""`hermes-rl view [RUN|FILE|FOLDER]` (Look): browse rollouts, runs and evaluations in a web browser."""

import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import click

from hermes_rl.console.output import echo
from hermes_rl.console.run_command import run_async
from hermes_rl.core import fast_json
from hermes_rl.core.secrets import resolve_key


@click.command(context_settings={"show_default": True, "max_content_width": 110})
@click.argument("targets", nargs=-1, metavar="[RUN|FILE|FOLDER|ADDRESS]…")
@click.option("--host", default="127.0.0.1", help="Listen on this address. Anyone with the printed link can view.")
@click.option("--port", default=0, type=click.IntRange(0, 65_535), help="Listen on this port; 0 picks a free one.")
@click.option(
    "--tokenizer",
    type=click.Path(exists=True, path_type=Path),
    help="Decode tokens with this tokenizer.json or model folder.",
    show_default="the model's own, if it is on this machine",
)
@click.option("--no-open", is_flag=True, help="Print the address without opening a browser.")
@click.option("--json", "as_json", is_flag=True, help="Print {url} as one JSON object when ready.")
def view(targets: tuple[str, ...], host: str, port: int, tokenizer: Path | None, no_open: bool, as_json: bool) -> None:
    """Browse rollouts, runs and evaluations in a web browser.

    Pass run ids, `last` for the newest run or output, JSONL files of groups, folders of evaluations, a
    trajectories.db, a postgresql:// address (also as env:NAME or file:PATH), an ATIF document (.json) or the folder of
    a Harbor job. Without arguments, shows all runs and evaluations of this machine, and the evaluations and files of
    groups in the working directory. Works offline. Only those with the printed link can view.
    """
    from hermes_rl.cli.last import targets_with_last
    from hermes_rl.cli.run_access import viewed_runs
    from hermes_rl.http.server import is_loopback
    from hermes_rl.viewer.server import run_viewer

    targets = targets_with_last(targets)
    addresses = [
        resolve_key(target, "ADDRESS") if target.startswith(("env:", "file:")) else target for target in targets
    ]
    if not is_loopback(host):
        echo(
            f"warning: other machines can reach {host}, and the link is sent unencrypted; "
            "`ssh -L PORT:127.0.0.1:PORT` is safer",
            err=True,
        )

    def ready(url: str) -> None:
        if as_json:
            echo(fast_json.dumps({"url": url}).decode())
        else:
            echo(f"viewer: {url}\npress Ctrl-C to stop", err=True)
        if not no_open and not as_json:
            import webbrowser

            # A browser may take seconds to start, or run in the foreground without a desktop.
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()

    with tempfile.TemporaryDirectory(prefix="hermes-rl-view-") as folder:
        sources = _with_traces_imported(addresses, Path(folder))
        run_async(run_viewer(sources, viewed_runs(), host=host, port=port, ready=ready, tokenizer=tokenizer))


def _with_traces_imported(targets: Sequence[str], folder: Path) -> list[str]:
    """The targets, where an ATIF document or the folder of a Harbor job is a file of groups made from it."""
    from hermes_rl.interop.traces.importer import import_groups

    sources = []
    for number, target in enumerate(targets):
        path = Path(target)
        found = [path] if path.suffix == ".json" and path.is_file() else []
        if path.is_dir():
            found = [one for depth in ("", "*/", "*/*/") for one in path.glob(f"{depth}agent/trajectory.json")]
        if not found:
            sources.append(target)
            continue
        made = folder / str(number) / f"{path.absolute().name}.jsonl"
        import_groups(found, made)
        sources.append(str(made))
    return sources
