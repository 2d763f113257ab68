"""Discovery without running anything says what running everything would: over generated trees of files and classes."""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_rl.environment.loading.loader import environment_classes
from hermes_rl.orchestration.discovery.discover import discover
from tests.orchestration.discovery.writing import METHODS, written

ROOTS = [
    ("from hermes_rl import HermesAgentBaseEnv", "HermesAgentBaseEnv"),
    ("import hermes_rl.environment.base as hb", "hb.HermesAgentBaseEnv"),
    ("from environments.hermes_base_env import HermesAgentBaseEnv as Seed", "Seed"),
    ("", "object"),
]


@st.composite
def folders(draw: st.DrawFn) -> dict[str, str]:
    """A few files, in a package or not; each class derives from a root, or from earlier classes by some import."""
    count = draw(st.integers(1, 5))
    inside = draw(st.booleans())
    earlier: list[tuple[int, str]] = []
    files: dict[str, str] = {"pkg/__init__.py": ""} if inside else {}
    for number in range(count):
        imports, bodies = list[str](), list[str]()
        for index in range(draw(st.integers(0, 3))):
            name = f"C{number}_{index}"
            bases = [_base(draw, number, place, imports, inside) for place in _parents(draw, earlier)]
            if not bases:
                line, base = draw(st.sampled_from(ROOTS))
                imports.append(line)
                bases = [base]
            body = METHODS if draw(st.booleans()) else "    pass\n"
            if draw(st.booleans()):
                body += f"    name = {draw(st.sampled_from(['x', 'y', 'z']))!r}\n"
            bodies.append(f"class {name}({', '.join(bases)}):{body if body.startswith(chr(10)) else chr(10) + body}")
            earlier.append((number, name))
        files[f"{'pkg/' if inside else ''}m{number}.py"] = "\n".join([*imports, *bodies]) + "\n"
    return files


def _parents(draw: st.DrawFn, earlier: list[tuple[int, str]]) -> list[tuple[int, str]]:
    # Later ones first, which is an order that Python's linearization accepts most of the time.
    return sorted(draw(st.lists(st.sampled_from(earlier), max_size=2, unique=True)), reverse=True) if earlier else []


def _base(draw: st.DrawFn, number: int, place: tuple[int, str], imports: list[str], inside: bool) -> str:
    other, name = place
    if other == number:
        return name
    ways = [
        (f"from m{other} import {name} as X{name}", f"X{name}"),
        (f"import m{other} as n{other}", f"n{other}.{name}"),
    ]
    if inside:
        ways = [
            (f"from .m{other} import {name}", name),
            (f"from . import m{other} as n{other}", f"n{other}.{name}"),
            (f"from pkg.m{other} import {name} as X{name}", f"X{name}"),
            (f"import pkg.m{other}", f"pkg.m{other}.{name}"),
        ]
    line, base = draw(st.sampled_from(ways))
    imports.append(line)
    return base


@settings(max_examples=40, deadline=None)
@given(folders())
def test_what_is_found_is_what_the_loader_has(files: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = written(Path(place).resolve(), files)
        discovery = discover([folder])
        if any("consistent" in broken.why for broken in discovery.broken):
            return
        truth = {
            (str(file), name): cls.name or file.stem
            for file in sorted(folder.rglob("m*.py"))
            for name, cls in environment_classes(file).items()
        }
    found = {(str(one.file), one.class_name): one.name.partition(".")[0] for one in discovery.found}
    assert found == truth
