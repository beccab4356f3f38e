"""Pages, what can be clicked on them, and where clicks lead."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sprout.seed.envs.webshop.catalogue import load_catalogue
from sprout.seed.envs.webshop.search import Analyzer, SearchIndex
from sprout.seed.envs.webshop.visit import Visit

ITEM = "click[b000000001]"


def names(visit):
    return list(visit.page.links)


def test_the_way_to_a_purchase(make_visit):
    visit = make_visit()
    assert visit.page.text("Find me shoes") == "WebShop [SEP] Instruction: [SEP] Find me shoes [SEP] Search"
    assert visit.commands() == ["search[find me shoes]"]
    assert visit.execute("search[canvas shoe]")
    assert visit.page.text(None) == (
        "Back to Search [SEP] Page 1 (Total results: 1) [SEP] B000000001 [SEP] Norvale Canvas Shoe [SEP] "
        "$35.5"
    )
    assert visit.commands() == ["click[back to search]", ITEM]
    assert visit.execute(ITEM)
    assert visit.page.text(None) == (
        "Back to Search [SEP] < Prev [SEP] color [SEP] navy blue [SEP] red [SEP] size [SEP] 8 [SEP] 9 [SEP] "
        "Norvale Canvas Shoe [SEP] Price: $35.5 [SEP] Rating: 4.1 [SEP] Description [SEP] Features [SEP] "
        "Reviews [SEP] Buy Now"
    )
    item = visit.page
    assert visit.execute("click[red]") and visit.page is item
    assert visit.execute("click[8]") and visit.execute("click[9]") and visit.options == {
        "color": "red", "size": "9",
    }  # fmt: skip
    assert visit.execute("click[buy now]") and visit.score.value == 1.0
    assert visit.page.text(None) == (
        "Thank you for shopping with us! [SEP] Your score (min 0.0, max 1.0) [SEP] 1"
    )
    assert not visit.commands() and not visit.execute("search[canvas]") and not visit.execute("click[red]")


def test_details(make_visit):
    visit = make_visit()
    for command in ("search[shoe]", ITEM, "click[red]", "click[description]"):
        assert visit.execute(command)
    assert visit.page.text(None) == "Back to Search [SEP] < Prev [SEP] Made for long walks."
    assert not visit.execute("click[features]")
    assert visit.execute("click[< prev]") and visit.options == {"color": "red"}
    assert visit.execute("click[features]")
    assert visit.page.parts[2:] == ("Rubber sole.", "Machine wash.")
    visit.execute("click[< prev]")
    visit.execute("click[reviews]")
    assert visit.page.parts[2:] == ("No reviews found",)


def test_results_come_in_pages(make_visit):
    visit = make_visit(others=24)
    visit.execute("search[shoe]")
    assert visit.page.parts[1:3] == ("Page 1 (Total results: 25)", "Next >") and len(names(visit)) == 12
    assert not visit.execute("click[< prev]")
    visit.execute("click[next >]")
    assert visit.page.parts[1:4] == ("Page 2 (Total results: 25)", "< Prev", "Next >")
    third = visit.found[20].id.lower()
    assert not visit.execute(f"click[{third}]")
    visit.execute("click[next >]")
    assert names(visit)[:2] == ["back to search", "< prev"] and len(names(visit)) == 7
    assert visit.execute(f"click[{third}]") and visit.execute("click[< prev]")
    assert visit.number == 3 and visit.product is None
    assert visit.execute("click[< prev]") and visit.number == 2


def test_at_most_fifty_results(make_visit):
    visit = make_visit(others=70)
    visit.execute("search[shoe]")
    assert len(visit.found) == 50
    for _ in range(4):
        assert visit.execute("click[next >]")
    assert not visit.execute("click[next >]")


def test_back_to_search_forgets_everything(make_visit):
    visit = make_visit()
    for command in ("search[shoe]", ITEM, "click[red]", "click[back to search]"):
        assert visit.execute(command)
    assert (visit.found, visit.product, visit.options, visit.number) == ([], None, {}, 1)
    assert visit.page.has_search_bar and not visit.execute("click[buy now]")


def test_going_back_to_the_results_forgets_options(make_visit):
    visit = make_visit()
    for command in ("search[shoe]", ITEM, "click[red]", "click[< prev]", ITEM):
        assert visit.execute(command)
    assert visit.options == {}


def test_searching_works_on_every_page(make_visit):
    visit = make_visit()
    for command in ("search[shoe]", ITEM, "click[red]", "search[no such thing]"):
        assert visit.execute(command)
    assert visit.page.parts == ("Back to Search", "Page 1 (Total results: 0)") and visit.options == {}


@pytest.mark.parametrize(
    "command", ["", "buy", "click[]", "click[ ]", "search[]", "search[ ]", "click[blue]", "click[search]",
                "clicks[red]", "click[red", "click red", "click[9] now", "[red]", "click[instruction:]"]
)  # fmt: skip
def test_what_is_not_possible_changes_nothing(make_visit, command):
    visit = make_visit()
    for step in ("search[shoe]", ITEM, "click[9]"):
        visit.execute(step)
    before = (visit.page, dict(visit.options), visit.product)
    assert not visit.execute(command)
    assert before == (visit.page, visit.options, visit.product)


def test_an_option_hides_a_button_of_its_name(make_visit, make_product):
    visit = make_visit(product=make_product(options={"style": ("reviews", "[bold]")}))
    visit.execute("search[shoe]")
    visit.execute(ITEM)
    assert visit.execute("click[reviews]") and visit.options == {"style": "reviews"}
    assert visit.execute("click[[bold]]") and visit.options == {"style": "[bold]"}


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(max_size=30) | st.sampled_from(["search[", "click[", "]", "next >"]), max_size=8))
def test_arbitrary_commands(parts):
    catalogue = load_catalogue(None, 60, 0)
    visit = Visit(catalogue, catalogue.goals("train", "synthetic").of(0))
    for command in ("".join(parts), f"search[{''.join(parts)}]", f"click[{''.join(parts)}]"):
        visit.execute(" ".join(command.lower().split()))
        assert visit.page.text("x")


def test_terms():
    assert Analyzer().terms("s") == []
    text = "The Men's Running Shoes, for 8.5 inches!"
    assert Analyzer().terms(text) == ["men", "run", "shoe", "8.5", "inch"]


def test_scores_are_lucenes():
    """By hand: idf = ln(1 + (N - n + 0.5) / (n + 0.5)), tf / (tf + k1 (1 - b + b length / mean))."""
    index = SearchIndex(["red shoe", "red red lamp table", "blue lamp"])
    assert index.search("the reds") == (1, 0)  # 2 / (2 + .9 (.6 + .4 * 1.5)) > 1 / (1 + .9 (.6 + .4 * .75))
    assert index.search("lamp shoe") == (0, 2, 1)  # shoe is rarer; the shorter lamp text comes first
    assert index.search("of the") == index.search("sofa") == ()
    assert index.search("red") == index.search("RED") and index.search("red lamp blue")[0] == 2
