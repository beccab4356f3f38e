"""The generated shop: as many products as asked for, from a seed."""

from __future__ import annotations

from random import Random
from string import ascii_uppercase, digits

from sprout.seed.envs.webshop.kinds import BRANDS, KINDS, SERIES, Kind
from sprout.seed.envs.webshop.products import MISSING_PRICE, Product, Wish

PRODUCTS = 1000
_KINDS = [(category, kind) for category, kinds in KINDS.items() for kind in kinds]
_RANGE_SHARE, _NO_PRICE_SHARE, _NO_OPTIONS_SHARE = 0.1, 0.01, 0.05
_REVIEWS = (
    ("Does what it says", "I have used it for a month and would buy it again."),
    ("Good value", "Came on time, looks like the pictures."),
    ("Not for me", "It works, but I had hoped for more."),
)


def generate_products(count: int = PRODUCTS, seed: int = 0) -> list[Product]:
    """The first `count` products of a seed; all kinds are equally frequent. Raises ValueError for none."""
    if count < 1:
        raise ValueError(f"products must be at least 1, not {count}")
    return [_product(number, Random(f"webshop/{seed}/{number}")) for number in range(count)]


def _product(number: int, rng: Random) -> Product:
    category, kind = _KINDS[number % len(_KINDS)]
    how, having, use = rng.sample(kind.how, 2), rng.sample(kind.having, 3), rng.sample(kind.use, 1)
    title = f"{rng.choice(BRANDS)} {rng.choice(SERIES)} {kind.noun}"
    extras = [words.title() for words in (*how[:1], *having[:1])]
    return Product(
        id=_id(number, rng),
        title=f"{title}, {', '.join(extras)}",
        category=category,
        query=kind.query,
        path=kind.path,
        prices=_prices(kind, rng),
        rating=f"{rng.triangular(2.8, 5.0, 4.5):.1f}",
        description=f"The {title} is made for {use[0]}. It comes with {having[1]} and is {how[1]}.",
        features=(
            f"{how[0]} and {how[1]}".capitalize() + ".",
            f"With {having[0]}, {having[1]} and {having[2]}.",
            f"A good choice for {use[0]}.",
        ),
        reviews=_reviews(rng),
        attributes=(*how, *having, *use),
        options=_options(kind, rng),
        wishes=(_wish(kind, how, having, use, rng),),
    )


def _id(number: int, rng: Random) -> str:
    """Ten letters and digits, like a shop's; the number in base 36 keeps it unique."""
    alphabet = digits + ascii_uppercase
    tail = ""
    for _ in range(4):
        number, place = divmod(number, len(alphabet))
        tail = alphabet[place] + tail
    return "B0" + "".join(rng.choices(alphabet, k=4)) + tail


def _prices(kind: Kind, rng: Random) -> tuple[float, ...]:
    low, high = kind.prices
    price = round(low * (high / low) ** rng.random(), 2)
    draw = rng.random()
    if draw < _NO_PRICE_SHARE:
        return (MISSING_PRICE,)
    return (price, round(price * rng.uniform(1.1, 1.6), 2)) if draw < _RANGE_SHARE else (price,)


def _options(kind: Kind, rng: Random) -> dict[str, tuple[str, ...]]:
    if rng.random() < _NO_OPTIONS_SHARE:
        return {}
    chosen = {}
    for name, values in kind.options.items():
        some = rng.sample(values, rng.randint(2, min(4, len(values))))
        chosen[name] = tuple(sorted(some, key=values.index))
    return chosen


def _reviews(rng: Random) -> tuple[str, ...]:
    chosen = rng.sample(_REVIEWS, rng.randint(0, 2))
    return tuple(part for title, body in chosen for part in (f'"{title}"', str(rng.randint(3, 5)), body))


def _wish(kind: Kind, how: list[str], having: list[str], use: list[str], rng: Random) -> Wish:
    """An instruction that asks for some of the product's attributes, in the order in which it names them."""
    wanted = sorted(rng.sample([*how, *having, *use], rng.randint(2, 4)))
    before = [one for one in how if one in wanted]
    after = [one for one in having if one in wanted]
    purpose = [one for one in use if one in wanted]
    words = f"Find me {', '.join(before)} {kind.query}" if before else f"Find me {kind.query}"
    words += f" with {', '.join(after)}" if after else ""
    words += f" for {purpose[0]}" if purpose else ""
    return Wish(words, (*before, *after, *purpose))
