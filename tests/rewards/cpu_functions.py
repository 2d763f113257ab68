"""Functions for tests of @cpu_reward; apart from them, since every process that runs one imports this module."""

import ctypes
import itertools
import os
import subprocess
import sys
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from hermes_rl.core.errors import JudgeError
from hermes_rl.core.trajectory import Reward
from hermes_rl.rewards.cpu_reward import cpu_reward

served = itertools.count(1)


@cpu_reward(timeout=10)
def add(one: Any, other: Any = 0) -> Any:
    """A sum."""
    return one + other


@cpu_reward(timeout=10)
def where() -> tuple[int, int]:
    """The process, and how many calls it has served."""
    print("what a reward prints is nobody's answer")
    return os.getpid(), next(served)


@cpu_reward(timeout=10)
def variables() -> dict[str, str]:
    return dict(os.environ)


@cpu_reward(timeout=0.5)
def spin() -> None:
    while True:
        pass


@cpu_reward(timeout=0.5)
def leave_many_behind(command: str) -> None:
    """Children in the foreground, in the background, in a session of their own, and orphans."""
    subprocess.run(f"{command} & setsid {command} & (setsid {command} &) ; exec {command}", shell=True, check=False)


@cpu_reward(timeout=60)
def nap_in_a_child(command: str) -> None:
    subprocess.run(command.split(), check=False)


@cpu_reward(timeout=10)
def raise_one(kind: str) -> None:
    if kind == "judge":
        raise JudgeError("refused", "no verdict")
    if kind == "exit":
        sys.exit(7)
    raise ZeroDivisionError("nothing to share")


@cpu_reward(timeout=10)
def crash(how: str) -> None:
    if how == "segfault":
        ctypes.string_at(0)
    os._exit(3)


@cpu_reward(timeout=10)
def composed() -> Reward:
    return Reward(0.5, {"right": 1.0}, (0.0, 0.5))


@dataclass
class Odd:
    number: int


class Malicious:
    def __reduce__(self) -> Any:
        return os.system, ("touch should-never-be",)


@cpu_reward(timeout=10)
def return_a(what: str) -> Any:
    return {"fraction": Fraction(1, 4), "odd": Odd(1), "lambda": lambda: 1, "malicious": Malicious()}[what]


class Grouped:
    @staticmethod
    @cpu_reward(timeout=10)
    def doubled(number: int) -> int:
        return 2 * number
