"""The shop's search: BM25 over the products' text, as Lucene scores it (k1 0.9, b 0.4).

Words are lower-cased, lose a possessive 's and the usual English stop words, and are stemmed by Porter's
algorithm. One thing differs from Lucene: it rounds a document's length to a byte, which is not done here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from sprout.seed.envs.webshop.extra import library

K1, B = 0.9, 0.4
RESULTS = 50
_STOP_WORDS = """
    a an and are as at be but by for if in into is it no not of on or such that the their then there
    these they this to was will with
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
_WORD = re.compile(r"[^\W_]+(?:['’.][^\W_]+)*")
_POSSESSIVE = re.compile(r"['’]s$")


class Analyzer:
    """From text to index terms."""

    def __init__(self) -> None:
        self._stem = lru_cache(maxsize=65536)(library("Stemmer").Stemmer("porter").stemWord)

    def terms(self, text: str) -> list[str]:
        """Stemmed terms in their order; a word that stemming leaves nothing of ("s") is none."""
        words = (_POSSESSIVE.sub("", word) for word in _WORD.findall(text.lower()))
        return [term for word in words if word not in STOP_WORDS and (term := self._stem(word))]


class SearchIndex:
    """Finds products by keywords; `texts` are what is searched."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._analyzer = Analyzer()
        self._index = library("bm25s").BM25(k1=K1, b=B, method="lucene")
        self._index.index([self._analyzer.terms(text) for text in texts], show_progress=False)
        self._known = frozenset(self._index.vocab_dict)
        self.search = lru_cache(maxsize=4096)(self._search)

    def _search(self, keywords: str) -> tuple[int, ...]:
        """Numbers of the best matching texts, at most RESULTS, best first; equal ones in their order."""
        terms = [term for term in self._analyzer.terms(keywords) if term in self._known]
        if not terms:
            return ()
        scores = self._index.get_scores(terms)
        best = np.argsort(-scores, kind="stable")[:RESULTS]
        return tuple(best[scores[best] > 0].tolist())
