"""scripts/release: the same bytes twice, metadata that is held to the checkout, an extra for every trial."""

import io
import json
import subprocess
import sys
import tarfile
import tomllib
import urllib.request
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scripts.release import trials
from scripts.release.__main__ import table
from scripts.release.building import ReleaseError, build, same
from scripts.release.environments import Fresh, fresh
from scripts.release.metadata import IMPORT_NAMES, problems
from scripts.release.null_model import answer, null_model
from scripts.release.surroundings import Missing
from scripts.release.trials import ALONE, EXTRAS, PROGRAMS, Trial, same_files, try_extra

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SMALL = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "small"
version = "1.0"
requires-python = ">=3.11"
[tool.hatch.build.targets.sdist]
include = ["/small"]
"""


def test_every_extra_has_a_trial() -> None:
    assert set(EXTRAS) == set(PROJECT["optional-dependencies"])


def test_every_trial_has_its_program() -> None:
    assert {PROGRAMS / extra.program for extra in EXTRAS.values() if extra.program} <= set(PROGRAMS.glob("*.py"))


def test_all_is_tried_by_what_it_holds() -> None:
    [held] = PROJECT["optional-dependencies"]["all"]
    assert sorted(held.partition("[")[2].rstrip("]").split(",")) == sorted(set(EXTRAS) - set(ALONE))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A checkout of a small project."""
    root = tmp_path / "root"
    (root / "small").mkdir(parents=True)
    (root / "small" / "__init__.py").write_text("")
    (root / "pyproject.toml").write_text(SMALL)
    git = ["git", "-C", str(root), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        subprocess.run([*git, *words], check=True)
    return root


def test_a_checkout_is_built_to_the_same_bytes_twice(small: Path, tmp_path: Path) -> None:
    built = build(tmp_path / "work", small)
    assert (built.sdist.name, built.wheel.name, built.changed) == ("small-1.0.tar.gz", "small-1.0-py3-none-any.whl", 0)


def test_a_file_that_is_not_committed_is_counted(small: Path, tmp_path: Path) -> None:
    (small / "new.txt").write_text("new")
    assert build(tmp_path / "work", small).changed == 1


def test_one_byte_of_difference_is_told(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(b"a")
    other.write_bytes(b"b")
    with pytest.raises(ReleaseError, match="not the same when it is built again"):
        same(one, other)


def test_outside_a_checkout_nothing_is_built(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="git checkout"):
        build(tmp_path / "work", tmp_path)


def described(**changes: str) -> bytes:
    """The metadata that hatchling writes for this project, as far as it is looked at."""
    from hermes_rl.version import __version__

    lines = {
        "Metadata-Version": "2.4",
        "Name": PROJECT["name"],
        "Version": __version__,
        "Summary": PROJECT["description"],
        "License-Expression": PROJECT["license"],
        "License-File": "LICENSE",
        "Requires-Python": PROJECT["requires-python"],
        "Description-Content-Type": "text/markdown",
        **changes,
    }
    extras = [f"Provides-Extra: {name}" for name in PROJECT["optional-dependencies"]]
    head = [*(f"{name}: {value}" for name, value in lines.items()), *extras]
    return ("\n".join(head) + "\n\n" + (ROOT / "README.md").read_text()).encode()


def distributions(folder: Path, data: bytes, *, stray: str | None = None) -> tuple[Path, Path]:
    from hermes_rl.version import __version__

    top = f"hermes_rl-{__version__}"
    sdist, wheel = folder / f"{top}.tar.gz", folder / f"{top}-py3-none-any.whl"
    files = {f"{top}/{name}": b"x" for name in ("README.md", "LICENSE", "SECURITY.md", "CHANGELOG.md")}
    with tarfile.open(sdist, "w:gz") as archive:
        for name, content in {**files, f"{top}/PKG-INFO": data}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr(f"{top}.dist-info/METADATA", data)
        packed.writestr(f"{top}.dist-info/licenses/LICENSE", "x")
        for name in ("hermes_rl/__init__.py", *IMPORT_NAMES):
            packed.writestr(name, "")
        if stray:
            packed.writestr(stray, "")
    return sdist, wheel


def test_metadata_that_says_what_the_checkout_says_has_no_problem(tmp_path: Path) -> None:
    assert problems(*distributions(tmp_path, described()), ROOT) == []


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("Version", "0.0.9", "its version is 0.0.9"),
        ("License-Expression", "MIT", "no licence"),
        ("Requires-Python", ">=3.8", "which Python"),
        ("Requires-Dist", "x @ file:///x", "by its address"),
    ],
)
def test_metadata_that_says_something_else_is_told_for_both(tmp_path: Path, field: str, value: str, told: str) -> None:
    found = problems(*distributions(tmp_path, described(**{field: value})), ROOT)
    assert len(found) == 2 and all(told in one for one in found), found


