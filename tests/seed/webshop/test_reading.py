"""Product files: the real ones, the original download's, and bad ones."""

import gzip
import json
import logging
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sprout.seed.envs.webshop import WebshopEnv
from sprout.seed.envs.webshop.catalogue import load_catalogue
from sprout.seed.envs.webshop.expert import Noise, demonstrate
from sprout.seed.envs.webshop.goals import SHARES
from sprout.seed.envs.webshop.reading import UnusableRecordError, product_of, read_products

RECORD = {"asin": "B1", "name": "Canvas Shoe", "category": "fashion", "query": "Shoes"}


def test_a_record_of_the_download(write_products, tmp_path):
    raw = RECORD | {
        "pricing": "$5.99 - $1,007.50",
        "full_description": "Long.",
        "small_description": ["One.", "", "Two."],
        "customization_options": {"Color": [{"value": " Black/Tan "}, {"value": "Red"}], "Size": None},
    }
    (tmp_path / "items_shuffle_9.json").write_text(json.dumps([raw]))
    with pytest.raises(FileNotFoundError, match=r"items_ins_v2_9.json: not there"):
        read_products(tmp_path / "items_shuffle_9.json")
    goals = {"B1": {"attributes": ["x y"], "instruction": "Find x.", "instruction_attributes": ["x y"]}}
    (tmp_path / "items_ins_v2_9.json").write_text(json.dumps(goals))
    wish = {"instruction": "get x", "instruction_attributes": ["x"], "instruction_options": ["red"]}
    human = {"B1": [wish]}
    (tmp_path / "items_human_ins.json").write_text(json.dumps(human))
    (product,) = read_products(tmp_path / "items_shuffle_9.json")
    assert product.prices == (5.99, 1007.5) and product.price_text == "$5.99 to $1007.5"
    assert product.features == ("One.", "Two.") and product.query == "shoes"
    assert product.options == {"color": ("black | tan", "red")} and product.attributes == ("x y",)
    assert product.search_text == "canvas shoe long. one. color: black | tan, red"
    assert product.wishes[0].instruction == "Find x." and product.human_wishes[0].options == ("red",)


@pytest.mark.parametrize(
    ("fields", "prices"),
    [
        ({}, (100.0,)),
        ({"pricing": None}, (100.0,)),
        ({"pricing": []}, (100.0,)),
        ({"pricing": ""}, (100.0,)),
        ({"pricing": [12.5]}, (12.5,)),
        ({"pricing": 12}, (12.0,)),
        ({"pricing": [20, 10.0, 5]}, (10.0, 20.0)),
        ({"Price": "$3.5 to $4"}, (3.5, 4.0)),
    ],
)
def test_prices(fields, prices):
    product = product_of(RECORD | fields)
    assert product.prices == prices and product.options == {}
    assert prices[0] <= product.price <= prices[-1]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (RECORD | {"pricing": "call us"}, "no usable price"),
        (RECORD | {"pricing": [-1]}, "no usable price"),
        (RECORD | {"pricing": ["a"]}, "no usable price"),
        (RECORD | {"pricing": {"low": 1}}, "no usable price"),
        (RECORD | {"pricing": True}, "no usable price"),
        (RECORD | {"pricing": [1e999]}, "no usable price"),
        (RECORD | {"name": " "}, "no name"),
        (RECORD | {"name": 5}, "no name"),
        (RECORD | {"asin": "nan"}, "no id"),
        ({"name": "Shoe"}, "no id"),
        ([RECORD], "no fields"),
        (None, "no fields"),
    ],
)
def test_records_that_make_no_product(record, reason):
    with pytest.raises(UnusableRecordError, match=reason):
        product_of(record)


