"""One installation each, in a fresh environment: what it takes, and whether it does what it is for.

Always true: a trial that fails is a row with its problem and the next one begins; an extra is installed alone, but for
`all`, in which every part of it is tried.
"""

import json
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scripts.release.building import Built, ReleaseError
from scripts.release.environments import PINS, Fresh, fresh, install
from scripts.release.surroundings import Missing, surroundings

PROGRAMS = Path(__file__).with_name("smoke")
SMOKE_S = 600.0
VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(open(sys.argv[1]).read())
sys.exit(repr(wrong) if wrong else 0)
"""


@dataclass(frozen=True, slots=True)
class Extra:
    """`imports` is what the extra brings, by its name in Python; `program` what tries it."""

    imports: str
    program: str
    pins: str = "dev.txt"


EXTRAS: dict[str, Extra] = {
    "tokens": Extra("transformers, renderers", "with_tokens.py"),
    "train": Extra("tinker", "with_train.py"),
    "gguf": Extra("gguf", "with_gguf.py"),
    "quickstart": Extra("xllamacpp, gguf", "with_quickstart.py"),
    "web": Extra("trafilatura", "with_web.py"),
    "browser": Extra("playwright.async_api", "with_browser.py"),
    "docker": Extra("aiodocker", "sandbox_backend.py"),
    "ssh": Extra("asyncssh", "sandbox_backend.py"),
    "modal": Extra("modal", "sandbox_backend.py"),
    "daytona": Extra("daytona", "sandbox_backend.py"),
    "postgres": Extra("psycopg", "with_postgres.py"),
    "mcp": Extra("mcp", "with_mcp.py"),
    "wandb": Extra("wandb", "metric_sink.py"),
    "trackio": Extra("trackio", "metric_sink.py"),
    "otel": Extra("opentelemetry.sdk.trace", "with_otel.py"),
    "datasets": Extra("datasets", "with_datasets.py"),
    "ray": Extra("ray", "with_ray.py"),
    "atropos": Extra("atroposlib.envs.base", "with_atropos.py", "atropos.txt"),
    "all": Extra("", ""),
}
# They stay out of `all`.
ALONE = ("ray", "atropos", "all")


@dataclass(frozen=True, slots=True)
class Trial:
    """A row. `outcome` says what was done, or what the machine has not; `problem` is None when all went well."""

    name: str
    outcome: str
    packages: int | None = None
    megabytes: float | None = None
    install_s: float | None = None
    import_s: float | None = None
    own_import_s: float | None = None
    smoke_s: float | None = None
    problem: str | None = None


def try_core(name: str, path: Path, place: Path, model: str, found: dict[str, dict[str, str]]) -> Trial:
    """Without any extra. `found` takes what was installed, for `same_files`; the second is tried briefly."""
    trial, briefly = Trial(name, ""), bool(found)
    try:
        with fresh(name, place) as environment:
            # Byte code is written when something is imported, and here most is not.
            trial = _installed(trial, environment, str(path), "dev.txt", *["--no-compile"] * briefly)
            started = time.perf_counter()
            said = _smoke(environment, "core.py", {"model": model, "briefly": briefly})
            trial = replace(trial, outcome=said, smoke_s=time.perf_counter() - started)
            found[name] = environment.files()
            return trial if briefly else _measured(trial, environment, "")
    except ReleaseError as error:
        return replace(trial, outcome="FAILED", problem=str(error))


def same_files(found: Mapping[str, Mapping[str, str]]) -> Trial:
    """The wheel, and what pip makes of the source distribution, put the same files into an environment."""
    one, other = found.get("wheel", {}), found.get("sdist", {})
    differ = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
    if differ or not one:
        return Trial("wheel = sdist", "FAILED", problem=f"they install different files: {', '.join(differ[:10])}")
    return Trial("wheel = sdist", f"the same {len(one)} files installed by both")


def try_extra(name: str, wheel: Path, place: Path, model: str) -> Trial:
    """One extra alone; all parts of `all` in one environment."""
    extra, trial = EXTRAS[name], Trial(f"`{name}`", "")
    parts = [part for part in EXTRAS if part not in ALONE] if name == "all" else [name]
    try:
        with fresh(name, place) as environment:
            trial = _installed(trial, environment, f"{wheel}[{name}]", extra.pins)
            trial = _measured(trial, environment, extra.imports)
            started = time.perf_counter()
            said = [_part(environment, part, model) for part in parts]
            taken = time.perf_counter() - started
    except ReleaseError as error:
        return replace(trial, outcome="FAILED", problem=str(error))
    untried = [one for one in said if one.startswith("NOT TRIED")]
    if name == "all":
        done = f"{len(parts) - len(untried)} of its {len(parts)} parts tried, as above"
        said = [done, *untried]
    return replace(trial, outcome="; ".join(said), smoke_s=taken)


def try_twine(built: Built, place: Path) -> Trial:
    """What the index itself would say of the two files."""
    try:
        with fresh("twine", place) as environment:
            seconds = install(environment, "twine", pins=None)
            started = time.perf_counter()
            environment.run("-m", "twine", "check", "--strict", built.sdist, built.wheel)
            return Trial(
                "twine (not ours)",
                "`twine check --strict` passed both",
                packages=len(environment.packages()),
                megabytes=environment.megabytes(),
                install_s=seconds,
                smoke_s=time.perf_counter() - started,
            )
    except ReleaseError as error:
        return Trial("twine (not ours)", "FAILED", problem=str(error))


def try_sbom(sbom: Path, place: Path) -> Trial:
    """CycloneDX's own library validates the bill of materials against its schema."""
    try:
        with fresh("sbom", place) as environment:
            seconds = install(environment, "cyclonedx-python-lib[json-validation]", pins=None)
            environment.run("-c", VALIDATE, sbom)
            count = len(json.loads(sbom.read_text())["components"])
            return Trial("SBOM (CycloneDX)", f"valid, {count} packages, the same bytes twice", install_s=seconds)
    except ReleaseError as error:
        return Trial("SBOM (CycloneDX)", "FAILED", problem=str(error))


def _part(environment: Fresh, extra: str, model: str) -> str:
    with ExitStack() as stack:
        try:
            given = dict(stack.enter_context(surroundings(extra)))
        except Missing as reason:
            return f"NOT TRIED: {extra} is installed and imported, but {reason}"
        variables = given.pop("variables", {})
        return _smoke(environment, EXTRAS[extra].program, {"extra": extra, "model": model, **given}, variables)


def _smoke(
    environment: Fresh, program: str, given: Mapping[str, Any], variables: Mapping[str, str] | None = None
) -> str:
    # Isolated: neither the program's folder nor ours is on the path, as with the command that pip wrote.
    said = environment.run("-I", PROGRAMS / program, json.dumps(given), deadline=SMOKE_S, variables=variables)
    return said.strip().splitlines()[-1]


def _installed(trial: Trial, environment: Fresh, what: str, pins: str, *words: str) -> Trial:
    seconds = install(environment, what, PINS / pins, *words)
    return replace(trial, install_s=seconds, packages=len(environment.packages()))


def _measured(trial: Trial, environment: Fresh, imports: str) -> Trial:
    own = environment.seconds_to(f"import {imports}") if imports else None
    return replace(
        trial,
        import_s=environment.seconds_to("import hermes_rl"),
        own_import_s=own,
        megabytes=environment.megabytes(),
    )
