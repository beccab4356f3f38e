"""The page in a real browser (extra `browser`, and Chromium): it draws, filters, links, and executes no data.

With SPROUT_SCREENSHOTS=FOLDER it leaves pictures there, to be looked at.
"""

import os
import shutil
import threading
from pathlib import Path

import pytest

from sprout.engine.metrics import MetricsLogger
from sprout.seed.report.audit import Limits
from sprout.seed.report.page import write_report
from sprout.seed.report.serve import LiveReport, make_server
from sprout.seed.trajectory import Skill

pytestmark = pytest.mark.slow
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ATTACK = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>"
DELTAS = {1: [[0.5, -0.5], [0.1], [1.0], [0.2, 0.2]], 4: [[-3.0], [0.3], [0.6], [-0.7]]}


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the extra browser")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def open_page(browser):
    """Opens an address in a window of its own; whatever its console says fails the test."""
    said, windows = [], []

    def visit(address, width=1280, scheme="light"):
        window = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        windows.append(window)
        page = window.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(address)
        return page

    yield visit
    for window in windows:
        window.close()
    assert said == []


@pytest.fixture
def report(tmp_path, write_run):
    """Address of a written report of two runs, one with a hostile task, skill and response."""
    write_run(tmp_path / "runs" / "one", DELTAS)
    skill = Skill(text=ATTACK, analyzer=ATTACK, valid=False, raw=ATTACK, problem=ATTACK)
    hostile = {"task": ATTACK, "family": ATTACK, "skill": skill, "teacher_skill": ATTACK}
    write_run(tmp_path / "runs" / "two", DELTAS, "objective.name=grpo", **hostile)
    return write_report([tmp_path / "runs"], tmp_path / "r.html", Limits()).as_uri()


def look(page, name):
    folder = os.environ.get("SPROUT_SCREENSHOTS")
    if folder:
        page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)


@pytest.mark.parametrize(
    ("name", "width", "scheme"), [("light", 1280, "light"), ("dark", 1280, "dark"), ("phone", 390, "light")]
)
def test_it_draws_in_light_dark_and_on_a_phone(open_page, report, name, width, scheme):
    page = open_page(report, width, scheme)
    page.wait_for_selector("#curves svg path")
    assert page.locator("#curves svg").count() >= 6
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    light = sum(page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"))
    assert (light < 200) == (scheme == "dark")
    page.select_option("#theme", "light" if scheme == "dark" else "dark")
    switched = sum(
        page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    )
    assert (switched < 200) != (scheme == "dark")
    page.select_option("#theme", "")
    page.locator("#cases a").first.click()
    look(page, name)


def test_filters_and_orders_choose_cases(open_page, report):
    page = open_page(report)
    assert page.locator("#cases a").count() == 16
    page.select_option("[name=run]", "one")
    page.select_option("[name=outcome]", "failure")
    assert page.locator("#cases .outcome").all_inner_texts() == ["failure"] * 4
    page.select_option("[name=only]", "disagreement")
    assert page.locator("#cases a").count() == 2
    page.select_option("[name=only]", "")
    page.select_option("[name=order]", "delta")
    assert "max |Δ| 3.00" in page.locator("#cases a").first.inner_text()
    page.select_option("[name=outcome]", "")
    page.select_option("[name=skill]", "invalid")
    assert page.locator("#cases a").count() == 4
    page.fill("[name=find]", "nothing like it")
    assert page.locator("#count").inner_text() == "0 cases"
    page.locator("#runs input").first.uncheck()
    assert page.locator("[name=run] option").all_inner_texts() == ["all", "two"]


def test_a_permanent_link_opens_its_case(open_page, report):
    page = open_page(f"{report}#case=one/4/train-1/0")
    assert page.locator("#case .outcome").inner_text() == "failure"
    assert page.locator("#case .token.negative").count() == 3
    assert not {"null", "undefined", "NaN"} & set(page.locator("#case").inner_text().split())
    link = page.get_by_text("Permanent link").get_attribute("href")
    assert (
        open_page(report + link).locator("#case .facts").inner_text()
        == page.locator("#case .facts").inner_text()
    )
    assert "not in this page" in open_page(f"{report}#case=one/9/x/0").locator("#case").inner_text()


def test_everything_is_reached_by_keyboard(open_page, report):
    page = open_page(report)
    page.locator("#curves svg").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#curves output").first.inner_text().startswith("update 1: ")
    page.locator("#cases a").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_function("document.activeElement.id === 'case'")
    page.locator("#case .token[tabindex='0']").focus()
    first = page.locator("#token").inner_text()
    assert "Δ" in first and "gate" in first and "l_skill" in first and "advantage +0.250" in first
    page.keyboard.press("ArrowRight")
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.className").startswith("token")
    assert page.locator("#token").inner_text() != first


def test_injected_text_is_shown_as_text(open_page, report):
    page = open_page(f"{report}#case=two/1/train-1/0")
    assert page.locator("#case h3").inner_text() == ATTACK
    assert ATTACK in page.locator("#case .facts").inner_text()
    assert page.locator("img").count() == 0 and page.evaluate("window.hacked") is None


def test_a_served_page_follows_the_run(open_page, tmp_path, write_run):
    folder = write_run(tmp_path / "run", DELTAS)
    with make_server(LiveReport([folder.root], Limits()), "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = open_page(f"http://127.0.0.1:{server.server_address[1]}/")
        page.locator("#cases a").first.click()
        case = page.locator("#case h3").inner_text()
        MetricsLogger(folder.root, resume_from=5, tensorboard=False).log(5, {"episode/success_rate": 0.9})
        page.get_by_text("5 updates").wait_for(timeout=30_000)
        assert page.locator("#live").inner_text().startswith("live, as of")
        assert page.locator("#case h3").inner_text() == case
        server.shutdown()
