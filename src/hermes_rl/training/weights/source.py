"""Which weights are meant: a run by its name or folder, a PEFT folder, or a tinker:// path."""

from dataclasses import dataclass
from pathlib import Path

from hermes_rl.errors import ConfigError
from hermes_rl.home import rl_home
from hermes_rl.secrets import HIDDEN, resolved_key
from hermes_rl.training.weights.adapter import CONFIG
from hermes_rl.training.weights.download import Remote
from hermes_rl.training.weights.run_facts import RunFacts, SavedWeights, read_run

RUN_FILES = ("run.json", "lineage.jsonl")
SCHEME = "tinker://"


@dataclass(frozen=True, slots=True)
class Source:
    """Where the weights are: in a PEFT folder or at an engine. `run` and `saved` are those of a run of ours."""

    name: str
    place: Path | Remote
    run: RunFacts | None = None
    saved: SavedWeights | None = None
    base_model: str | None = None


def find_source(
    reference: str, *, base_url: str | None = None, api_key: str | None = None, step: int | None = None
) -> Source:
    """What the reference names; ConfigError when it names nothing. `base_url` is the engine's, if not the run's own."""
    key = None if api_key is None else resolved_key(api_key, "--api-key")
    if reference.startswith(SCHEME):
        state = reference if "/weights/" in reference else None
        name = reference.removeprefix(SCHEME).replace("/", "-").replace(":", "-")
        return Source(name, Remote(reference, state, base_url, key))
    for folder in (Path(reference).expanduser(), rl_home() / "runs" / reference):
        if (folder / CONFIG).is_file():
            return Source(folder.resolve().name, folder)
        if any((folder / name).is_file() for name in RUN_FILES):
            return _of_run(folder, base_url, key, step)
    raise ConfigError(
        f"there are no weights {reference}: name a run of `hermes-rl trainer` below {rl_home() / 'runs'}, its folder, "
        "a PEFT folder or a tinker:// path. Rows of recorded groups are `hermes-rl export sft` and `export dpo`."
    )


def _of_run(folder: Path, base_url: str | None, api_key: str | None, step: int | None) -> Source:
    run = read_run(folder)
    saved = run.weights(step)
    base_url = base_url or run.settings.get("base_url")
    told = run.settings.get("api_key")
    # A literal key was never kept, and an engine of one's own asks for none.
    if api_key is None and base_url is None and told and told != HIDDEN:
        api_key = resolved_key(str(told), "the run's api_key")
    remote = Remote(saved.sampler, saved.state, base_url, api_key)
    base = run.settings.get("base_model")
    return Source(run.name, remote, run, saved, str(base) if base else None)
