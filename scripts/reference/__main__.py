"""`python -m scripts.reference FOLDER`: the pages as files, to look at."""

import sys
from pathlib import Path

from . import pages

folder = Path(sys.argv[1])
for place, text in pages().items():
    (folder / place).parent.mkdir(parents=True, exist_ok=True)
    (folder / place).write_text(text)
    print(folder / place)
