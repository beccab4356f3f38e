"""The page as a file: everything inside, nothing from elsewhere, and text that stays text."""

import base64
import hashlib
import re

import orjson
import pytest

from sprout.seed import cli
from sprout.seed.report.audit import Limits
from sprout.seed.report.page import MARK, html, write_report

ATTACK = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1><!--"


def data_in(page):
    block = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)[1]
    return orjson.loads(block)


def test_injected_text_cannot_leave_its_block(tmp_path, write_run):
    folder = write_run(tmp_path / "a", {1: [[0.1]]}, task=ATTACK, final_observation=ATTACK, family=ATTACK)
    page = write_report([folder.root], tmp_path / "r.html", Limits()).read_text()
    assert "<img" not in page and page.count("<script") == 2 == page.count("</script>")
    [case] = data_in(page)["runs"][0]["audit"]["cases"]
    assert case["task"] == case["final"] == case["family"] == ATTACK


def test_the_policy_allows_the_pages_own_script_and_style_only():
    page = html(b"{}").decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    for tag in ("script", "style"):
        text = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)[1]
        assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in policy
    assert not re.search(r"""(src|href)=["']?(https?:|//)""", page)
    assert "innerHTML" not in page and "document.write" not in page


def test_a_report_is_written_over_a_report_but_over_nothing_else(tmp_path, write_run):
    folder = write_run(tmp_path / "a", {1: [[0.1]]})
    out = folder.root / "report.html"
    assert cli.execute(["report", str(folder.root)]) == 0
    first = out.read_bytes()
    assert MARK in first and cli.execute(["report", str(folder.root)]) == 0
    config = folder.config_file.read_bytes()
    with pytest.raises(FileExistsError, match="is no report"):
        write_report([folder.root], folder.config_file, Limits())
    assert folder.config_file.read_bytes() == config


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsuch"], "nonsuch does not exist"),
        (["."], "holds no run"),
        ([".", "--serve", "--port", "0"], "holds no run"),
    ],
)
def test_errors_are_one_line(tmp_path, monkeypatch, capfd, arguments, words):
    monkeypatch.chdir(tmp_path)
    assert cli.execute(["report", *arguments]) == 2
    error = capfd.readouterr().err
    assert len(error.splitlines()) == 1 and words in error
