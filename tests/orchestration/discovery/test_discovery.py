"""Which classes are environments: by any way of importing, any depth of inheritance, and by no other sign."""

import os
from pathlib import Path

import pytest

from hermes_rl.environment.loading.loader import bundled_environments, load_environment
from hermes_rl.orchestration.discovery.discover import discover
from hermes_rl.orchestration.discovery.types import Discovery, EnvironmentSource
from tests.orchestration.discovery.writing import written

OURS = "from hermes_rl import HermesAgentBaseEnv\n"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HERMES_RL_ENVIRONMENTS", raising=False)


def names(discovery: Discovery) -> list[str]:
    return [one.name for one in discovery.found]


def classes(discovery: Discovery) -> set[str]:
    return {one.class_name for one in discovery.found}


def test_the_bundled_environments_are_found_as_the_loader_has_them() -> None:
    found = discover().found
    assert {one.name: one.file for one in found} == bundled_environments()
    assert {one.source for one in found} == {EnvironmentSource.BUNDLED}
    assert all(one.description and one.kind == "hermes" for one in found)


def test_an_id_is_the_name_and_the_beginning_of_the_files_hash(tmp_path: Path) -> None:
    import hashlib

    written(tmp_path, {"one_env.py": f"{OURS}class One(HermesAgentBaseEnv):\n    METHODS\n"})
    (one,) = discover([tmp_path]).found
    assert one.id == f"one@{hashlib.sha256((tmp_path / 'one_env.py').read_bytes()).hexdigest()[:8]}"
    assert one.reference == f"{tmp_path / 'one_env.py'}:One"


@pytest.mark.parametrize(
    ("imports", "base", "kind"),
    [
        ("from hermes_rl import HermesAgentBaseEnv", "HermesAgentBaseEnv", "hermes"),
        ("from hermes_rl import HermesAgentBaseEnv as Base", "Base", "hermes"),
        ("import hermes_rl", "hermes_rl.HermesAgentBaseEnv", "hermes"),
        ("import hermes_rl as h", "h.HermesAgentBaseEnv", "hermes"),
        ("import hermes_rl.environment", "hermes_rl.environment.HermesAgentBaseEnv", "hermes"),
        ("import hermes_rl.environment.base as b", "b.HermesAgentBaseEnv", "hermes"),
        ("from hermes_rl import environment", "environment.HermesAgentBaseEnv", "hermes"),
        ("from hermes_rl.environment.base import *", "HermesAgentBaseEnv", "hermes"),
        ("from environments.hermes_base_env import HermesAgentBaseEnv", "HermesAgentBaseEnv", "hermes"),
        ("from environments.hermes_base_env import BaseEnv as B", "B", "hermes"),
        ("import environments.hermes_base_env as base", "base.HermesAgentBaseEnv", "hermes"),
        ("import environments.hermes_base_env", "environments.hermes_base_env.HermesAgentBaseEnv", "hermes"),
        ("from environments import hermes_base_env as e", "e.HermesAgentBaseEnv", "hermes"),
        ("from atroposlib.envs.base import BaseEnv", "BaseEnv", "atropos"),
        ("from atroposlib.envs import base", "base.BaseEnv", "atropos"),
        ("import atroposlib.envs.base as ab", "ab.BaseEnv", "atropos"),
        ("import typing\nfrom hermes_rl import HermesAgentBaseEnv\nBase = HermesAgentBaseEnv", "Base", "hermes"),
        ("from hermes_rl import HermesAgentBaseEnv\nclass G(HermesAgentBaseEnv): pass", "G[int]", "hermes"),
    ],
)
def test_the_base_class_is_known_by_every_name_it_has(tmp_path: Path, imports: str, base: str, kind: str) -> None:
    body = "    METHODS\n    async def get_next_item(self): ...\n    async def collect_trajectories(self, item): ...\n"
    written(tmp_path, {"my_env.py": f"{imports}\nclass Mine({base}):\n{body}"})
    (one,) = discover([tmp_path]).found
    assert (one.name, one.class_name, one.kind) == ("my", "Mine", kind)


