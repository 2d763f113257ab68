"""BM25 search over a local corpus: deterministic results, on any machine, without network.

Term weights are precomputed when the index is built, so a query only adds numbers. Pages with equal scores are in
corpus order.
"""

import heapq
import math
import re
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hermes_rl.tools.web.corpus import Corpus, WebPage
from hermes_rl.tools.web.provider import SearchHit

# Lucene's defaults.
K1, B = 1.2, 0.75
TITLE_WEIGHT = 3
EXCERPT_CHARS = 300
# Scripts without spaces between words: each character is a term.
UNSPACED = "\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
TERM = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+")


@dataclass(frozen=True, slots=True)
class _Postings:
    """The pages that contain a term, and its weight in each page's score."""

    pages: "array[int]"
    weights: "array[float]"


class BM25:
    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        self._postings = _index(corpus.pages)

    async def search(self, query: str, limit: int) -> list[SearchHit]:
        terms = list(dict.fromkeys(tokenize(query)))
        scores = self.scores(terms)
        best = heapq.nsmallest(limit, scores, key=lambda page: (-scores[page], page))
        # The excerpt shows the rarest query term, which distinguishes the page best.
        rarest_first = sorted(
            (term for term in terms if term in self._postings), key=lambda term: len(self._postings[term].pages)
        )
        return [_hit(self.corpus.pages[page], rarest_first) for page in best]

    def scores(self, terms: Sequence[str]) -> dict[int, float]:
        """Scores of the pages that contain any of the terms, by index in the corpus."""
        scores: dict[int, float] = {}
        for term in terms:
            if (postings := self._postings.get(term)) is not None:
                for page, weight in zip(postings.pages, postings.weights, strict=True):
                    scores[page] = scores.get(page, 0.0) + weight
        return scores


def tokenize(text: str) -> list[str]:
    return TERM.findall(text.casefold())


def _index(pages: Sequence[WebPage]) -> dict[str, _Postings]:
    postings_by_term: dict[str, tuple[array[int], array[float]]] = {}
    lengths = array("d")
    for number, page in enumerate(pages):
        counts = Counter(tokenize(page.text))
        for term in tokenize(page.title):
            counts[term] += TITLE_WEIGHT
        lengths.append(counts.total())
        for term, count in counts.items():
            if term not in postings_by_term:
                postings_by_term[term] = array("l"), array("d")
            in_pages, weights = postings_by_term[term]
            in_pages.append(number)
            weights.append(count)
    mean = sum(lengths) / len(lengths) or 1.0
    norms = [K1 * (1 - B + B * length / mean) for length in lengths]
    for in_pages, weights in postings_by_term.values():
        idf = math.log(1 + (len(pages) - len(in_pages) + 0.5) / (len(in_pages) + 0.5)) * (K1 + 1)
        for position, page_number in enumerate(in_pages):
            weights[position] = idf * weights[position] / (weights[position] + norms[page_number])
    return {term: _Postings(*postings) for term, postings in postings_by_term.items()}


def _hit(page: WebPage, terms: Sequence[str]) -> SearchHit:
    text = page.text
    # Case folding can change the length of a text; then positions do not match.
    folded = text.casefold()
    position = -1
    if len(folded) == len(text):
        for term in terms:
            word = re.search(rf"(?<!\w){re.escape(term)}(?!\w)", folded)
            position = folded.find(term) if word is None else word.start()
            if position >= 0:
                break
    start = max(0, position - EXCERPT_CHARS // 3)
    excerpt = " ".join(text[start : start + EXCERPT_CHARS].split())
    before, after = "… " if start else "", " …" if start + EXCERPT_CHARS < len(text) else ""
    return SearchHit(page.title or page.url, page.url, f"{before}{excerpt}{after}")
