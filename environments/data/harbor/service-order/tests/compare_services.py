"""Exit status 0 when a configuration says what the expected one says; order, spaces and comments are free."""

import configparser
import sys
from pathlib import Path


def meaning(text: str) -> dict[str, dict[str, object]]:
    parsed = configparser.ConfigParser(interpolation=None, default_section="")
    parsed.read_string(text)
    return {
        name: {
            key: sorted(filter(None, (one.strip() for one in value.split(",")))) if key == "after" else value.strip()
            for key, value in parsed[name].items()
        }
        for name in parsed.sections()
    }


try:
    found = meaning(Path(sys.argv[1]).read_text(errors="replace"))
except configparser.Error as error:
    sys.exit(f"no configuration: {error}")
sys.exit(found != meaning(Path(sys.argv[2]).read_text()))
