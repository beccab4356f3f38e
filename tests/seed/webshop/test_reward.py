"""The reward against cases worked by hand."""

import pytest

from sprout.seed.envs.webshop.colors import plain_color
from sprout.seed.envs.webshop.nouns import nouns
from sprout.seed.envs.webshop.reward import has_attribute, options_found, score, title_overlap, type_score


def test_the_full_reward(make_product, make_goal):
    found = score(make_product(), ["red", "9"], make_goal())
    assert (found.value, found.type, found.attributes, found.options, found.price) == (1.0, 1.0, 2, 2, True)


@pytest.mark.parametrize(
    ("chosen", "limit", "value"),
    [
        (["red", "9"], 35.5, 1.0),  # a price at the limit is fine
        (["red", "9"], 30.0, 4 / 5),
        (["red"], 40.0, 4 / 5),
        (["red", "8"], 40.0, 4 / 5),
        ([], 40.0, 3 / 5),
        ([], 30.0, 2 / 5),
        (["wine red", "9"], 40.0, 1.0),  # both are plain red
        (["dark red", "9"], 40.0, 4 / 5),  # dark comes first in the alphabet
        (["navy blue", "8"], 30.0, 2 / 5),
    ],
)
def test_options_and_price(make_product, make_goal, chosen, limit, value):
    assert score(make_product(), chosen, make_goal(price_limit=limit)).value == pytest.approx(value)


def test_no_options_and_no_limit(make_product, make_goal):
    goal = make_goal(options=(), price_limit=1e6)
    assert score(make_product(), ["red"], goal).value == 1.0
    assert score(make_product(attributes=(), features=()), [], goal).value == pytest.approx(1 / 3)


# Nouns of the wanted title: norvale, canvas, shoe, lace, sole (5), unless it says otherwise.
WANTED = "Norvale Canvas Shoe Lace Sole"
ELSE = {"query": "lamps", "path": "Home › Lamps"}


@pytest.mark.parametrize(
    ("bought", "fields", "value"),
    [
        ("Norvale Canvas Shoe Lace Sole", ELSE, 1.0),  # 5 of 5
        ("Norvale Canvas Lamp", ELSE, 1.0),  # 2 of 5, above 0.2
        ("Norvale Lamp", ELSE, 0.5),  # 1 of 5 is not above 0.2
        ("Norvale Lamp", ELSE | {"query": "men's shoes"}, 1.0),
        ("Norvale Lamp", ELSE | {"path": "Men › Lamps › Shoes"}, 1.0),  # two parts agree, in any order
        ("Norvale Lamp", ELSE | {"path": "Men › Men › Lamps"}, 0.5),  # one part agrees
        ("Brass Lamp", {}, 0.0),  # nothing in common outweighs query and category
    ],
)
def test_type(make_product, bought, fields, value):
    assert type_score(make_product(title=bought, **fields), make_product(title=WANTED)) == value


def test_type_of_very_long_titles(make_product):
    words = [f"thing{letter}" for letter in "abcdefghij"]
    eleven = make_product(title=" ".join(["Norvale", *words]))
    assert type_score(make_product(title="Norvale Lamp"), eleven) == 0.1  # 1 of 11, whatever else agrees
    ten = make_product(title=" ".join(["Norvale", *words[1:]]))
    assert type_score(make_product(title="Norvale Lamp", **ELSE), ten) == 0.5  # 1 of 10 is not below 0.1


def test_type_without_nouns(make_product):
    blue = make_product(title="100% Blue")
    assert title_overlap("Lamp", "100% Blue") == 0.2
    assert type_score(make_product(title="Lamp"), blue) == 1.0
    assert type_score(make_product(title="Lamp", **ELSE), blue) == 0.5


def test_a_type_scales_the_reward(make_product, make_goal):
    lamp = make_product(title="Norvale Lamp", **ELSE)
    goal = make_goal(make_product(title=WANTED))
    assert score(lamp, ["red", "9"], goal).value == pytest.approx(0.5)
    assert score(lamp, ["red"], goal).value == pytest.approx(0.5 * 4 / 5)


@pytest.mark.parametrize(
    ("attribute", "found"),
    [
        ("rubber sole", True),
        ("rubber soles", True),  # 96 %
        ("sole of rubber", True),  # its words hold all of the other's
        ("machine", True),
        ("canvas sh", True),  # stands in the title
        ("made for long", True),  # in the description
        ("rubber", True),
        ("hand wash", False),  # "wash" is shared; 62 %
        ("leather", False),
    ],
)
def test_attributes(make_product, attribute, found):
    assert has_attribute(make_product(), attribute) is found


def test_attributes_stand_in_features(make_product):
    product = make_product(attributes=(), features=("Quick", "Drying lining"))
    assert has_attribute(product, "quick drying") and not has_attribute(product, "drying quick")


@pytest.mark.parametrize(
    ("wanted", "chosen", "count"),
    [
        (("grey", "xl", "pack of 12"), ("pack of 12", "grey", "xl"), 3),
        (("grey", "xl", "pack of 12"), ("pack of 12", "blue", "xl"), 2),
        (("cool powder snow", "xl"), ("powder snow", "xl"), 2),  # the words of one hold the other's
        (("heather navy", "8"), ("navy", "8.5"), 1),  # "8" is not "8.5": tokens of their own
        ((), ("red",), 0),
        (("red",), (), 0),
    ],
)
def test_options(wanted, chosen, count):
    assert options_found(wanted, chosen) == count


def test_plain_colors():
    assert plain_color("a1-wine red") == "red"  # the first by the alphabet
    assert plain_color("dark heather blue") == "blue"
    assert plain_color("steelivy fuchsia") == "fuchsia"  # anywhere, even inside a word
    assert plain_color("123alabaster") == "alabaster"
    assert plain_color("x-large") == "x-large"


@pytest.mark.parametrize(
    ("wanted", "bought", "overlap"),
    [  # overlaps that the original finds with its tagger
        (
            "adidas Unisex-Adult D.o.n. Issue 2 Basketball Shoe",
            "adidas Unisex-Adult D.o.n. Issue 2 Indoor Court Shoe",
            0.85,
        ),
        (
            "Saireed UL Listed 2 Prong Power Cord for JBL Bar 3.1 Bar 2.1 Channel 4K Ultra HD Soundbar Home "
            "Theater System Subwoofer",
            "BRST AC Power Cord Outlet Socket Cable Plug Lead for Panasonic SC-HT830V DVD/VCR Combo Home "
            "Theater System",
            0.31,
        ),
        (
            "Saireed UL Listed 2 Prong Power Cord for JBL Bar 3.1 Bar 2.1 Channel 4K Ultra HD Soundbar",
            "BRST AC Power Cord Outlet Socket Cable Plug Lead for Panasonic SC-HT830V DVD/VCR Combo Home "
            "Theater System",
            0.17,
        ),
        (
            "Rusticware 921ORB Kitchen and Bath Cabinet Knob",
            "Minkissy 2pcs Stainless Steel Eyebrow Tweezers Blackhead Acne Remover Portable Makeup Tweezers",
            0.0,
        ),
    ],
)
def test_title_overlap(wanted, bought, overlap):
    assert title_overlap(bought, wanted) == pytest.approx(overlap, abs=1e-2)


def test_nouns():
    assert nouns("Verdane 2-Pack of Adjustable Bedside Lamps for the Table, 40W") == (
        "verdane", "pack", "bedside", "lamps", "table",
    )  # fmt: skip
