"""A small shop written here, and the real products."""

import json

import pytest

pytest.importorskip("bm25s", reason="the extra webshop is not installed")
pytest.importorskip("Stemmer", reason="the extra webshop is not installed")
pytest.importorskip("rapidfuzz", reason="the extra webshop is not installed")

from sprout.seed.envs.webshop.catalogue import Catalogue
from sprout.seed.envs.webshop.goals import Goal
from sprout.seed.envs.webshop.products import Product
from sprout.seed.envs.webshop.visit import Visit

SHOE = dict(
    id="B000000001",
    title="Norvale Canvas Shoe",
    category="fashion",
    query="men's shoes",
    path="Clothing › Men › Shoes",
    prices=(35.5,),
    rating="4.1",
    description="Made for long walks.",
    features=("Rubber sole.", "Machine wash."),
    attributes=("rubber sole", "machine wash"),
    options={"color": ("navy blue", "red"), "size": ("8", "9")},
)


@pytest.fixture
def make_product():
    """Builds a product; without arguments a canvas shoe."""
    return lambda **fields: Product(**(SHOE | fields))


@pytest.fixture
def make_goal(make_product):
    """Builds a goal; without arguments for the red canvas shoe in size 9."""

    def make(product=None, **fields):
        values = {"instruction": "Find me shoes", "attributes": ("rubber sole", "machine wash")}
        values |= {"options": ("red", "9"), "price_limit": 40.0}
        return Goal(product or make_product(), **(values | fields))

    return make


@pytest.fixture
def make_visit(make_goal, make_product):
    """Opens a shop of the canvas shoe and `others` like it."""

    def make(others=0, **fields):
        goal = make_goal(**fields)
        more = [make_product(id=f"B1{n:08d}", title=f"Other Shoe {n}", options={}) for n in range(others)]
        return Visit(Catalogue([goal.product, *more]), goal)

    return make


@pytest.fixture
def write_products(tmp_path):
    """Writes records, or text as it is, to a file of JSON lines."""

    def write(*records, name="products.jsonl"):
        path = tmp_path / name
        lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
        path.write_text("\n".join(lines))
        return path

    return write


@pytest.fixture(scope="session")
def webshop_data(shared_data):
    """The file of real products."""
    path = shared_data / "webshop-products.jsonl.gz"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    return str(path)