def test_bad_records_are_counted(write_products, caplog):
    bad = [RECORD | {"name": ""}, RECORD | {"pricing": "?"}, RECORD | {"asin": "b1", "name": "Twin"}, "3"]
    with caplog.at_level(logging.WARNING):
        (product,) = read_products(write_products(RECORD, *bad, ""))
    assert product.title == "Canvas Shoe"
    assert "4 records are left out (1 with no name, 1 with no usable price, 1 with repeated id" in caplog.text


def test_bad_files(write_products, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no such product file; .*without env.options.data"):
        WebshopEnv(data=str(tmp_path / "nothing.jsonl"))
    with pytest.raises(ValueError, match=r"products.jsonl:2: no JSON"):
        read_products(write_products(RECORD, "{"))
    with pytest.raises(ValueError, match=r"holds no usable product .it is empty."):
        read_products(write_products(""))
    with pytest.raises(ValueError, match=r"holds no usable product .1 with no name."):
        read_products(write_products(RECORD | {"name": ""}))
    whole = gzip.compress(json.dumps(RECORD).encode())
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[:-9])
    (tmp_path / "torn.jsonl.gz").write_bytes(whole[:20] + bytes([whole[20] ^ 255] * 8) + whole[28:])
    for name in ("cut", "torn"):
        with pytest.raises(ValueError, match=rf"{name}.jsonl.gz: a broken gzip file"):
            read_products(tmp_path / f"{name}.jsonl.gz")
    (tmp_path / "garbage.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"garbage.jsonl:1: no JSON"):
        read_products(tmp_path / "garbage.jsonl")


def test_products_without_instructions(write_products):
    env = WebshopEnv(data=str(write_products(RECORD)))
    with pytest.raises(ValueError, match=r"no product of .*products.jsonl .* has synthetic instructions"):
        env.reset()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = (
    "pricing", "Price", "options", "customization_options", "Reviews", "BulletPoints", "Attributes", "goal",
    "instructions", "Title", "query", "product_category", "category", "Rating", "Description",
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_arbitrary_fields(fields):
    try:
        product = product_of(RECORD | fields)
    except UnusableRecordError as error:
        assert str(error) in ("no usable price", "no name")
    else:
        assert product.price >= 0 and product.search_text and product.title


def test_real_products(webshop_data):
    products = read_products(webshop_data)
    assert len(products) == 299  # one has no name
    assert sum(bool(product.wishes) for product in products) == 125
    assert sum(bool(product.human_wishes) for product in products) == 4
    assert {len(product.prices) for product in products} == {1, 2}


@pytest.mark.parametrize("noise", [Noise(), Noise(wander=0.2, invalid=0.1)])
def test_the_expert_wins_with_every_real_product(webshop_data, noise):
    env, won = WebshopEnv(data=webshop_data), set()
    for split in SHARES:
        goals = env.goals(split)
        for seed in range(len(goals)):
            if goals.of(seed).product.id in won:
                continue
            turns = list(demonstrate(env, split, seed, noise))
            assert turns[-1][1]["success"] and len(turns) <= 15, (split, seed)
            won.add(env.visit.goal.product.id)
    assert len(won) == 125


@pytest.mark.slow
def test_the_expert_wins_every_real_goal(webshop_data):
    env = WebshopEnv(data=webshop_data)
    for split in SHARES:
        for seed in range(len(env.goals(split))):
            assert list(demonstrate(env, split, seed))[-1][1]["success"], (split, seed)


def test_human_goals(webshop_data):
    env = WebshopEnv(data=webshop_data, goals="human")
    _, info = env.reset(seed=0, options={"split": "select"})
    assert ", and price lower than " in info["task"] and not info["task"].startswith("Find me")


def test_a_file_that_changes_is_read_again(write_products):
    path = write_products(RECORD)
    first = load_catalogue(str(path), 0, 0)
    assert load_catalogue(str(path), 0, 0) is first
    write_products(RECORD, RECORD | {"asin": "B0OTHER"})
    os.utime(path, ns=(1, 1))
    assert len(load_catalogue(str(path), 0, 0).products) == 2
