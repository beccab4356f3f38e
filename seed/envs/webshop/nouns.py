"""The nouns of a product title, without a part-of-speech tagger.

WebShop tags titles with a neural tagger of several hundred megabytes and keeps nouns and proper nouns.
Titles are heaps of capitalised names, which such a tagger takes for proper nouns nearly always, so the
reverse question is the easier one: a word is taken for a noun unless it is a number or a measure, belongs
to a closed class (prepositions, pronouns, ...), is a frequent adjective or verb of titles, or has the
ending of an adverb, an adjective or a participle; endings say nothing of the first word, mostly a brand.
Compounds fall apart at hyphens, as they do there. What differs from the tagger: an adjective in neither
list counts as a noun, and nouns that end like adjectives do not.
"""

from __future__ import annotations

import re
from functools import lru_cache

_WORD = re.compile(r"[^\W_]+(?:['’.][^\W_]+)*")
_CLOSED = """
    a an the this that these those some any all each every both either neither no another such
    and or but nor so yet if than as because while though whether
    of in on at by for with without from to into onto over under up down out off through between among about
    above below after before during since until against along across behind beside near inside outside via per
    i you he she it we they me him her us them my your his its our their mine yours who whom whose which what
    is are was were be been being am do does did have has had can could will would shall should may might must
    not only very too also just more most less least much many few several other own same here there when
    where how why then now again once ever never always w x vs etc
"""
_DESCRIBING = """
    adjustable anti automatic best big black blue brown clean clear cold comfortable compatible cool
    cordless cute dark deep double dry durable easy electric elegant elastic extra fast fine firm flat
    flexible foldable free fresh full genuine gold gray great green grey handmade hard healthy heavy
    high hot indoor large lightweight light little long loose low luxury magnetic mid mini modern multi
    natural new non oral orange organic outdoor perfect pink plain plus portable premium professional
    pure purple quick rechargeable red regular reusable rich round rustic short silver simple single
    slim small smart smooth soft solid special square stainless straight strong sweet tall thick thin
    tight tiny traditional triple universal vintage warm waterproof white wide wild wireless woven
    yellow young add buy fit get give keep make use wear let
"""
_LIKE_ADJECTIVES = """
    metal crystal oral medal pedal sandal towel animal mineral cereal material capital signal digital
    hospital fabric music plastic ceramic acrylic garlic magic tonic cosmetic fish dish radish polish
    relish bed seed weed reed feed speed breed shed table cable vegetable timetable bible family belly
    jelly butterfly assembly supply jewelry ally olive archive adhesive
"""
_NOT_NOUNS = frozenset((_CLOSED + _DESCRIBING).split())
_DESCRIBING_END = re.compile(r".{2,}(?:ly|able|ible|ful|less|ous|ish|ed|ive|ic|al)")
_NOUNS = frozenset(_LIKE_ADJECTIVES.split())


@lru_cache(maxsize=65536)
def nouns(title: str) -> tuple[str, ...]:
    """The nouns of a title in lower case, in their order, repetitions included."""
    words = [word.lower() for word in _WORD.findall(title)]
    return tuple(word for place, word in enumerate(words) if _is_noun(word, first=place == 0))


def _is_noun(word: str, first: bool) -> bool:
    if word in _NOUNS:
        return True
    if len(word) == 1 or word in _NOT_NOUNS or any(letter.isdigit() for letter in word):
        return False
    return first or _DESCRIBING_END.fullmatch(word) is None
