"""scripts/release: the bill of materials and the audit, from reports of pip and pip-audit."""

import json
from pathlib import Path
from typing import Any

import pytest
from packaging.markers import default_environment

from scripts.release.audit import Audited, judged, read
from scripts.release.building import Built, ReleaseError
from scripts.release.sbom import make

DIGEST = "a" * 64


def item(name: str, *requires: str, extras: tuple[str, ...] = (), **about: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "version": "1.0", "requires_dist": list(requires), **about},
        "requested_extras": list(extras),
        "download_info": {"url": "https://index.example/file.whl", "archive_info": {"hashes": {"sha256": DIGEST}}},
    }


OURS = item(
    "hermes-rl",
    "Core_Part",
    "web-part; extra == 'web'",
    "never; python_version < '3'",
    "hermes-rl[web]; extra == 'all'",
    extras=("all",),
    provides_extra=["web", "all", "atropos"],
)
INSTALL = [
    item("core.part", "below[fast]", classifier=["License :: OSI Approved :: MIT License"]),
    item("below", "fast; extra == 'fast'", extras=("fast",), license_expression="BSD-3-Clause"),
    item("fast", license="A licence\nof many lines"),
    item("web-part", "below"),
    OURS,
]


@pytest.fixture
def built(tmp_path: Path) -> Built:
    wheel = tmp_path / "hermes_rl-1.0-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    return Built(wheel, wheel, "c" * 40, 0, 1_700_000_000)


def bill(built: Built, install: list[dict[str, Any]]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(make({"install": install, "environment": default_environment()}, built))
    return document


def test_each_package_has_its_version_hash_and_licence(built: Built) -> None:
    components = {one["name"]: one for one in bill(built, INSTALL)["components"]}
    assert sorted(components) == ["below", "core-part", "fast", "web-part"]
    assert components["below"]["purl"] == "pkg:pypi/below@1.0"
    assert components["below"]["hashes"] == [{"alg": "SHA-256", "content": DIGEST}]
    licences = {name: one["licenses"][0]["license"]["name"] for name, one in components.items() if "licenses" in one}
    assert licences == {"below": "BSD-3-Clause", "core-part": "MIT License", "fast": "A licence"}


def test_what_only_an_extra_brings_is_optional_and_names_it(built: Built) -> None:
    components = {one["name"]: one for one in bill(built, INSTALL)["components"]}
    assert {name: one["scope"] for name, one in components.items()} == {
        "below": "required",
        "core-part": "required",
        "fast": "required",
        "web-part": "optional",
    }
    assert components["web-part"]["properties"] == [{"name": "hermes-rl:extra", "value": "web"}]


def test_dependencies_are_those_that_hold_here(built: Built) -> None:
    edges = {one["ref"]: one["dependsOn"] for one in bill(built, INSTALL)["dependencies"]}
    assert edges["pkg:pypi/below@1.0"] == ["pkg:pypi/fast@1.0"]
    assert "pkg:pypi/core-part@1.0" in edges["pkg:pypi/hermes-rl@1.0"]


def test_the_order_of_the_report_changes_no_byte_and_no_index_is_named(built: Built) -> None:
    one, other = (
        make({"install": install, "environment": default_environment()}, built)
        for install in (INSTALL, list(reversed(INSTALL)))
    )
    assert one == other
    assert "index.example" not in one


def test_a_package_without_a_hash_is_no_bill_of_materials(built: Built) -> None:
    bare = {**INSTALL[2], "download_info": {"url": "file:///x", "dir_info": {}}}
    with pytest.raises(ReleaseError, match=r"no hash of fast 1\.0"):
        bill(built, [*INSTALL[:2], bare, *INSTALL[3:]])


# The audit

REPORT = {
    "dependencies": [
        {"name": "a", "version": "1", "vulns": []},
        {"name": "b", "version": "2", "vulns": [{"id": "PYSEC-1"}, {"id": "GHSA-2"}]},
        {"name": "c", "skip_reason": "Dependency not found on PyPI and could not be audited: c (3)"},
    ]
}


def test_a_skipped_package_is_not_audited() -> None:
    assert read(json.dumps(REPORT)) == Audited(2, ("b 2: PYSEC-1", "b 2: GHSA-2"), ("c",))


def test_a_vulnerability_is_a_problem() -> None:
    trial = judged(lambda _: Audited(2, ("b 2: PYSEC-1",), ()))
    assert trial.problem == "osv: b 2: PYSEC-1"


def test_what_the_database_does_not_know_is_said() -> None:
    trial = judged(lambda _: Audited(2, (), ("c",)))
    assert (trial.problem, trial.outcome) == (None, "no known vulnerability in 2 packages (osv); NO DATA on c")


def test_without_an_answer_there_is_no_data_and_no_success() -> None:
    def ask(service: str) -> Audited:
        if service == "osv":
            raise ReleaseError("audit: exit status 1\nConnectionError: no route")
        return Audited(0, (), ("a", "b"))

    trial = judged(ask)
    assert trial.problem is None
    assert trial.outcome == "NO DATA: osv: ConnectionError: no route; pypi: it knows none of the 2 packages"


def test_the_second_service_is_asked_when_the_first_has_no_answer() -> None:
    def ask(service: str) -> Audited:
        if service == "osv":
            raise ValueError("not JSON")
        return Audited(3, (), ())

    assert judged(ask).outcome == "no known vulnerability in 3 packages (pypi)"
