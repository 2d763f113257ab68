"""Reads a Dockerfile into steps that a script can run, for machines without a container engine.

An instruction either becomes a step, has no effect on a sandbox (`WITHOUT_EFFECT`), or raises UnsupportedError with its
line. Nothing is guessed.
"""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

ROOT = PurePosixPath("/")
# The user is always ours, and a sandbox starts no service of its image.
WITHOUT_EFFECT = {
    "LABEL", "EXPOSE", "MAINTAINER", "CMD", "ENTRYPOINT", "USER", "VOLUME", "STOPSIGNAL", "HEALTHCHECK",
}  # fmt: skip
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_HEREDOC = re.compile(r"<<-?([\"']?)([A-Za-z_]\w*)\1")
_VARIABLE = re.compile(r"\\\$|\$(?:\{(\w+)(?:(:?[-+])([^}]*))?\}|(\w+))")


class UnsupportedError(ValueError):
    """What a task asks for that cannot be done here; the message names it."""


@dataclass(frozen=True, slots=True)
class BuildStep:
    """A command to run in `place`, or a file to copy to it with a mode."""

    place: PurePosixPath
    command: str | None = None
    source: Path | bytes | None = None
    mode: str = "644"


@dataclass
class Build:
    """What a Dockerfile describes: the base image, the steps on it, and the resulting directory and environment."""

    image: str
    cwd: PurePosixPath = ROOT
    steps: list[BuildStep] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    directories: set[PurePosixPath] = field(default_factory=set)
    arguments: dict[str, str] = field(default_factory=dict)
    shell: tuple[str, ...] = ("/bin/sh", "-c")


@dataclass(frozen=True, slots=True)
class _Instruction:
    line: int
    word: str
    rest: str
    documents: tuple[str, ...] = ()


def read_dockerfile(dockerfile: Path) -> Build:
    """Read a Dockerfile; its folder is the build context. UnsupportedError with the line of what cannot be done."""
    build = Build("")
    try:
        text = dockerfile.read_text()
    except UnicodeDecodeError as error:
        raise UnsupportedError(f"{_shown(dockerfile)} is not UTF-8: {error}") from None
    for instruction in _instructions(text):
        try:
            _apply(build, dockerfile.parent, instruction)
        except (UnsupportedError, ValueError) as error:
            where = f"line {instruction.line} of {_shown(dockerfile)}, {instruction.word}"
            raise UnsupportedError(f"{where}: {error}") from None
    if not build.image:
        raise UnsupportedError(f"{_shown(dockerfile)} has no FROM")
    return build


def _shown(dockerfile: Path) -> str:
    return f"{dockerfile.parent.name}/{dockerfile.name}"


def _instructions(text: str) -> Iterator[_Instruction]:
    lines = iter(enumerate(text.splitlines(), 1))
    for number, first in lines:
        if not first.strip() or first.lstrip().startswith("#"):
            continue
        whole, line = "", first
        while line.rstrip().endswith("\\"):
            whole += line.rstrip()[:-1]
            # Comments and empty lines inside a continued instruction are left out, as docker does.
            line = next((one for _, one in lines if one.strip() and not one.lstrip().startswith("#")), "")
        word, _, rest = (whole + line).strip().partition(" ")
        documents = []
        if word.upper() in {"RUN", "COPY", "ADD"} and not rest.startswith("["):
            for _, end in _HEREDOC.findall(rest):
                body = []
                for _, one in lines:
                    if one.strip() == end:
                        break
                    body.append(one)
                else:
                    raise UnsupportedError(f"line {number}: the here-document {end} does not end")
                documents.append("".join(f"{one}\n" for one in body))
        yield _Instruction(number, word.upper(), rest.strip(), tuple(documents))


def _apply(build: Build, context: Path, instruction: _Instruction) -> None:
    word, rest = instruction.word, instruction.rest
    if word not in {"FROM", "ARG"} and not build.image:
        raise UnsupportedError("comes before FROM")
    match word:
        case "FROM":
            _start(build, rest)
        case "ARG":
            for name, _, value in (argument.partition("=") for argument in shlex.split(rest)):
                build.arguments[name] = _expanded(build, value)
        case "WORKDIR":
            build.cwd = build.cwd / _expanded(build, rest).strip("\"'")
            build.directories.add(build.cwd)
        case "ENV":
            build.env |= {name: _expanded(build, value) for name, value in _variables(rest)}
        case "SHELL":
            build.shell = tuple(map(str, json.loads(rest)))
        case "RUN":
            build.steps.append(BuildStep(build.cwd, command=_command(build, instruction)))
        case "COPY" | "ADD":
            build.steps += _copies(build, context, instruction)
        case _ if word not in WITHOUT_EFFECT:
            raise UnsupportedError("this instruction is not supported")


