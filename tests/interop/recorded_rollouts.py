"""Answers of a policy for each package in fixtures/verifiers, good and bad ones.

A step is a text, or the tool calls of one turn as (name, arguments).
"""

from typing import Any

Steps = list[Any]

V0: dict[str, list[tuple[int, Steps]]] = {
    "addition-v0": [
        (0, [[("add", {"a": 0, "b": 0})], "0"]),
        (1, [[("add", {"a": 1, "b": 1})], "3"]),
        (2, ["4"]),
        (3, [[("add", {"a": 3, "b": 3}), ("add", {"a": 1, "b": 2})], " 6 "]),
        (4, [[("add", {"a": 4})], [("add", {"a": 4, "b": 4})], "8"]),
        (5, [[("add", {"a": 5, "b": 5})]] * 4),
        (0, [""]),
    ],
    "reverse-v0": [
        (0, ["<think>easy</think><answer>enots</answer>"]),
        (1, ["<answer>level</answer>"]),
        (2, ["nedrag"]),
        (3, ["<think>t, o</think><answer>tobot</answer>"]),
        (4, [""]),
    ],
    "guess-v0": [
        (3, ["5", "3"]),
        (7, ["5", "6", "8", "7"]),
        (2, ["I think so", "2"]),
        (9, ["1", "2", "3", "4", "5"]),
        (0, ["0"]),
    ],
    "basket-v0": [
        (0, [[("put", {"fruit": "apple"})], [("put", {"fruit": "apple"})], [("total", {})], "It is 4"]),
        (1, [[("put", {"fruit": "apple"}), ("put", {"fruit": "pear"})], "5"]),
        (2, [[("put", {"fruit": "apple"})], [("put", {"fruit": "apple"})], [("put", {"fruit": "pear"})], "unheard"]),
        (3, [[("put", {"fruit": "melon"})], "no melon"]),
        (4, [[("put", {"fruit": "plum"}), ("put", {"fruit": "plum"})], [("total", {})], "10"]),
        (0, ["4"]),
    ],
    "diverse-v0": [
        (0, ["oak"]),
        (0, ["oak"]),
        (0, ["a very tall pine"]),
        (0, ["elm"]),
    ],
}

V1: dict[str, list[str]] = {
    "addition-v1": ["0", "3", " 4 ", "six", "8", "10", "", "14"],
    "spelling-v1": ["s-t-o-n-e", "cloud", "r-i-v-e-r", "p-i-a-n-o-s", "r-o-b-b-t", "l-e-m-o-n"],
    "settings-v1": ["0", "one", "2", "4", "4"],
    "dialogue-v1": ["Rome", "kyoto", " lima ", ""],
    "ordered-v1": ["1 2 3", "9 7", "1 4 5 6 6", "none"],
}
