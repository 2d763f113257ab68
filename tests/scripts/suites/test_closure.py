"""What a test depends on is read from its source: imports, processes it starts, files it names."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.suites.closure import Checkout

ROOT = Path(__file__).parents[3]
Written = Callable[[dict[str, str]], Checkout]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    def write(files: dict[str, str]) -> Checkout:
        for path, text in files.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
        return Checkout(tmp_path)

    return write


def needs(checkout: Checkout, path: str) -> set[str]:
    return checkout.closure([path]) - {path}


def test_imports_are_followed_inside_functions_and_through_other_modules(written: Written) -> None:
    checkout = written({
        "tests/test_a.py": "def test():\n    from hermes_rl.b import x\n",
        "src/hermes_rl/__init__.py": "",
        "src/hermes_rl/b.py": "from . import c\n",
        "src/hermes_rl/c.py": "",
        "src/hermes_rl/d.py": "",
    })  # fmt: skip
    assert needs(checkout, "tests/test_a.py") == {f"src/hermes_rl/{name}.py" for name in ("__init__", "b", "c")}


def test_an_import_for_type_checkers_is_no_dependency(written: Written) -> None:
    checkout = written({
        "src/hermes_rl/__init__.py": "",
        "src/hermes_rl/a.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from hermes_rl import b\n",
        "src/hermes_rl/b.py": "",
    })  # fmt: skip
    assert needs(checkout, "src/hermes_rl/a.py") == set()


def test_a_name_that_a_package_loads_when_used_leads_to_its_module(written: Written) -> None:
    checkout = written({
        "tests/test_a.py": "from hermes_rl import Late\n",
        "src/hermes_rl/__init__.py": "if TYPE_CHECKING:\n    from hermes_rl.late import Late\n    import hermes_rl.b\n",
        "src/hermes_rl/late.py": "",
        "src/hermes_rl/b.py": "",
    })  # fmt: skip
    assert needs(checkout, "tests/test_a.py") == {"src/hermes_rl/__init__.py", "src/hermes_rl/late.py"}


def test_the_kind_of_an_extension_leads_to_its_built_in_parts(written: Written) -> None:
    checkout = written({
        "tests/test_a.py": "from hermes_rl.extensions import PARSERS\n",
        "tests/test_all.py": "from hermes_rl.extensions import KINDS\n",
        "src/hermes_rl/__init__.py": "",
        "src/hermes_rl/extensions.py": (
            "PARSERS = Kind(_below('parsers', {'qwen': 'qwen:Qwen'}))\n"
            "SINKS = Kind(_below('sinks', {'csv': 'csv:Csv'}))\n"
            "KINDS = (PARSERS, SINKS)\n"
        ),
        "src/hermes_rl/parsers/__init__.py": "",
        "src/hermes_rl/parsers/qwen.py": "",
        "src/hermes_rl/sinks/__init__.py": "",
        "src/hermes_rl/sinks/csv.py": "",
    })  # fmt: skip
    assert "src/hermes_rl/parsers/qwen.py" in needs(checkout, "tests/test_a.py")
    assert "src/hermes_rl/sinks/csv.py" not in needs(checkout, "tests/test_a.py")
    assert {"src/hermes_rl/parsers/qwen.py", "src/hermes_rl/sinks/csv.py"} <= needs(checkout, "tests/test_all.py")


@pytest.mark.parametrize(
    "source",
    [
        "command = [python, '-m', 'hermes_rl', 'api', '--json']\n",
        "start = [python, '-m', 'hermes_rl']\nwords = ['api']\n",
    ],
)
def test_a_command_that_is_started_needs_its_verb(written: Written, source: str) -> None:
    checkout = written({
        "tests/test_a.py": source,
        "src/hermes_rl/__init__.py": "",
        "src/hermes_rl/__main__.py": "",
        "src/hermes_rl/cli/__init__.py": "",
        "src/hermes_rl/cli/api.py": "",
        "src/hermes_rl/cli/view.py": "",
        "environments/words.py": "",
    })  # fmt: skip
    assert "src/hermes_rl/cli/api.py" in needs(checkout, "tests/test_a.py")
    assert "src/hermes_rl/cli/view.py" not in needs(checkout, "tests/test_a.py")


def test_a_command_whose_verb_is_not_in_the_source_needs_everything(written: Written) -> None:
    checkout = written({
        "tests/test_a.py": "command = [python, '-m', 'hermes_rl', *words]\n",
        "src/hermes_rl/__init__.py": "",
        "src/hermes_rl/cli/view.py": "",
        "environments/words.py": "",
    })  # fmt: skip
    assert needs(checkout, "tests/test_a.py") == checkout.files - {"tests/test_a.py"}


@pytest.mark.parametrize(
    "source", ["RUN = ROOT / 'scripts' / 'run.sh'\n", "f'{ROOT}/scripts/run.sh'\n", "x = 'scripts/run.sh'\n"]
)
def test_a_file_that_is_named_counts_and_so_does_what_a_script_names(written: Written, source: str) -> None:
    checkout = written({
        "tests/test_a.py": f"value = [{source.removeprefix('RUN = ').removeprefix('x = ').strip()}]\n",
        "scripts/run.sh": "#!/bin/bash\n# tests/test_b.py\ncat constraints/dev.txt\npython -m tests.support.model\n",
        "constraints/dev.txt": "",
        "tests/support/model.py": "",
        "tests/test_b.py": "",
    })  # fmt: skip
    assert needs(checkout, "tests/test_a.py") == {"scripts/run.sh", "constraints/dev.txt", "tests/support/model.py"}


@pytest.mark.parametrize(("source", "needed"), [("ROOT / 'README.md'\n", True), ("folder / 'README.md'\n", False)])
def test_a_file_of_the_root_counts_only_when_the_root_is_named(written: Written, source: str, needed: bool) -> None:
    checkout = written({"tests/test_a.py": f"value = {source}", "README.md": ""})
    assert needs(checkout, "tests/test_a.py") == ({"README.md"} if needed else set())


def test_fixtures_above_a_test_and_data_beside_a_module_count(written: Written) -> None:
    checkout = written({
        "tests/conftest.py": "",
        "tests/deep/test_a.py": "import hermes_rl.pages\n",
        "src/hermes_rl/__init__.py": "",
        "src/hermes_rl/pages/__init__.py": "",
        "src/hermes_rl/pages/static/app.js": "",
        "src/hermes_rl/pages/inner/__init__.py": "",
        "src/hermes_rl/pages/inner/data.json": "",
    })  # fmt: skip
    found = needs(checkout, "tests/deep/test_a.py")
    assert {"tests/conftest.py", "src/hermes_rl/pages/static/app.js"} <= found
    assert "src/hermes_rl/pages/inner/data.json" not in found


def test_a_declared_path_that_names_nothing_is_an_error(written: Written) -> None:
    with pytest.raises(ValueError, match="tests/gone names no file"):
        written({"tests/test_a.py": ""}).expand(["tests/gone"])


def test_sandbox_tests_of_this_checkout_do_not_depend_on_training() -> None:
    found = Checkout(ROOT).closure(["tests/sandbox/backends/test_docker.py"])
    assert "src/hermes_rl/sandbox/backends/docker.py" in found
    assert not [path for path in found if path.startswith("src/hermes_rl/training/")]
