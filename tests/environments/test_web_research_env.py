"""The bundled environment `web_research`: its data, its scores, its site."""

import gzip
import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from hermes_rl.environment.loading.loader import load_environment
from tests.environments.playing import NOTHING, Player, bundled, played

ENVIRONMENT: Any = sys.modules[load_environment("web_research").__module__]
ROOT = Path(__file__).parents[2]
# How a page tells what a question may go back along, from the person to the page: no second page may tell it.
GOES_BACK = {
    "ship": ("named after {}", "named her after {}"),
    "book": ("written by {}", "author is {}"),
    "company": ("founder was {}", "founded by {}"),
    "prize": ("first winner was {}", "{} was the first winner"),
}


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("web_research_data", ROOT / "scripts" / "make_web_research_data.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Where dataclasses look for the module of a class.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def pages() -> dict[str, dict[str, Any]]:
    rows = map(json.loads, gzip.decompress(ENVIRONMENT.PAGES.read_bytes()).splitlines())
    return {row["url"]: row for row in rows}


def questions() -> list[dict[str, Any]]:
    return [json.loads(line) for line in ENVIRONMENT.QUESTIONS.read_text().splitlines()]


def test_the_script_makes_the_data_we_ship_and_another_seed_another_world() -> None:
    script = generator()
    made = script.make()
    assert made[ENVIRONMENT.PAGES.name] == gzip.decompress(ENVIRONMENT.PAGES.read_bytes())
    assert made[ENVIRONMENT.QUESTIONS.name] == ENVIRONMENT.QUESTIONS.read_bytes()
    assert {thing.url for thing in script.World(6).everything} != pages().keys()


def test_there_are_two_thousand_pages_of_prose_with_links_to_each_other() -> None:
    rows = pages()
    assert len(rows) == len({row["title"] for row in rows.values()}) == 2000
    assert all(80 <= len(row["text"].split()) <= 200 for row in rows.values())
    assert all(row["links"] and set(row["links"]) <= rows.keys() for row in rows.values())
    assert all(rows[url]["title"] in row["text"] for row in rows.values() for url in row["links"])
    assert ENVIRONMENT.PAGES.stat().st_size < 1_000_000


def test_the_questions_for_evaluation_are_not_among_those_for_training() -> None:
    split = {name: {row["question"] for row in questions() if row["split"] == name} for name in ("train", "eval")}
    assert len(split["train"]) >= 150 and len(split["eval"]) >= 40
    assert not split["train"] & split["eval"]
    assert set(Counter(len(row["pages"]) for row in questions())) == {2, 3, 4}


def test_every_question_needs_its_pages_and_has_one_answer() -> None:
    rows = pages()
    texts = [f"{row['title']} {row['text']}" for row in rows.values()]
    for item in questions():
        start, *_, answer = item["chain"]
        assert answer == item["answer"] and start in item["question"] and answer not in item["question"]
        assert not any(start in text and answer in text for text in texts), item
        for url, here, there in zip(item["pages"], item["chain"], item["chain"][1:], strict=False):
            assert here in rows[url]["text"] and there in rows[url]["text"]
            if rows[url]["title"] == there:
                kind = urlsplit(url).path.split("/")[1]
                telling = [words.format(here) for words in GOES_BACK[kind]]
                tell_it = [row["url"] for row in rows.values() if any(words in row["text"] for words in telling)]
                assert [one for one in tell_it if f"/{kind}/" in one] == [url]


async def test_every_question_can_be_answered_by_searching_for_what_is_known() -> None:
    async with bundled("web_research", Player()) as env:
        provider = env.tools.toolsets["web"].service.provider
        for item in questions():
            for known, url in zip(item["chain"], item["pages"], strict=False):
                assert url in [hit.url for hit in await provider.search(known, 10)], (known, url)


async def test_doing_nothing_and_cheating_score_0_and_the_solution_1() -> None:
    player = Player()
    async with bundled("web_research", player) as env:
        for item in (env.train_items()[0], *env.eval_items()[:4]):
            scores = {
                who: (await played(env, player, item, steps)).score
                for who, steps in {"null": NOTHING, "oracle": env.oracle(item), **env.cheats(item)}.items()
            }
            assert len(scores) >= 9
            assert scores == {who: float(who == "oracle") for who in scores}, item


async def test_a_right_answer_is_worth_less_without_its_pages_and_after_many_calls() -> None:
    player = Player()
    async with bundled("web_research", player) as env:
        item = next(item for item in env.train_items() if len(item["pages"]) == 2)
        said = f"Answer: {item['answer']}"
        search = ("web_search", {"query": item["answer"], "limit": 1})
        hasty = await played(env, player, item, [search, said])
        tireless = await played(env, player, item, [[*env.oracle(item)[:-1], *[search] * 5], said])
        assert hasty.components["sources"] < 1 and hasty.score == pytest.approx(0.8 + 0.2 * hasty.components["sources"])
        assert tireless.components == {"correct": 1.0, "sources": 1.0, "efficiency": 0.5}
        assert tireless.score == pytest.approx(0.9) and tireless.score >= env.config.pass_score


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("It was easy.\n\nAnswer: The  Acorn and the Kestrel.", "acorn and the kestrel"),
        ("**Answer:** Skinhaven\n", "skinhaven"),
        ("Answer: Skinhaven, or Thondmoor", "skinhaven or thondmoor"),
        ("Answer: Skinhaven\nAnswer: Thondmoor", None),
        ("Answer: Skinhaven\nI am sure.", None),
        ("Skinhaven", None),
        ("", None),
    ],
)
def test_one_answer_counts_and_it_is_on_the_last_line(said: str, answer: str | None) -> None:
    assert ENVIRONMENT.answer_in(said) == answer


async def test_the_site_has_the_pages_their_links_and_a_search() -> None:
    async with ENVIRONMENT.served("127.0.0.1", 0) as site, aiohttp.ClientSession() as http:

        async def get(path: str, **query: str) -> tuple[int, str]:
            async with http.get(site + path, params=query) as answer:
                return answer.status, await answer.text()

        row = next(row for row in pages().values() if urlsplit(row["url"]).path.startswith("/ship/"))
        status, page = await get(urlsplit(row["url"]).path)
        assert status == 200 and f"<h1>{row['title']}</h1>" in page
        for url in row["links"]:
            assert f'<a href="{urlsplit(url).path}">' in page
            assert (await get(urlsplit(url).path))[0] == 200
        _, found = await get("/search", q=row["title"])
        assert f'<a href="{urlsplit(row["url"]).path}">{row["title"]}</a>' in found
        assert "<form" in (await get("/"))[1] and (await get("/nowhere"))[0] == 404
