"""What a user gets: the wheel, installed alone in a fresh virtual environment, held to its promises.

Builds the source distribution, the wheel from it, installs that with nothing of the development environment, and
measures. The last line printed is one JSON object; exit status 1 when a promise is broken.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = Path("hermes_rl/viewer/static")
MAX_PACKAGES = 40
MAX_MEGABYTES = 120.0
MAX_IMPORT_SECONDS = 0.5
STARTS_MEASURED = 10

# Import names that hermes_rl must not load: engines, their clients, and every optional part.
NEVER_LOADED = {
    "atroposlib",
    "datasets",
    "jax",
    "mcp",
    "modal",
    "openai",
    "opentelemetry",
    "playwright",
    "ray",
    "renderers",
    "sglang",
    "tinker",
    "torch",
    "trackio",
    "transformers",
    "vllm",
    "wandb",
    "xllamacpp",
}

NOT_OURS = ("pip", "setuptools", "_distutils_hack", "pkg_resources", "distutils-precedence.pth")


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="hermes-rl-packaging-") as folder:
        work = Path(folder)
        wheel = build(work)
        python = install(wheel, work / "venv")
        site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=work).strip())
        packages = installed(python, work)
        loaded = modules_loaded(python, work)
        help_text = run(python.with_name("hermes-rl"), "--help", cwd=work)
        run(python, "-c", "import hermes_rl.bundled.terminal_test_env", cwd=work)
        figures: dict[str, object] = {
            "wheel": wheel.name,
            "wheel_kilobytes": round(wheel.stat().st_size / 1e3, 1),
            "python": sys.version.split()[0],
            "packages": len(packages),
            "megabytes": round(size(site) / 1e6, 1),
            "import_seconds": round(seconds(python, "import hermes_rl", work), 3),
            "import_every_name_seconds": round(seconds(python, "from hermes_rl import *", work), 3),
            "modules_loaded": len(loaded),
            "forbidden_loaded": sorted(loaded & NEVER_LOADED),
            "typed": (site / "hermes_rl" / "py.typed").is_file(),
            "pages": shipped_pages(site),
            "help": "Usage" in help_text,
        }
    goals = {
        "packages": {"goal": f"< {MAX_PACKAGES}", "met": len(packages) < MAX_PACKAGES},
        "megabytes": {"goal": f"< {MAX_MEGABYTES}", "met": float(str(figures["megabytes"])) < MAX_MEGABYTES},
        "import_seconds": {
            "goal": f"< {MAX_IMPORT_SECONDS}",
            "met": float(str(figures["import_seconds"])) < MAX_IMPORT_SECONDS,
        },
        "forbidden_loaded": {"goal": "none", "met": not figures["forbidden_loaded"]},
        "typed": {"goal": "py.typed is shipped", "met": figures["typed"]},
        "pages": {"goal": "as committed", "met": figures["pages"] == "as committed"},
        "help": {"goal": "hermes-rl --help prints its usage", "met": figures["help"]},
    }
    missed = [name for name, goal in goals.items() if not goal["met"]]
    print("installed:", " ".join(packages))
    for name in missed:
        print(f"MISSED {name}: {figures[name]}, goal {goals[name]['goal']}", file=sys.stderr)
    report = {name: {**goal, "measured": figures[name]} for name, goal in goals.items()}
    print(json.dumps({"benchmark": "packaging", "figures": figures, "goals": report}))
    return 1 if missed else 0


def build(work: Path) -> Path:
    """Return the wheel, built from the source distribution so that a file missing there is noticed."""
    run(sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", work, cwd=ROOT)
    (sdist,) = work.glob("*.tar.gz")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", work, sdist, cwd=work)
    (wheel,) = work.glob("*.whl")
    return wheel


def install(wheel: Path, home: Path) -> Path:
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", wheel, cwd=home)
    return python


def installed(python: Path, work: Path) -> list[str]:
    listing = json.loads(run(python, "-m", "pip", "list", "--format=json", cwd=work))
    return [f"{row['name']}=={row['version']}" for row in listing if row["name"].lower() not in NOT_OURS]


def size(site: Path) -> int:
    """Bytes of what was installed: every file, compiled ones too, without pip and setuptools."""
    return sum(
        file.stat().st_size
        for entry in site.iterdir()
        if entry.name.split("-")[0] not in NOT_OURS and entry.name not in NOT_OURS
        for file in ([entry] if entry.is_file() else entry.rglob("*"))
        if file.is_file()
    )


def shipped_pages(site: Path) -> str:
    """Whether the files that `hermes-rl view` shows are in the wheel, byte for byte."""
    committed, shipped = (
        {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
        for folder in (ROOT / "src" / PAGES, site / PAGES)
    )
    other = sorted(str(name) for name in committed.keys() | shipped.keys() if committed.get(name) != shipped.get(name))
    return f"differ in {', '.join(other)}" if other else "as committed"


def modules_loaded(python: Path, work: Path) -> set[str]:
    """Top-level modules after every public name was used, so that loading them lazily hides nothing."""
    program = "from hermes_rl import *; import sys; print(*{name.split('.')[0] for name in sys.modules})"
    return set(run(python, "-c", program, cwd=work).split())


def seconds(python: Path, program: str, work: Path) -> float:
    """Median time of a whole fresh process; the first, with a cold disk, is not counted."""
    times = []
    for _ in range(STARTS_MEASURED + 1):
        started = time.perf_counter()
        run(python, "-c", program, cwd=work)
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def run(*command: str | Path, cwd: Path) -> str:
    # A user's own environment: nothing of ours on the path, and byte code kept as it normally is.
    hidden = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "PIP_CONSTRAINT"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        line = " ".join(map(str, command))
        raise SystemExit(f"exit status {done.returncode}: {line}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
