"""The software bill of materials of a release: CycloneDX 1.6 as JSON, of the wheel with every extra.

Always true: packages are those that pip resolves under `constraints/`, each with its version, licence and the hash of
its file; the same commit gives the same bytes; no index is named. `atropos` is left out: it is installed alone, at its
own versions.
"""

import json
import re
import subprocess
import sys
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from scripts.release.building import ROOT, Built, ReleaseError, sha256

NAME = "hermes-rl"
RESOLVED = "all,ray"
DEADLINE_S = 1800.0
NAMESPACE = uuid.UUID("6f2a1d5e-2f60-5c1e-9a43-0d6a3d0b7e11")
SPEC = "1.6"

Item = Mapping[str, Any]


def write_sbom(built: Built, work: Path) -> Path:
    """Make it twice; a difference is an error."""
    first, second = (make(resolve(built.wheel), built) for _ in range(2))
    if first != second:
        raise ReleaseError("the bill of materials is not the same when it is made again; did the index change?")
    path = work / f"{built.wheel.name.partition('-py3')[0]}.cdx.json"
    path.write_text(first)
    return path


def resolve(wheel: Path) -> dict[str, Any]:
    """The report of pip on what it would install; nothing is installed."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--dry-run"]
    command += ["--ignore-installed", "--report", "-", "-c", str(ROOT / "constraints" / "dev.txt")]
    done = subprocess.run(
        [*command, f"{wheel}[{RESOLVED}]"], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    if done.returncode:
        raise ReleaseError(f"pip cannot resolve {wheel.name}[{RESOLVED}]: {done.stderr[-2000:]}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def make(report: Mapping[str, Any], built: Built) -> str:
    items = {normal(item["metadata"]["name"]): item for item in report["install"]}
    ours = items.pop(NAME)
    environment = dict(report["environment"])
    extras = sorted({*ours["metadata"].get("provides_extra", ()), ""} - {"all", "atropos"})
    reached = {extra: reach(ours, items, environment, extra) for extra in extras}
    components = [
        component(
            name, item, required=name in reached[""], extras=[one for one in extras if one and name in reached[one]]
        )
        for name, item in sorted(items.items())
    ]
    version = str(ours["metadata"]["version"])
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC,
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(built.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {
                "type": "library",
                "bom-ref": purl(NAME, version),
                "name": NAME,
                "version": version,
                "purl": purl(NAME, version),
                "licenses": [{"license": {"id": "Apache-2.0"}}],
                "hashes": [{"alg": "SHA-256", "content": sha256(built.wheel)}],
            },
            "properties": [
                {"name": "hermes-rl:commit", "value": built.commit},
                {"name": "hermes-rl:python", "value": environment["python_full_version"]},
                {
                    "name": "hermes-rl:platform",
                    "value": f"{environment['sys_platform']} {environment['platform_machine']}",
                },
            ],
        },
        "components": components,
        "dependencies": [
            {
                "ref": ref(name, item),
                "dependsOn": sorted(ref(one, all_items[one]) for one in needs(item, all_items, environment)),
            }
            for all_items in [{**items, NAME: ours}]
            for name, item in sorted(all_items.items())
        ],
    }
    # An identity of its own for each content, and the same for the same.
    document["serialNumber"] = f"urn:uuid:{uuid.uuid5(NAMESPACE, json.dumps(document, sort_keys=True))}"
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def component(name: str, item: Item, *, required: bool, extras: list[str]) -> dict[str, Any]:
    about = item["metadata"]
    digest = item["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
    if digest is None:
        raise ReleaseError(f"pip's report has no hash of {name} {about['version']}")
    return {
        "type": "library",
        "bom-ref": ref(name, item),
        "name": name,
        "version": about["version"],
        "purl": purl(name, about["version"]),
        "scope": "required" if required else "optional",
        "hashes": [{"alg": "SHA-256", "content": digest}],
        **({"licenses": [{"license": {"name": licence}}]} if (licence := licence_of(about)) else {}),
        **({"properties": [{"name": "hermes-rl:extra", "value": one} for one in extras]} if extras else {}),
    }


def licence_of(about: Mapping[str, Any]) -> str | None:
    """The expression, else the classifiers, else the first line of the free text."""
    if expression := about.get("license_expression"):
        return str(expression)
    classified = [one.rpartition(" :: ")[2] for one in about.get("classifier", ()) if one.startswith("License :: ")]
    text = (about.get("license") or "").strip().splitlines()
    return " AND ".join(classified) or (text[0][:100] if text else None)


def reach(ours: Item, items: Mapping[str, Item], environment: Mapping[str, str], extra: str) -> set[str]:
    """What hermes-rl brings with this extra, or without any."""
    found: set[str] = set()
    waiting = [one for one in needs(ours, items, environment, [extra]) if one in items]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += needs(items[name], items, environment)
    return found


def needs(
    item: Item, items: Mapping[str, Item], environment: Mapping[str, str], extras: Iterable[str] | None = None
) -> set[str]:
    """The packages that this one asks for here."""
    chosen = ["", *(item.get("requested_extras", ()) if extras is None else extras)]
    found = set()
    for text in item["metadata"].get("requires_dist", ()):
        asked = Requirement(text)
        holds = asked.marker is None or any(asked.marker.evaluate({**environment, "extra": extra}) for extra in chosen)
        if holds and normal(asked.name) in items and normal(asked.name) != normal(item["metadata"]["name"]):
            found.add(normal(asked.name))
    return found


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def purl(name: str, version: str) -> str:
    return f"pkg:pypi/{name}@{version.replace('+', '%2B')}"


def ref(name: str, item: Item) -> str:
    return purl(name, str(item["metadata"]["version"]))
