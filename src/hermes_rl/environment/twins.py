"""The copy of an environment that evaluation runs on, so that it cannot touch what training collects.

Authors append to buffers of their own in `compute_reward`; in an evaluation they append to the twin's. Containers,
dataclasses and pydantic models are copied as deep as they nest; everything else (clients, datasets) is shared. Only
attributes whose names begin with `eval` or `_eval` are common to both, for what an evaluation wants to leave behind.
"""

from collections import deque
from copy import copy
from dataclasses import fields, is_dataclass
from types import MethodType
from typing import Any, TypeVar

from pydantic import BaseModel

T = TypeVar("T")

COMMON = ("eval", "_eval", "last_evaluation")
BUFFERS = (list, dict, set, deque, bytearray)
# A longer list is a dataset: nobody collects in its items, and to copy each of them would stop the event loop.
LONG = 1000


def evaluation_twin(env: T) -> T:
    twin = copy(env)
    copies: dict[int, Any] = {id(env): twin}
    for name, value in (_class_buffers(type(env)) | vars(env)).items():
        if not name.startswith(COMMON):
            setattr(twin, name, _own(value, copies))
    return twin


def give_back(twin: Any, env: Any) -> None:
    """What the evaluation assigned to the common attributes."""
    for name, value in vars(twin).items():
        if name.startswith(COMMON):
            setattr(env, name, value)


def _class_buffers(cls: type) -> dict[str, Any]:
    """Buffers written as class attributes, which an author appends to like to any other."""
    return {
        name: value
        for one in reversed(cls.__mro__)
        for name, value in vars(one).items()
        if isinstance(value, BUFFERS) and not name.startswith("__")
    }


def _own(value: Any, copies: dict[int, Any]) -> Any:
    """The twin's own of a value; what stood in two places still does, in the copy."""
    if isinstance(value, MethodType) and id(value.__self__) in copies:
        return MethodType(value.__func__, copies[id(value.__self__)])
    names = _fields(value)
    if not names and not isinstance(value, BUFFERS):
        return value
    if id(value) in copies:
        return copies[id(value)]
    copies[id(value)] = twin = copy(value)
    if isinstance(twin, dict):
        for key, inner in twin.items():
            twin[key] = _own(inner, copies)
    elif isinstance(twin, list | deque) and len(twin) <= LONG:
        for place, inner in enumerate(twin):
            twin[place] = _own(inner, copies)
    for name in names:
        object.__setattr__(twin, name, _own(getattr(value, name), copies))
    return twin


def _fields(value: Any) -> list[str]:
    """What a dataclass or a pydantic model holds; nothing for all else."""
    if isinstance(value, BaseModel):
        return list(type(value).model_fields)
    if is_dataclass(value) and not isinstance(value, type):
        return [field.name for field in fields(value) if hasattr(value, field.name)]
    return []
