"""The parts of a chaos added up."""

from typing import Any

from tests.chaos.stack.chaos import lengths
from tests.chaos.stack.report import PROMISES, broken, page, summed


def fault(kind: str = "kill api", **changes: Any) -> dict[str, Any]:
    form, _, target = kind.partition(" ")
    told = {"number": 0, "kind": kind, "form": form, "target": target, "at": 1.0, "seconds": 0.0, "amount": 0.0}
    return {**told, "step": 1, "held": "2 groups", "work": {}, "recovered": 3.0, "missed": None, **changes}


def part(number: int, *faults: dict[str, Any], **breaches: list[str]) -> dict[str, Any]:
    none: dict[str, list[str]] = {name: [] for name in PROMISES}
    counts = {"groups_stored": 10}
    told = {"part": number, "seed": 5, "minutes": 1.0, "seconds": 60, "planned": len(faults), "counts": counts}
    return {**told, "breaches": none | breaches, "faults": list(faults)}


def test_parts_are_added_up() -> None:
    told = summed([part(0, fault()), part(1, fault("pause env", recovered=5.0), fault())])
    assert (told["struck"], told["kinds"], told["forms"], told["minutes"]) == (3, 2, 2, 2.0)
    assert told["counts"] == {"groups_stored": 20}
    assert told["recovery"] == {"median": 3.0, "nine_of_ten": 5.0, "longest": 5.0, "never": 0}
    assert broken(told) == []


def test_a_breach_of_any_part_breaks_the_whole() -> None:
    told = summed([part(0, fault()), part(1, fault(), lost=["finished, and nowhere 5"])])
    assert broken(told) == ["lost: finished, and nowhere 5"]
    assert "**Breach**: lost: finished, and nowhere 5" in page(told)


def test_a_chaos_that_hit_idle_processes_is_none() -> None:
    told = summed([part(0, fault(), fault(held=None))])
    assert broken(told) == ["only 50% of the faults hit work in progress"]


def test_a_fault_that_found_nobody_is_not_counted_as_struck() -> None:
    told = summed([part(0, fault(), fault(missed="nobody was there"))])
    assert broken(told) == ["only 1 of 2 faults were struck"]


def test_the_page_has_the_seed_and_a_row_for_every_fault() -> None:
    told = summed([part(0, fault(), fault("set forward the clock of api", amount=3600.0))], cut_off=1)
    text = page(told)
    assert "seed 5" in text and "1 were cut off" in text
    assert "| 0 | 1.0 | 1 | set forward the clock of api (+3600) | 0.0 | 2 groups | 3.0 |" in text


def test_a_long_chaos_is_cut_into_even_parts() -> None:
    assert lengths(120, 20) == [20.0] * 6
    assert lengths(30, 20) == [15.0] * 2
    assert lengths(4, 20) == [4.0]
