"""`python -m hermes_skyrl api|engine …`: one of SkyRL's two processes; the API starts the engine."""

import argparse
import typing

import typing_extensions

from .parent import end_with
from .stand_ins import hide_torch, stand_in

FIXES = ("typeddict", "command", "wire", "slots")


def main() -> None:
    parser = argparse.ArgumentParser(prog="hermes_skyrl", allow_abbrev=False)
    parser.add_argument("role", choices=["api", "engine"])
    parser.add_argument("--parent", type=int, help="end when this process has ended")
    parser.add_argument("--without", action="append", default=[], choices=FIXES, help="leave out a fix; for tests")
    parser.add_argument("--listen", type=int, help="descriptor of the socket that the API listens on")
    mine, skyrls = parser.parse_known_args()
    if mine.parent is not None:
        end_with(mine.parent)
    if "typeddict" not in mine.without:
        # pydantic refuses the one of `typing` before Python 3.12, and skyrl.tinker.types has one in a model.
        typing.TypedDict = typing_extensions.TypedDict
    if mine.role == "engine":
        hide_torch()
        stand_in()
        from .engine import run_engine

        run_engine(skyrls, mine.without)
    else:
        stand_in()
        from .api import run_api

        run_api(skyrls, mine.without, mine.listen)


if __name__ == "__main__":
    main()