@pytest.mark.parametrize(
    "text",
    [
        "class BaseEnv: ...\nclass Mine(BaseEnv):\n    METHODS\n",
        "from hermes_rl import HermesAgentEnvConfig\nclass Config(HermesAgentEnvConfig): ...\n",
        f"{OURS}HermesAgentBaseEnv = object\nclass Mine(HermesAgentBaseEnv):\n    METHODS\n",
        f"{OURS}def make():\n    class Mine(HermesAgentBaseEnv): ...\n    return Mine\n",
        f"{OURS}class Mine(HermesAgentBaseEnv):\n    METHODS\nMine = 3\n",
        f"{OURS}class Mine(HermesAgentBaseEnv):\n    METHODS\ndel Mine\n",
        f"{OURS}if __name__ == '__main__':\n    class Mine(HermesAgentBaseEnv): ...\n",
        ("import typing\nBase = object\nif typing.TYPE_CHECKING:\n    from hermes_rl import HermesAgentBaseEnv as Base"
         "\nclass Mine(Base): ...\n"),
        "text = '''class Mine(HermesAgentBaseEnv): ...'''\n",
    ],
)  # fmt: skip
def test_what_only_looks_like_an_environment_is_none(tmp_path: Path, text: str) -> None:
    written(tmp_path, {"my_env.py": text})
    assert discover([tmp_path]) == Discovery((), ())


def test_an_import_with_a_fallback_counts(tmp_path: Path) -> None:
    text = """
    try:
        from hermes_rl import HermesAgentBaseEnv
    except ImportError:
        HermesAgentBaseEnv = object
    class Mine(HermesAgentBaseEnv):
        METHODS
    """
    assert classes(discover([written(tmp_path, {"a.py": text})])) == {"Mine"}


def test_intermediate_classes_of_other_files_are_followed(tmp_path: Path) -> None:
    written(
        tmp_path,
        {
            "root_base.py": "import hermes_rl\nclass Root(hermes_rl.HermesAgentBaseEnv):\n    name = 'rooted'\n",
            "middle.py": "import root_base as r\nclass Middle(r.Root):\n    METHODS\n    name: str = 'middle'\n",
            "leaf_env.py": "from middle import Middle as M\nclass Leaf(M):\n    pass\n",
            "pkg/__init__.py": "from .inner import Inner\n",
            "pkg/inner.py": "from hermes_rl import HermesAgentBaseEnv\nclass Inner(HermesAgentBaseEnv):\n    pass\n",
            "pkg/sub/__init__.py": "",
            "pkg/sub/relative_env.py": "from ..inner import Inner\nclass Relative(Inner):\n    METHODS\n",
            "pkg/sub/absolute_env.py": "from pkg import Inner\nclass Absolute(Inner):\n    METHODS\n",
            "uses_package_env.py": "import pkg.inner\nclass Uses(pkg.inner.Inner):\n    METHODS\n",
            "star_env.py": "from pkg.inner import *\nclass Star(Inner):\n    METHODS\n",
        },
    )
    discovery = discover([tmp_path])
    assert classes(discovery) == {"Middle", "Leaf", "Relative", "Absolute", "Uses", "Star"}
    assert discovery.broken == ()


def test_everything_that_is_found_can_be_loaded(tmp_path: Path) -> None:
    test_intermediate_classes_of_other_files_are_followed(tmp_path)
    for one in discover([tmp_path]).found:
        assert load_environment(one.reference).__name__ == one.class_name


def test_files_that_import_each_other_in_a_circle_end(tmp_path: Path) -> None:
    written(
        tmp_path,
        {
            "a.py": "from b import B\nclass A(B): ...\n",
            "b.py": "from a import A\nclass B(A): ...\n",
            "c.py": "from d import *\nclass C(Missing): ...\n",
            "d.py": "from c import *\n",
            "e.py": "from e import E\nclass F(E): ...\n",
        },
    )
    assert discover([tmp_path]).found == ()