def _start(build: Build, rest: str) -> None:
    if build.image:
        raise UnsupportedError("only one stage is supported")
    words = [word for word in rest.split() if not word.startswith("--platform=")]
    image = _expanded(build, words[0])
    if not image or image.startswith("--"):
        raise UnsupportedError(f"{words[0]!r} is not an image name")
    build.image = image


def _command(build: Build, instruction: _Instruction) -> str:
    options, rest = _options(instruction.rest)
    for option in options:
        if not option.startswith(("--mount=type=cache", "--network=default")):
            raise UnsupportedError(f"the option {option} is not supported")
    # Values of ARG are variables of the commands that follow.
    given = "".join(f"export {name}={shlex.quote(value)}; " for name, value in build.arguments.items() if value)
    if instruction.documents and _HEREDOC.fullmatch(rest):
        return f"{given}{shlex.join([*build.shell, instruction.documents[0]])}"
    if instruction.documents:
        ends = [end for _, end in _HEREDOC.findall(rest)]
        rest = "\n".join([rest, *(f"{body}{end}" for body, end in zip(instruction.documents, ends, strict=True))])
    words = _words(rest)
    return given + shlex.join(words if words is not None else [*build.shell, rest])


def _words(rest: str) -> list[str] | None:
    """The words of the exec form; None for the shell form, which also begins with `[` when it is a test."""
    try:
        words = json.loads(rest) if rest.startswith("[") else None
    except ValueError:
        return None
    return words if isinstance(words, list) and all(isinstance(word, str) for word in words) else None


def _options(rest: str) -> tuple[list[str], str]:
    options = []
    while rest.startswith("--"):
        option, _, rest = rest.partition(" ")
        options.append(option)
        rest = rest.strip()
    return options, rest


def _copies(build: Build, context: Path, instruction: _Instruction) -> Iterator[BuildStep]:
    options, rest = _options(instruction.rest)
    mode = None
    for option in options:
        name, _, value = option.partition("=")
        if name == "--chmod" and re.fullmatch(r"[0-7]{3,4}", value):
            mode = value
        # Files belong to root or, in the working directory, to the agent.
        elif name not in {"--chown", "--link"}:
            raise UnsupportedError(f"the option {option} is not supported")
    *patterns, target = [_expanded(build, word) for word in _words(rest) or rest.split()]
    place = PurePosixPath(build.cwd, target)
    if instruction.documents:
        names = [end for _, end in _HEREDOC.findall(rest)]
        into = target.endswith("/") or len(names) > 1
        for name, body in zip(names, instruction.documents, strict=True):
            yield BuildStep(place / name if into else place, source=body.encode(), mode=mode or "644")
        return
    if any("://" in pattern or (instruction.word == "ADD" and ".tar" in pattern) for pattern in patterns):
        raise UnsupportedError("only local files are copied; fetch or unpack in a RUN")
    if ".." in PurePosixPath(*patterns, target).parts:
        raise UnsupportedError(f"{' '.join(patterns)} leads out of {context.name}/")
    names = [str(PurePosixPath(pattern.lstrip("/"))) for pattern in patterns]
    sources = [path for name in names for path in ([context] if name == "." else sorted(context.glob(name)))]
    if not sources:
        raise UnsupportedError(f"there is no {' '.join(patterns)} in {context.name}/")
    into = len(sources) > 1 or target.endswith(("/", ".")) or place in build.directories
    for source in sources:
        for path in sorted(one for one in source.rglob("*") if one.is_file()) if source.is_dir() else [source]:
            inside = path.relative_to(source) if source.is_dir() else Path(source.name if into else "")
            usual = "755" if path.stat().st_mode & 0o100 else "644"
            yield BuildStep(place / inside, source=path, mode=mode or usual)


def _variables(text: str) -> list[tuple[str, str]]:
    words = shlex.split(text.replace("\\$", "\\\\$"))
    if "=" not in words[0]:
        return [(words[0], " ".join(words[1:]))]
    return [(name, value) for name, _, value in (word.partition("=") for word in words)]


def _expanded(build: Build, text: str) -> str:
    """The text with variables replaced by what ARG and ENV set; others are empty, as in docker."""
    known = {"PATH": PATH, **build.arguments, **build.env}

    def value(match: re.Match[str]) -> str:
        if match[0] == "\\$":
            return "$"
        found = known.get(match[1] or match[4], "")
        if match[2] in {"-", ":-"}:
            return found or match[3]
        return (match[3] if found else "") if match[2] else found

    return _VARIABLE.sub(value, text)
