"""Build a release, and try every way to install it.

    python -m scripts.release                      wheel and source distribution only, as CI does: about a minute
    python -m scripts.release --extras all         each extra too, alone in a fresh environment: about half an hour
    python -m scripts.release --extras ssh,mcp     chosen ones
    python -m scripts.release --extras all --out dist --json release.json

One environment at a time, each removed before the next. What each extra is for is really done, by the programs in
`scripts/release/smoke`. Exit status 1 when anything failed. `--out` keeps the two files and the bill of materials, and
is for a clean checkout. With extras or `--out`, a database of vulnerabilities is asked; NO DATA: none answered.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from scripts.release.audit import try_audit
from scripts.release.building import ROOT, Built, ReleaseError, build, sha256
from scripts.release.metadata import problems
from scripts.release.null_model import null_model
from scripts.release.sbom import write_sbom
from scripts.release.trials import EXTRAS, Trial, same_files, try_core, try_extra, try_sbom, try_twine


def main() -> int:
    arguments = _arguments()
    started = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="hermes-rl-release-") as folder, null_model() as model:
            work = Path(folder)
            _say("building")
            built = build(work)
            wrong = problems(built.sdist, built.wheel, ROOT)
            trials = []
            whole = bool(arguments.extras or arguments.out)
            sbom = write_sbom(built, work) if whole else None
            for trial in _trials(built, sbom, arguments.extras, work, model):
                trials.append(trial)
                _say(f"{trial.name}: {trial.problem or trial.outcome}; {time.monotonic() - started:.0f} s so far")
            kept = [built.sdist, built.wheel, *([sbom] if sbom else [])]
            files = [_described(path) for path in kept]
            report = _report(built, files, trials, wrong, time.monotonic() - started)
            if arguments.out is not None:
                _keep(built, kept, arguments.out, allow_changed=arguments.changed)
    except ReleaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(table(trials))
    for file in files:
        print(f"{file['name']}  {file['kilobytes']} kB  sha256 {file['sha256']}")
    for problem in wrong:
        print(f"METADATA: {problem}", file=sys.stderr)
    for trial in trials:
        if trial.problem:
            print(f"FAILED {trial.name}: {trial.problem}", file=sys.stderr)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if wrong or any(trial.problem for trial in trials) else 0


def table(trials: list[Trial]) -> str:
    """As Markdown, for docs/reports/release.md."""
    rows = [
        "| installed | packages | MB | install s | `import hermes_rl` s | its own import s | what it did | s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in trials:
        taken = [_figure(one.packages), _figure(one.megabytes), _figure(one.install_s)]
        imports = [_figure(one.import_s, 2), _figure(one.own_import_s, 2)]
        rows.append(f"| {' | '.join([one.name, *taken, *imports, one.outcome, _figure(one.smoke_s)])} |")
    return "\n".join(rows)


def _figure(value: float | None, places: int = 0) -> str:
    return "–" if value is None else f"{value:.{places}f}"


def _trials(built: Built, sbom: Path | None, extras: list[str], work: Path, model: str) -> Iterator[Trial]:
    found: dict[str, dict[str, str]] = {}
    for name, path in (("wheel", built.wheel), ("sdist", built.sdist)):
        _say(f"{name}: installing")
        yield try_core(name, path, work, model, found)
    yield same_files(found)
    if sbom is not None:
        _say("bill of materials: validating it, and asking for vulnerabilities")
        yield try_sbom(sbom, work)
        yield try_audit(sbom, work)
    if extras:
        _say("twine: checking")
        yield try_twine(built, work)
    for extra in extras:
        _say(f"{extra}: installing")
        yield try_extra(extra, built.wheel, work, model)


def _described(path: Path) -> dict[str, object]:
    return {"name": path.name, "kilobytes": round(path.stat().st_size / 1e3), "sha256": sha256(path)}


def _report(
    built: Built, files: list[dict[str, object]], trials: list[Trial], wrong: list[str], seconds: float
) -> dict[str, object]:
    return {
        "format": "hermes-rl/release/1",
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": built.commit,
        "changed_files": built.changed,
        "python": sys.version.split()[0],
        "files": files,
        "metadata": wrong,
        "trials": [asdict(trial) for trial in trials],
        "seconds": round(seconds),
    }


def _keep(built: Built, kept: list[Path], out: Path, *, allow_changed: bool) -> None:
    if built.changed and not allow_changed:
        raise ReleaseError(
            f"{built.changed} files are not as commit {built.commit[:12]} has them, so nothing was kept in {out}; "
            "commit or remove them (`git status`), or pass --changed for files that are no release"
        )
    out.mkdir(parents=True, exist_ok=True)
    for path in kept:
        shutil.copy2(path, out)
    _say(f"kept in {out}: {', '.join(path.name for path in kept)}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extras", type=_extras, default=[], metavar="all|NAME,…", help="extras to try as well")
    parser.add_argument("--out", type=Path, help="keep the files in this folder")
    parser.add_argument("--changed", action="store_true", help="with --out: keep them though the checkout is not clean")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    return parser.parse_args()


def _extras(text: str) -> list[str]:
    names = list(EXTRAS) if text == "all" else [name for name in text.split(",") if name]
    if unknown := [name for name in names if name not in EXTRAS]:
        raise argparse.ArgumentTypeError(f"no extra {', '.join(unknown)}; there are {', '.join(EXTRAS)}")
    return names


def _say(line: str) -> None:
    print(f"release: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
