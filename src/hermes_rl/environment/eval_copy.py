"""Copies an environment for evaluation, so that evaluation cannot change what training collects.

Authors append to their own buffers in `compute_reward`; during an evaluation they append to the copy's. Containers,
dataclasses and pydantic models are copied deeply; everything else (clients, datasets) is shared. Attributes that start
with `eval` or `_eval` are shared both ways, so an evaluation can store results.
"""

from collections import deque
from copy import copy
from dataclasses import fields, is_dataclass
from types import MethodType
from typing import Any, TypeVar

from pydantic import BaseModel

T = TypeVar("T")

SHARED_PREFIXES = ("eval", "_eval", "last_evaluation")
BUFFERS = (list, dict, set, deque, bytearray)
# A longer list is a dataset: its items are not buffers, and copying each of them would block the event loop.
MAX_COPIED_ITEMS = 1000


def copy_for_evaluation(env: T) -> T:
    duplicate = copy(env)
    copies: dict[int, Any] = {id(env): duplicate}
    for name, value in (_class_level_buffers(type(env)) | vars(env)).items():
        if not name.startswith(SHARED_PREFIXES):
            setattr(duplicate, name, _copy_value(value, copies))
    return duplicate


def copy_back(duplicate: Any, env: Any) -> None:
    """Copy the shared attributes back to the environment."""
    for name, value in vars(duplicate).items():
        if name.startswith(SHARED_PREFIXES):
            setattr(env, name, value)


def _class_level_buffers(cls: type) -> dict[str, Any]:
    """Buffers defined as class attributes, which authors append to as well."""
    return {
        name: value
        for base in reversed(cls.__mro__)
        for name, value in vars(base).items()
        if isinstance(value, BUFFERS) and not name.startswith("__")
    }


def _copy_value(value: Any, copies: dict[int, Any]) -> Any:
    """A copy of a value; values that were shared within the environment stay shared within the copy."""
    if isinstance(value, MethodType) and id(value.__self__) in copies:
        return MethodType(value.__func__, copies[id(value.__self__)])
    names = _fields(value)
    if not names and not isinstance(value, BUFFERS):
        return value
    if id(value) in copies:
        return copies[id(value)]
    copies[id(value)] = duplicate = copy(value)
    if isinstance(duplicate, dict):
        for key, inner in duplicate.items():
            duplicate[key] = _copy_value(inner, copies)
    elif isinstance(duplicate, list | deque) and len(duplicate) <= MAX_COPIED_ITEMS:
        for index, inner in enumerate(duplicate):
            duplicate[index] = _copy_value(inner, copies)
    for name in names:
        object.__setattr__(duplicate, name, _copy_value(getattr(value, name), copies))
    return duplicate


def _fields(value: Any) -> list[str]:
    """Field names of a dataclass or pydantic model; empty for anything else."""
    if isinstance(value, BaseModel):
        return list(type(value).model_fields)
    if is_dataclass(value) and not isinstance(value, type):
        return [field.name for field in fields(value) if hasattr(value, field.name)]
    return []
