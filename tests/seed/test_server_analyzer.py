"""The analyzer behind a server: order, retries, refusals, kept answers, against a local HTTP server."""

import json
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sprout.seed.analyzer.answers import Answer, Answers
from sprout.seed.analyzer.prompt import format_answer, parse_answer
from sprout.seed.analyzer.server import OpenAIAnalyzer, Server, usage

pytest.importorskip("openai")
WORDS = {"success": "task success", "failure": "task failure"}


class Handler(BaseHTTPRequestHandler):
    """Echoes the task as the skill, unless the server's `script` has something else to do next."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.asked.append((self.path, self.headers.get("Authorization"), asked))
            behave = self.server.script.pop(0) if self.server.script else completion
        behave(self, asked)

    def answer(self, status, body, length=None):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


def completion(handler, asked, text=None, reason="stop"):
    text = text or format_answer("s", asked["messages"][1]["content"].splitlines()[0])
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": reason}
    usage = {"prompt_tokens": 10, "completion_tokens": 5}
    handler.answer(200, json.dumps({"choices": [choice], "usage": usage}).encode())


def says(text, reason="stop"):
    return lambda handler, asked: completion(handler, asked, text, reason)


def fails(status, body=b"{}"):
    return lambda handler, _: handler.answer(status, body)


def hangs(handler, _):
    time.sleep(4)


def cuts(handler, _):
    handler.answer(200, b'{"choices": [{"mess', length=4000)


def drops(handler, _):
    handler.connection.close()


FAULTS = {
    "429": fails(429),
    "500": fails(500, b"<html>oops</html>"),
    "503": fails(503),
    "hang": hangs,
    "cut body": cuts,
    "dropped": drops,
    "html": fails(200, b"<html><body>It works!</body></html>"),
    "no json": fails(200, b'{"choices": ['),
    "no choices": fails(200, b'{"error": "busy"}'),
    "no message": fails(200, b'{"choices": [{}]}'),
    "a list": fails(200, b"[1]"),
}
FASTER = {"hang": {"timeout_s": 1.0}}


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.asked, http.script, http.lock = [], [], threading.Lock()
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield http
        http.shutdown()
        thread.join()


@pytest.fixture
def where(server):
    url = f"http://127.0.0.1:{server.server_port}/v1/"
    return Server(
        url, "m", retries=2, timeout_s=30.0, first_wait_s=0.0, prompt_price=2.0, completion_price=4.0
    )


@pytest.fixture
def build(where, word_chat):
    def make(answers=None, **changes):
        there = replace(where, **changes)
        return OpenAIAnalyzer(there, word_chat, WORDS, max_new_tokens=9, answers=answers)

    return make


@pytest.fixture
def played(make_trajectory):
    return lambda task="put pen 1 .": make_trajectory([], task=task)


def test_skills_come_in_order_and_the_request_is_complete(server, build, played, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    tasks = [f"put pen {number} ." for number in (1, 2, 3)] * 4
    analyzer = build()
    skills = analyzer.analyze([played(task) for task in tasks])
    assert [skill.text for skill in skills] == [f"task : {task}" for task in tasks]
    assert all(skill.valid and skill.analyzer == "openai" and skill.tokens for skill in skills)
    path, key, body = server.asked[0]
    assert (path, key) == ("/v1/chat/completions", "Bearer k")
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("m", 0, 9)
    assert body["messages"][0] == {"role": "system", "content": "task success"}


KEY = "sk-0123456789abcdef"


def echoes(status):
    """A server that sends back what it was sent, header and all."""

    def behave(handler, asked):
        header = handler.headers["Authorization"]
        if status == 200:
            return completion(handler, asked, format_answer(header, f"put pen 1 {header}"))
        handler.answer(status, json.dumps({"error": {"message": f"Incorrect API key: {header}"}}).encode())

    return behave


@pytest.mark.parametrize("status", [200, 401, 500])
def test_a_key_that_is_sent_back_is_kept_nowhere(server, build, played, tmp_path, monkeypatch, status):
    monkeypatch.setenv("OPENAI_API_KEY", f" {KEY}\n")
    server.script = [echoes(status)] * 3
    analyzer = build(tmp_path / "answers.jsonl")
    if status == 200:
        (skill,) = analyzer.analyze([played()])
        assert "[key]" in skill.raw and KEY not in skill.model_dump_json()
    else:
        with pytest.raises(ConnectionError, match=r"\[key\]") as raised:
            analyzer.analyze([played()])
        assert KEY not in str(raised.value)
    assert server.asked[0][1] == f"Bearer {KEY}"
    stored = tmp_path / "answers.jsonl"
    assert not stored.exists() or KEY not in stored.read_text()


@pytest.mark.parametrize("key", ["sk-01234\n56789", "sk-0123 456789", "sk-0123\x1b456789", "schlüssel"])
def test_a_key_that_no_header_can_hold_is_not_shown(build, monkeypatch, key):
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(ValueError, match="OPENAI_API_KEY holds") as raised:
        build()
    assert key not in str(raised.value)


def test_tokens_and_cost_are_counted_once(server, build, played):
    analyzer = build()
    analyzer.analyze([played()])
    # 10 tokens at 2 and 5 at 4 per million
    counts = {"requests": 1, "retries": 0, "prompt_tokens": 10, "completion_tokens": 5, "cost": 4e-5}
    assert usage(analyzer) == pytest.approx(counts)
    assert set(usage(analyzer).values()) == {0.0} and usage(object()) == {}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_that_may_pass_is_asked_again(server, build, played, fault):
    server.script = [FAULTS[fault]] * 2
    analyzer = build(**FASTER.get(fault, {}))
    (skill,) = analyzer.analyze([played()])
    assert skill.valid and len(server.asked) == 3
    assert usage(analyzer)["retries"] == 2 and usage(analyzer)["requests"] == 0


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_stays_is_an_error_and_no_invalid_skill(server, build, played, fault, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key")
    server.script = [FAULTS[fault]] * 3
    with pytest.raises(ConnectionError, match=r"analyzer server http://127.0.0.1.*: \S+") as caught:
        build(**FASTER.get(fault, {})).analyze([played()])
    assert "\n" not in str(caught.value) and "secret-key" not in str(caught.value)
    assert len(server.asked) == 3


def test_a_refusal_is_final(server, build, played):
    server.script = [fails(401, b"no such key")]
    with pytest.raises(ConnectionError, match="401: no such key"):
        build().analyze([played()])
    assert len(server.asked) == 1


def test_an_unreachable_server_is_named(build, played):
    analyzer = build(base_url="http://127.0.0.1:9", retries=0)
    with pytest.raises(ConnectionError, match=r"analyzer server http://127.0.0.1:9: "):
        analyzer.analyze([played()])


def test_answers_that_do_not_parse_are_invalid_skills(server, build, played):
    server.script = [says("no")]
    (skill,) = build().analyze([played()])
    assert not skill.valid and skill.raw == "no"
    server.script = [says('{"episode', "length")]
    (skill,) = build().analyze([played()])
    assert "cut by length" in skill.problem


def test_broken_json_is_repaired(server, build, played):
    server.script = [says("```json\n{'episode_summary': 'put it', \"episode_skill\": \"take pen 1 .\",\n```")]
    (skill,) = build().analyze([played()])
    assert skill.valid and (skill.summary, skill.text) == ("put it", "take pen 1 .")
    with pytest.raises(ValueError, match="no JSON object"):  # what the policy itself writes is never repaired
        parse_answer("{'episode_summary': 'put it', 'episode_skill': 'take pen 1 .'}")


def test_an_outage_loses_no_answer_and_nothing_is_asked_twice(server, build, played, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key")
    tasks = [played(f"put pen {number} .") for number in (1, 2, 3)]
    server.script = [completion, completion, *[fails(500)] * 3]
    file = tmp_path / "run" / "answers.jsonl"
    with pytest.raises(ConnectionError):
        build(file, concurrency=1).analyze(tasks)
    again = build(file, concurrency=1)
    skills = again.analyze(tasks)
    assert [skill.text for skill in skills] == [f"task : {t.task}" for t in tasks]
    assert len(server.asked) == 6 and usage(again)["requests"] == 1
    assert build(file).analyze(tasks) == skills and len(server.asked) == 6
    assert "secret-key" not in file.read_text()
    build(file, model="other").analyze(tasks[:1])
    assert len(server.asked) == 7


def test_a_torn_line_is_asked_again(tmp_path):
    file = tmp_path / "answers.jsonl"
    first, second = Answer("one", "stop", 1, 2), Answer("two\nlines", "stop")
    Answers(file).add({"a": 1}, first)
    Answers(file).add({"a": 2}, second)
    file.write_bytes(file.read_bytes()[:-5])
    found = Answers(file)
    assert found.get({"a": 1}) == first and found.get({"a": 2}) is None
    found.add({"a": 2}, second)
    assert Answers(file).get({"a": 2}) == second and Answers(file).get({"a": 1}) == first
