"""Real products from a file: JSON lines or one JSON array, plain or gzip, or the original download.

A record is one product as WebShop holds it in memory, or as its download has it: `items_shuffle*.json`, whose
attributes and instructions come from `items_ins_v2*.json` and `items_human_ins.json` beside it.

A missing price is 100 dollars, and a product without options is fine. Records without an id, a name or a
price that can be read, and those that repeat an id, are left out and counted in one warning. A file that is
no JSON, or that leaves no product at all, is an error.
"""

from __future__ import annotations

import gzip
import logging
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from sprout.engine.files import DAMAGED_GZIP
from sprout.seed.envs.webshop.products import MISSING_PRICE, Product, Wish

log = logging.getLogger(__name__)
Record = Mapping[str, Any]
_NUMBER = re.compile(r"\d[\d,]*\.?\d*")
_ORIGINAL = "items_shuffle"
_HELP = (
    "github.com/princeton-nlp/WebShop tells where its product files are; without env.options.data a "
    "generated catalogue is used"
)


class UnusableRecordError(ValueError):
    """A record that makes no product; the text is the reason."""


def read_products(path: str | Path) -> list[Product]:
    """Every usable product of a file.

    Raises FileNotFoundError for a missing file, ValueError naming file and place for one that cannot be read.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such product file; {_HELP}")
    products: dict[str, Product] = {}
    left_out: Counter[str] = Counter()
    for record in _records(path):
        try:
            product = product_of(record)
        except UnusableRecordError as error:
            left_out[str(error)] += 1
            continue
        if product.id.lower() in products:
            left_out["repeated id"] += 1
        products.setdefault(product.id.lower(), product)
    reasons = ", ".join(f"{count} with {reason}" for reason, count in left_out.items())
    if not products:
        raise ValueError(f"{path}: holds no usable product ({reasons or 'it is empty'}); {_HELP}")
    if left_out:
        log.warning("%s: %d records are left out (%s)", path, left_out.total(), reasons)
    return list(products.values())


def product_of(record: Any) -> Product:
    """The product of a record. Raises UnusableRecordError."""
    if not isinstance(record, dict):
        raise UnusableRecordError("no fields")
    title, identity = _text(record, "Title", "name"), _text(record, "asin")
    if not identity or identity == "nan":
        raise UnusableRecordError("no id")
    if not title:
        raise UnusableRecordError("no name")
    return Product(
        id=identity,
        title=title,
        category=_text(record, "category") or "other",
        query=_text(record, "query").lower(),
        path=_text(record, "product_category"),
        prices=_prices(record.get("pricing") or record.get("Price")),
        rating=_text(record, "Rating") or "N.A.",
        description=_text(record, "Description", "full_description"),
        features=_texts(record.get("BulletPoints") or record.get("small_description")),
        reviews=tuple(_reviews(record.get("Reviews"))),
        attributes=_texts(record.get("Attributes") or _goal(record).get("attributes")),
        options=dict(_options(record)),
        wishes=tuple(_wishes([_goal(record)])),
        human_wishes=tuple(_wishes(record.get("instructions"), human=True)),
    )


def _records(path: Path) -> Iterator[Any]:
    records = _plain_records(path)
    if not path.name.startswith(_ORIGINAL):
        return records
    suffix = path.name.removeprefix(_ORIGINAL)
    goals = _beside(path, f"items_ins_v2{suffix}", required=True)
    human = _beside(path, "items_human_ins.json", required=False)
    return (_merged(record, goals, human) for record in records)


def _plain_records(path: Path) -> Iterator[Any]:
    content = _content(path)
    if content.lstrip()[:1] == b"[":
        yield from _parsed(content, str(path))
        return
    for number, line in enumerate(content.splitlines(), start=1):
        if line.strip():
            yield _parsed(line, f"{path}:{number}")


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    try:
        return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except DAMAGED_GZIP as error:
        raise ValueError(f"{path}: a broken gzip file ({error}); {_HELP}") from None


def _parsed(content: bytes, place: str) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"{place}: no JSON ({error}); {_HELP}") from None


def _beside(path: Path, name: str, required: bool) -> dict[str, Any]:
    file = path.with_name(name)
    if not file.is_file():
        if required:
            raise FileNotFoundError(f"{file}: not there; {path.name} has its instructions in it; {_HELP}")
        return {}
    found = _parsed(_content(file), str(file))
    if not isinstance(found, dict):
        raise ValueError(f"{file}: expected an object from product id to its instructions; {_HELP}")
    return found


def _merged(record: Any, goals: Mapping[str, Any], human: Mapping[str, Any]) -> Any:
    if not isinstance(record, dict):
        return record
    identity = str(record.get("asin"))
    return {**record, "goal": goals.get(identity), "instructions": human.get(identity)}


def _goal(record: Record) -> Record:
    goal = record.get("goal")
    return goal if isinstance(goal, dict) else record


def _wishes(goals: Any, human: bool = False) -> Iterator[Wish]:
    for goal in goals if isinstance(goals, list) else []:
        if not isinstance(goal, dict):
            continue
        instruction = _text(goal, "instruction", "instruction_text")
        attributes = _texts(goal.get("instruction_attributes"))
        if instruction and attributes:
            yield Wish(instruction, attributes, _texts(goal.get("instruction_options")) if human else None)


def _prices(given: Any) -> tuple[float, ...]:
    """One price, or the lowest and the highest, from numbers or from text like "$5.99 - $7.99"."""
    if given is None or given in ("", []):
        return (MISSING_PRICE,)
    if isinstance(given, bool):
        raise UnusableRecordError("no usable price")
    if isinstance(given, str):
        given = [number.replace(",", "") for number in _NUMBER.findall(given)]
    try:
        prices = [float(price) for price in (given if isinstance(given, list) else [given])][:2]
    except (TypeError, ValueError):
        raise UnusableRecordError("no usable price") from None
    if not prices or not all(math.isfinite(price) and price >= 0 for price in prices):
        raise UnusableRecordError("no usable price")
    return tuple(sorted(prices))


def _options(record: Record) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Names and values in lower case, from WebShop's own field or from the shop's raw one."""
    found = record.get("options", record.get("customization_options"))
    for name, values in found.items() if isinstance(found, dict) else ():
        listed = values if isinstance(values, list) else []
        texts = _texts([value.get("value") if isinstance(value, dict) else value for value in listed])
        if texts:
            yield _plain(name), tuple(dict.fromkeys(_plain(text.replace("/", " | ")) for text in texts))


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


def _reviews(reviews: Any) -> Iterator[str]:
    for review in reviews if isinstance(reviews, list) else []:
        if isinstance(review, dict):
            stars = review.get("score", review.get("stars", ""))
            yield from (f'"{_text(review, "title")}"', str(stars), _text(review, "body", "review"))


def _texts(values: Any) -> tuple[str, ...]:
    """The texts of a list, or of a single text; empty ones are left out."""
    found = [values] if isinstance(values, str) else values if isinstance(values, list) else []
    return tuple(value.strip() for value in found if isinstance(value, str) and value.strip())


def _text(record: Record, *keys: str) -> str:
    """The first of some fields that holds a text."""
    for key in keys:
        if isinstance(value := record.get(key), str) and value.strip():
            return " ".join(value.split())
    return ""