def test_a_wheel_that_installs_something_else_too_is_told(tmp_path: Path) -> None:
    found = problems(*distributions(tmp_path, described(), stray="tests/__init__.py"), ROOT)
    assert found == ["the wheel would install tests beside hermes_rl"]


def test_an_environment_is_gone_when_it_is_left(tmp_path: Path) -> None:
    with fresh("a", tmp_path) as environment:
        assert environment.run("-c", "import sys; print(sys.prefix)").strip() == str(environment.home)
    assert list(tmp_path.iterdir()) == []


def test_nothing_of_this_checkout_can_be_imported_there(tmp_path: Path) -> None:
    with fresh("a", tmp_path) as environment, pytest.raises(ReleaseError, match="No module named 'hermes_rl'"):
        environment.run("-c", "import hermes_rl")


def test_what_differs_between_wheel_and_sdist_is_named() -> None:
    trial = same_files({"wheel": {"a": "1", "b": "2"}, "sdist": {"a": "1", "b": "3", "c": "4"}})
    assert trial.problem is not None and trial.problem.endswith("b, c")


@contextmanager
def _installed_nothing(name: str, place: Path) -> Any:
    yield Fresh(name, place, place)


@pytest.fixture
def no_installing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "fresh", _installed_nothing)
    monkeypatch.setattr(trials, "_installed", lambda trial, *_: trial)
    monkeypatch.setattr(trials, "_measured", lambda trial, *_: trial)


@pytest.mark.usefixtures("no_installing")
def test_what_the_machine_does_not_have_is_said_and_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_extra: str) -> Any:
        raise Missing("there is no Chromium")

    monkeypatch.setattr(trials, "surroundings", missing)
    trial = try_extra("browser", Path("x.whl"), tmp_path, "model")
    assert trial.problem is None and trial.outcome.startswith("NOT TRIED: browser") and "Chromium" in trial.outcome


@pytest.mark.usefixtures("no_installing")
def test_a_trial_that_fails_is_a_row_with_its_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_words: Any, **_more: Any) -> str:
        raise ReleaseError("it does not work")

    monkeypatch.setattr(trials, "_smoke", fails)
    trial = try_extra("web", Path("x.whl"), tmp_path, "model")
    assert (trial.outcome, trial.problem) == ("FAILED", "it does not work")


def test_the_null_model_does_what_terminal_test_asks() -> None:
    [call] = answer([{"role": "user", "content": "Echo apple into out.txt"}])["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"command": "echo apple > out.txt"}


def test_the_null_model_answers_over_http() -> None:
    with null_model() as url:
        body = json.dumps({"model": "null", "messages": [{"role": "user", "content": "hello"}]}).encode()
        with urllib.request.urlopen(f"{url}/chat/completions", body, timeout=30) as answered:
            assert json.load(answered)["choices"][0]["message"]["content"] == "done"


def test_the_table_has_a_row_for_each_trial() -> None:
    rows = table([Trial("`web`", "a page", packages=9, own_import_s=0.5), Trial("wheel", "x")]).splitlines()
    assert rows[2].startswith("| `web` | 9 |") and len(rows) == 4


def test_an_extra_that_is_none_is_named_with_those_there_are() -> None:
    asked = [sys.executable, "-m", "scripts.release", "--extras", "web,nothing"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2 and "no extra nothing; there are tokens" in done.stderr