def test_the_name_is_the_attribute_else_that_of_the_file(tmp_path: Path) -> None:
    written(
        tmp_path,
        {
            "one_env.py": f"{OURS}class A(HermesAgentBaseEnv):\n    METHODS\n    name = 'said'\n",
            "two_env.py": "from one_env import A\nclass B(A):\n    name = None\n",
            "three_env.py": f"{OURS}NAME = 'constant'\nclass C(HermesAgentBaseEnv):\n    METHODS\n    name = NAME\n",
            "four.py": f"{OURS}class D(HermesAgentBaseEnv):\n    METHODS\n    name = 'odd / na:me@1'\n",
            "five/__init__.py": f"{OURS}class E(HermesAgentBaseEnv):\n    METHODS\n",
            "six_env.py": f"{OURS}class F(HermesAgentBaseEnv):\n    METHODS\n    name = ''.join('six')\n",
        },
    )
    found = {one.class_name: one.name for one in discover([tmp_path]).found}
    assert found == {"A": "said", "B": "two", "C": "constant", "D": "odd_na_me_1", "E": "five", "F": "six"}


def test_the_inherited_name_is_the_one_python_would_find(tmp_path: Path) -> None:
    text = f"""{OURS}
class _Top(HermesAgentBaseEnv):
    METHODS
    name = 'top'
class _Left(_Top): ...
class _Right(_Top):
    name = 'right'
class Bottom(_Left, _Right): ...
"""
    written(tmp_path, {"diamond.py": text})
    assert names(discover([tmp_path])) == ["right"]


def test_a_name_that_the_base_class_hides_is_not_the_inherited_one(tmp_path: Path) -> None:
    text = f"{OURS}class Plain:\n    name = 'plain'\nclass Mine(HermesAgentBaseEnv, Plain):\n    METHODS\n"
    (found,) = discover([written(tmp_path, {"a.py": text})]).found
    assert found.name == "a"


def test_classes_that_are_bases_of_others_only_are_not_listed(tmp_path: Path) -> None:
    text = f"""
import abc
from abc import ABC, abstractmethod
{OURS}
class Unfinished(HermesAgentBaseEnv): ...
class _Hidden(HermesAgentBaseEnv):
    METHODS
class Marked(HermesAgentBaseEnv, ABC):
    METHODS
class Meta(HermesAgentBaseEnv, metaclass=abc.ABCMeta):
    METHODS
class Own(HermesAgentBaseEnv):
    METHODS
    @abstractmethod
    def more(self): ...
class Whole(Unfinished):
    METHODS
class More(Own):
    def more(self): ...
class FromHidden(_Hidden): ...
"""
    discovery = discover([written(tmp_path, {"a.py": text})])
    assert classes(discovery) == {"Whole", "More", "FromHidden"}
    assert discovery.broken == ()


def test_a_class_that_lacks_a_method_is_told_with_its_line(tmp_path: Path) -> None:
    written(tmp_path, {"a.py": f"{OURS}class Half(HermesAgentBaseEnv):\n    def format_prompt(self, item): ...\n"})
    discovery = discover([tmp_path])
    assert discovery.found == ()
    (broken,) = discovery.broken
    assert broken.line == 2
    assert "class Half lacks compute_reward" in broken.why


@pytest.mark.parametrize("base", ["object", "Exception", "dict[str, int]"])
def test_a_class_that_lacks_a_method_is_told_when_a_base_of_it_derives_from_one_of_pythons_own(
    tmp_path: Path, base: str
) -> None:
    text = f"{OURS}class Mixin({base}): ...\nclass Half(Mixin, HermesAgentBaseEnv): ...\n"
    discovery = discover([written(tmp_path, {"a.py": text})])
    assert discovery.found == ()
    assert [broken.why.partition(";")[0] for broken in discovery.broken] == [
        "class Half lacks format_prompt and compute_reward"
    ]


def test_an_environment_with_several_agents_needs_the_methods_of_its_own_base(tmp_path: Path) -> None:
    text = "from hermes_rl import HermesMultiAgentEnv\nclass Duel(HermesMultiAgentEnv):\n    seats = ('a', 'b')\n"
    written(tmp_path, {"duel_env.py": text})
    (broken,) = discover([tmp_path]).broken
    assert "class Duel lacks compute_seat_rewards and seat_prompt" in broken.why


