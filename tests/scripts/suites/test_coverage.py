"""Covered lines are added up by package, and by the single modules beside them."""

from scripts.suites.coverage import by_package


def entry(lines: int, ran: int) -> dict[str, dict[str, int]]:
    return {"summary": {"num_statements": lines, "covered_lines": ran}}


def test_files_are_added_up_by_their_package() -> None:
    files = {
        "src/hermes_rl/api/a.py": entry(10, 5),
        "/site/hermes_rl/api/deep/b.py": entry(10, 10),
        "src/hermes_rl/version.py": entry(4, 4),
    }
    assert by_package(files) == {"(single modules)": (4, 4), "api": (20, 15), "all": (24, 19)}
