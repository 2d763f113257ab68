"""A local corpus searched with BM25: the same query finds the same pages, on any machine, with no network.

Every term's share of every page's score is computed when the index is built, so a query only adds numbers up. Pages of
equal score come in the order of the corpus.
"""

import heapq
import math
import re
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hermes_rl.tools.web.corpus import Corpus, Page
from hermes_rl.tools.web.provider import SearchHit

# Lucene's values.
SATURATION, LENGTH_SHARE = 1.2, 0.75
TITLE_WEIGHT = 3
EXCERPT = 300
# Scripts that put no space between words: each character is a term.
UNSPACED = "\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
TERM = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+")


@dataclass(frozen=True, slots=True)
class _Postings:
    """The pages a term is in, and what it adds to the score of each."""

    pages: "array[int]"
    shares: "array[float]"


class BM25:
    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        self._postings = _index(corpus.pages)

    async def search(self, query: str, limit: int) -> list[SearchHit]:
        terms = list(dict.fromkeys(terms_of(query)))
        scores = self.scores(terms)
        best = heapq.nsmallest(limit, scores, key=lambda page: (-scores[page], page))
        # An excerpt shows the rarest word asked for, since that is the one that tells this page from others.
        rarest_first = sorted(
            (term for term in terms if term in self._postings), key=lambda term: len(self._postings[term].pages)
        )
        return [_hit(self.corpus.pages[page], rarest_first) for page in best]

    def scores(self, terms: Sequence[str]) -> dict[int, float]:
        """The score of every page that one of the terms is in, by its place in the corpus."""
        scores: dict[int, float] = {}
        for term in terms:
            if (postings := self._postings.get(term)) is not None:
                for page, share in zip(postings.pages, postings.shares, strict=True):
                    scores[page] = scores.get(page, 0.0) + share
        return scores


def terms_of(text: str) -> list[str]:
    return TERM.findall(text.casefold())


def _index(pages: Sequence[Page]) -> dict[str, _Postings]:
    found: dict[str, tuple[array[int], array[float]]] = {}
    lengths = array("d")
    for number, page in enumerate(pages):
        counts = Counter(terms_of(page.text))
        for term in terms_of(page.title):
            counts[term] += TITLE_WEIGHT
        lengths.append(counts.total())
        for term, count in counts.items():
            if term not in found:
                found[term] = array("l"), array("d")
            in_pages, times = found[term]
            in_pages.append(number)
            times.append(count)
    mean = sum(lengths) / len(lengths) or 1.0
    norms = [SATURATION * (1 - LENGTH_SHARE + LENGTH_SHARE * length / mean) for length in lengths]
    for in_pages, times in found.values():
        rarity = math.log(1 + (len(pages) - len(in_pages) + 0.5) / (len(in_pages) + 0.5)) * (SATURATION + 1)
        for place, page_number in enumerate(in_pages):
            times[place] = rarity * times[place] / (times[place] + norms[page_number])
    return {term: _Postings(*postings) for term, postings in found.items()}


def _hit(page: Page, terms: Sequence[str]) -> SearchHit:
    text = page.text
    # Folding can change the length of a text; where it does, places in one are not places in the other.
    folded = text.casefold()
    at = -1
    if len(folded) == len(text):
        for term in terms:
            word = re.search(rf"(?<!\w){re.escape(term)}(?!\w)", folded)
            at = folded.find(term) if word is None else word.start()
            if at >= 0:
                break
    start = max(0, at - EXCERPT // 3)
    excerpt = " ".join(text[start : start + EXCERPT].split())
    before, after = "… " if start else "", " …" if start + EXCERPT < len(text) else ""
    return SearchHit(page.title or page.url, page.url, f"{before}{excerpt}{after}")
