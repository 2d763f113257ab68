"""Installed verifiers packages: a virtual environment each, and a file that makes it an environment of hermes-rl.

Always true: a package is installed when its file is in `~/.hermes/rl/environments`, where `hermes-rl env list`, runs
and the rl_* tools look for environments; the file is written last.
"""

import asyncio
import re
import shutil
import sys
import tomllib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError, InfrastructureError
from hermes_rl.core.paths import rl_home
from hermes_rl.core.private_files import private_folder, write_private
from hermes_rl.interop.verifiers.process import PackageProcess

# The last release that has the v0 interface, which most published packages use without saying so in their versions.
V0_RELEASE = "verifiers>=0.3.1,<0.4"
INSTALL_TIMEOUT = 1800.0
DESCRIBE_TIMEOUT = 300.0
MAX_OUTPUT_CHARS = 2000
# From 3.14 on there is no release with the v0 interface.
NEWEST_PYTHON = (3, 13)
SOURCE = '''"""{name}: {about}.

Written by `hermes-rl env install`; installing again replaces it.
"""

from hermes_rl import HermesAgentBaseEnv
from hermes_rl.interop.verifiers.environment import package_environment


class {class_name}(package_environment("{name}"), HermesAgentBaseEnv):
    """{about}."""

    name = "{name}"
'''

Report = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class InstalledPackage:
    """`source` is what was installed: a requirement, or a folder."""

    name: str
    source: str
    about: dict[str, Any]

    @property
    def python(self) -> Path:
        return venv_of(self.name) / "bin" / "python"


def packages_home() -> Path:
    return rl_home() / "verifiers"


def venv_of(name: str) -> Path:
    return packages_home() / name / "venv"


def environment_file(name: str) -> Path:
    return rl_home() / "environments" / f"{name.replace('-', '_')}_env.py"


def installed(name: str) -> InstalledPackage:
    """The installed package of that name; ConfigError with the next step when there is none."""
    try:
        record = fast_json.loads((packages_home() / name / "package.json").read_bytes())
        return InstalledPackage(name, record["source"], record["about"])
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"the verifiers package {name!r} is not installed ({type(error).__name__}); "
            f"install it with: hermes-rl env install {name}"
        ) from None


def package_name(source: str) -> str:
    """The package's id: the project name of a folder, or the name in a requirement; ConfigError for neither."""
    folder = Path(source)
    if folder.is_dir():
        try:
            name = str(tomllib.loads((folder / "pyproject.toml").read_text())["project"]["name"])
        except (OSError, tomllib.TOMLDecodeError, KeyError) as error:
            raise ConfigError(f"{source} has no pyproject.toml with a project name ({error}); name a package") from None
    else:
        name = re.split(r"[\s\[=<>!~;@]", source.rsplit("/", 1)[-1], maxsplit=1)[0]
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) or (not folder.is_dir() and "/" in source):
        raise ConfigError(f"{source!r} is neither a folder nor the name of a package")
    return re.sub(r"[._]", "-", name.lower())


def requirement(source: str) -> str:
    """What to install: a folder's path, or the requirement as given."""
    folder = Path(source)
    return str(folder.resolve()) if folder.is_dir() else source


async def install(source: str, requirements: Sequence[str], report: Report) -> InstalledPackage:
    """Make the package's virtual environment, open the package in it, and write its file. Replaces an earlier one.

    A package of the v0 interface gets the last release that has it, unless `requirements` name another.
    """
    name = package_name(source)
    file = environment_file(name)
    file.unlink(missing_ok=True)
    home, wanted = packages_home() / name, requirement(source)
    await asyncio.to_thread(shutil.rmtree, home, ignore_errors=True)
    home.mkdir(parents=True, mode=0o700)
    try:
        report(f"making {venv_of(name)}")
        installer = await _make_venv(venv_of(name))
        report(f"installing {source}")
        await _run([*installer, wanted, *requirements], f"installing {source}")
        try:
            about = await _describe(name)
        except InfrastructureError as error:
            if any(one.startswith("verifiers") for one in requirements):
                raise
            report(f"it does not open with the newest verifiers ({error}); trying {V0_RELEASE}")
            await _run([*installer, wanted, V0_RELEASE, *requirements], f"installing {V0_RELEASE}")
            about = await _describe(name)
        if about["refused"]:
            raise ConfigError(f"{name} needs what hermes-rl does not do: {'; '.join(about['refused'])}")
    except (InfrastructureError, ConfigError) as error:
        await asyncio.to_thread(shutil.rmtree, home, ignore_errors=True)
        raise ConfigError(f"{source} was not installed: {error}") from error
    return record(name, source, about)


def record(name: str, source: str, about: dict[str, Any]) -> InstalledPackage:
    """Note what is in the package's virtual environment, and make it an environment of hermes-rl."""
    write_private(packages_home() / name / "package.json", fast_json.dumps({"source": source, "about": about}))
    words = f"a verifiers {about['kind']} package, with verifiers {about['verifiers']}"
    class_name = "".join(part.capitalize() for part in re.split(r"[^A-Za-z0-9]+", name)) + "Env"
    if class_name[0].isdigit():
        class_name = f"Package{class_name}"
    file = environment_file(name)
    private_folder(file.parent)
    write_private(file, SOURCE.format(name=name, about=words, class_name=class_name).encode())
    return InstalledPackage(name, source, about)


def uninstall(name: str) -> bool:
    """Remove a package's file and virtual environment; whether there was one."""
    home = packages_home() / name
    found = home.exists()
    environment_file(name).unlink(missing_ok=True)
    shutil.rmtree(home, ignore_errors=True)
    return found


async def _describe(name: str) -> dict[str, Any]:
    process = PackageProcess(
        venv_of(name) / "bin" / "python",
        name,
        {},
        variables={},
        timeout=DESCRIBE_TIMEOUT,
        start_timeout=DESCRIBE_TIMEOUT,
    )
    async with process.running():
        return process.about


async def _make_venv(folder: Path) -> list[str]:
    """Make a virtual environment; the command that installs into it."""
    python = str(folder / "bin" / "python")
    uv = shutil.which("uv")
    if uv is not None:
        version = ".".join(map(str, min(sys.version_info[:2], NEWEST_PYTHON)))
        wanted = sys.executable if version == ".".join(map(str, sys.version_info[:2])) else version
        await _run([uv, "venv", "--quiet", "--python", wanted, str(folder)], "uv venv")
        return [uv, "pip", "install", "--quiet", "--python", python]
    if sys.version_info[:2] > NEWEST_PYTHON:
        raise ConfigError("verifiers needs Python 3.13 or older: install uv, which brings one, and try again")
    await _run([sys.executable, "-I", "-m", "venv", str(folder)], "python -m venv")
    return [python, "-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]


async def _run(command: Sequence[str], what: str) -> None:
    """Run a program to its end; ConfigError with the end of its output when it fails."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(INSTALL_TIMEOUT):
            output, _ = await process.communicate()
    except TimeoutError:
        raise ConfigError(f"{what} did not end within {INSTALL_TIMEOUT:g} s") from None
    finally:
        with suppress(ProcessLookupError):
            process.kill()
    if process.returncode:
        said = output.decode(errors="replace").strip()[-MAX_OUTPUT_CHARS:]
        raise ConfigError(f"{what} failed (exit code {process.returncode}): {said}")
