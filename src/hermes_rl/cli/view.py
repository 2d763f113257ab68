"""`hermes-rl view [RUN|FILE|FOLDER]`: rollouts, runs and evaluations in a browser, from here until it is stopped."""

import threading
from pathlib import Path

import click

from hermes_rl import jsontext
from hermes_rl.secrets import resolved_key
from hermes_rl.terminal.running import on_a_loop


@click.command(context_settings={"show_default": True, "max_content_width": 110})
@click.argument("targets", nargs=-1, metavar="[RUN|FILE|FOLDER|ADDRESS]…")
@click.option(
    "--host", default="127.0.0.1", help="Where to listen. Others who can reach it and have the link can look."
)
@click.option("--port", default=0, type=click.IntRange(0, 65_535), help="0 takes any that is free.")
@click.option(
    "--tokenizer",
    type=click.Path(exists=True, path_type=Path),
    help="A tokenizer.json, or a model's folder, to show what tokens say.",
    show_default="the model's own, if it is on this machine",
)
@click.option("--no-open", is_flag=True, help="Do not open a browser; the address is printed in any case.")
@click.option("--json", "as_json", is_flag=True, help="Print {url} as one JSON object when it is ready.")
def view(targets: tuple[str, ...], host: str, port: int, tokenizer: Path | None, no_open: bool, as_json: bool) -> None:
    """Look at rollouts in a browser, offline, at any size.

    Each name is the id of a run, a JSONL file of groups, a folder of evaluations, a trajectories.db, or a
    postgresql:// address (env:NAME and file:PATH stand for what they hold). Without any, all runs and evaluations of
    this machine are shown. Only who has the printed link can look.
    """
    from hermes_rl.api.listening import is_loopback
    from hermes_rl.cli.viewed_runs import viewed_runs
    from hermes_rl.viewer.server import run_viewer

    addresses = [resolved_key(one, "ADDRESS") if one.startswith(("env:", "file:")) else one for one in targets]
    if not is_loopback(host):
        click.echo(
            f"warning: others can reach {host}; the link travels unencrypted, and whoever reads it can look. "
            "`ssh -L PORT:127.0.0.1:PORT` is safer",
            err=True,
        )

    def ready(url: str) -> None:
        if as_json:
            click.echo(jsontext.dumps({"url": url}).decode())
        else:
            click.echo(f"the viewer is at {url}\nCtrl-C ends it", err=True)
        if not no_open and not as_json:
            import webbrowser

            # A browser may take seconds to start, or stay in the foreground where there is no desktop.
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()

    on_a_loop(run_viewer(addresses, viewed_runs(), host=host, port=port, ready=ready, tokenizer=tokenizer))
