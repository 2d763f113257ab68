"""Faults carried out on a run: begun, borne for their time, and taken back.

Always true: whatever was begun is taken back, also when the chaos ends in the middle; only processes of the scene are
ever signalled.
"""

import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hermes_rl.core.process_identity import ProcessIdentity
from tests.chaos.stack import network
from tests.chaos.stack.scene import Scene
from tests.chaos.stack.schedule import Fault, Form
from tests.chaos.trajectory.grounds import Disk

Wait = Callable[[float], None]


class MissedError(Exception):
    """There was nobody to be struck."""


def strike(scene: Scene, disk: Disk, fault: Fault, draw: random.Random, wait: Wait) -> None:
    """Carry a fault out to its end. `wait` bears it for some seconds, and may raise."""
    target = fault.kind.target
    match fault.kind.form:
        case Form.KILL:
            _signalled(scene.living(target, draw), signal.SIGKILL)
        case Form.PAUSE:
            with _paused(scene.living(target, draw)):
                wait(fault.seconds)
        case Form.CUT | Form.LOSS | Form.DELAY:
            with _network(scene, fault):
                wait(fault.seconds)
        case Form.FULL_DISK:
            with _filled(disk) as fill:
                end = time.monotonic() + fault.seconds
                while time.monotonic() < end:
                    fill()
                    wait(0.1)
        case Form.FORWARD | Form.BACK:
            with _clock_wrong(scene, target, fault.amount):
                wait(fault.seconds)


def _signalled(process: ProcessIdentity, number: signal.Signals) -> None:
    if not process.signal(number):
        raise MissedError("nobody was there")


@contextmanager
def _paused(process: ProcessIdentity) -> Iterator[None]:
    _signalled(process, signal.SIGSTOP)
    try:
        yield
    finally:
        process.signal(signal.SIGCONT)


@contextmanager
def _network(scene: Scene, fault: Fault) -> Iterator[None]:
    port = scene.port(fault.kind.target)
    if not port:
        raise MissedError("it has no port")
    try:
        match fault.kind.form:
            case Form.CUT:
                network.cut(port)
            case Form.LOSS:
                network.lose(port, fault.amount)
            case _:
                network.delay(port)
        yield
    finally:
        network.restored()


@contextmanager
def _filled(disk: Disk) -> Iterator[Callable[[], None]]:
    disk.fill()
    try:
        yield disk.fill
    finally:
        disk.make_room()


@contextmanager
def _clock_wrong(scene: Scene, part: str, seconds: float) -> Iterator[None]:
    scene.clocks.set(part, seconds)
    try:
        yield
    finally:
        scene.clocks.set(part, 0)
