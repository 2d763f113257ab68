"""Replace a text file as a whole: a reader, and a process killed while writing, leave the old file or the new one.

The file follows the umask; private files are written by `private_files`.
"""

import os
from pathlib import Path


def replace_file(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