def test_a_text_game_needs_no_prompt_and_no_reward(tmp_path: Path) -> None:
    text = "from hermes_rl import TextGameEnv\nclass Maze(TextGameEnv):\n    game = object\n"
    written(tmp_path, {"maze_env.py": text})
    assert classes(discover([tmp_path])) == {"Maze"}


def test_an_unknown_base_gets_the_benefit_of_the_doubt(tmp_path: Path) -> None:
    text = f"Mixin = make()\n{OURS}class Mine(Mixin, HermesAgentBaseEnv): ...\n"
    assert classes(discover([written(tmp_path, {"a.py": text})])) == {"Mine"}


def test_a_base_class_that_is_nowhere_is_told(tmp_path: Path) -> None:
    written(tmp_path, {"a.py": "from tinker_atropos.base import BaseEnv\nclass Mine(BaseEnv): ...\n"})
    (broken,) = discover([tmp_path]).broken
    assert "class Mine derives from tinker_atropos.base.BaseEnv, which is neither installed nor next to" in broken.why


def test_names_that_several_have_are_told_apart(tmp_path: Path) -> None:
    same = f"{OURS}class Twin(HermesAgentBaseEnv):\n    METHODS\n    name = 'twin'\n"
    both = f"{same}class Other(HermesAgentBaseEnv):\n    METHODS\n    name = 'twin'\n"
    discovery = discover([written(tmp_path, {"a.py": same, "b.py": same, "c.py": both.replace("'twin'", "'pair'")})])
    assert names(discovery) == ["pair.Other", "pair.Twin", "twin.a.Twin", "twin.b.Twin"]
    assert [note.split(":")[0] for note in discovery.notes] == [
        "2 environments are named 'pair'",
        "2 environments are named 'twin'",
    ]


def test_a_bundled_environment_keeps_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, {"gsm8k_env.py": f"{OURS}class Fake(HermesAgentBaseEnv):\n    METHODS\n"})
    monkeypatch.setenv("HERMES_RL_ENVIRONMENTS", str(tmp_path))
    found = {one.name: one for one in discover().found}
    assert found["gsm8k"].source is EnvironmentSource.BUNDLED
    assert found["gsm8k.Fake"].source is EnvironmentSource.USER


def test_a_change_is_seen_at_once_even_within_one_tick_of_the_clock(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    written(tmp_path, {"a.py": f"{OURS}class A(HermesAgentBaseEnv):\n    METHODS\n    name = 'aa'\n"})
    before, status = discover([tmp_path]).found[0], file.stat()
    file.write_text(file.read_text().replace("'aa'", "'bb'"))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    after = discover([tmp_path]).found[0]
    assert (before.name, after.name) == ("aa", "bb")
    assert before.version != after.version


def test_a_new_and_a_removed_file_are_seen_at_once(tmp_path: Path) -> None:
    assert discover([tmp_path]).found == ()
    written(tmp_path, {"deep/er/a_env.py": f"{OURS}class A(HermesAgentBaseEnv):\n    METHODS\n"})
    assert names(discover([tmp_path])) == ["a"]
    (tmp_path / "deep/er/a_env.py").unlink()
    assert discover([tmp_path]).found == ()


def test_no_file_is_ever_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "mark"
    acts = f"from pathlib import Path\nPath({str(mark)!r}).touch()\n"
    written(
        tmp_path / "e",
        {
            "base.py": f"{acts}{OURS}class Base(HermesAgentBaseEnv): ...\n",
            "a_env.py": f"{acts}from base import Base\nclass A(Base):\n    METHODS\nraise SystemExit\n",
            "pkg/__init__.py": f"{acts}from .b import *\n",
            "pkg/b.py": f"{acts}from base import Base\nclass B(__import__('base').Base): ...\n",
        },
    )
    monkeypatch.syspath_prepend(str(tmp_path / "e"))
    assert names(discover([tmp_path / "e"])) == ["a"]
    assert not mark.exists()
