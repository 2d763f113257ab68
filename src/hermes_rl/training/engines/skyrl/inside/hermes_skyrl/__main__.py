"""`python -m hermes_skyrl api|engine …`: one of SkyRL's two processes; the API starts the engine."""

import argparse
import typing

import typing_extensions

from .die_with_parent import exit_with_parent
from .stubs import hide_torch, install_stubs

FIXES = ("typeddict", "command", "wire", "slots")


def main() -> None:
    parser = argparse.ArgumentParser(prog="hermes_skyrl", allow_abbrev=False)
    parser.add_argument("role", choices=["api", "engine"])
    parser.add_argument("--parent", type=int, help="exit when this process exits")
    parser.add_argument("--without", action="append", default=[], choices=FIXES, help="disable a fix; for tests")
    parser.add_argument("--listen", type=int, help="file descriptor of the API's listening socket")
    parser.add_argument("--max-length", type=int, help="refuse longer sequences")
    options, skyrl_arguments = parser.parse_known_args()
    if options.parent is not None:
        exit_with_parent(options.parent)
    if "typeddict" not in options.without:
        # Before Python 3.12 pydantic rejects typing.TypedDict, which skyrl.tinker.types uses in a model.
        typing.TypedDict = typing_extensions.TypedDict
    if options.role == "engine":
        hide_torch()
        install_stubs()
        from .engine import run_engine

        run_engine(skyrl_arguments, options.without)
    else:
        install_stubs()
        from .api import run_api

        run_api(skyrl_arguments, options.without, options.listen, options.max_length)


if __name__ == "__main__":
    main()
