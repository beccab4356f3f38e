"""The analyzer behind a server: order, retries, refusals, against a local HTTP server."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sprout.seed.analyzer.prompt import format_answer
from sprout.seed.analyzer.server import OpenAIAnalyzer

WORDS = {"success": "task success", "failure": "task failure"}


@pytest.fixture
def server():
    """A local server that echoes; `script` holds (status, content, finish_reason) of its next answers."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.server.asked.append((self.path, self.headers.get("Authorization"), asked))
            echo = format_answer("s", asked["messages"][1]["content"].splitlines()[0])
            status, content, reason = self.server.script.pop(0) if self.server.script else (200, echo, "stop")
            self.send_response(status)
            self.end_headers()
            choice = {"message": {"content": content}, "finish_reason": reason}
            self.wfile.write(json.dumps({"choices": [choice]}).encode())

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.asked, http.script = [], []
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield http
        http.shutdown()
        thread.join()


@pytest.fixture
def analyzer(server, word_chat):
    url = f"http://127.0.0.1:{server.server_port}/v1/"
    return OpenAIAnalyzer(url, "m", word_chat, WORDS, max_new_tokens=9, retries=2, first_wait_s=0.0)


@pytest.fixture
def played(make_trajectory):
    return lambda task: make_trajectory([], task=task)


def test_skills_come_in_order_and_the_request_is_complete(server, analyzer, played, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    tasks = [f"put pen {number} ." for number in (1, 2, 3)] * 4
    skills = analyzer.analyze([played(task) for task in tasks])
    assert [skill.text for skill in skills] == [f"task : {task}" for task in tasks]
    assert all(skill.valid and skill.analyzer == "openai" and skill.tokens for skill in skills)
    path, key, body = server.asked[0]
    assert (path, key) == ("/v1/chat/completions", "Bearer k")
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("m", 0, 9)
    assert body["messages"][0] == {"role": "system", "content": "task success"}


def test_busy_servers_are_asked_again(server, analyzer, played):
    server.script = [(429, "", ""), (503, "", "")]
    (skill,) = analyzer.analyze([played("put pen 1 .")])
    assert skill.valid and len(server.asked) == 3


def test_an_outage_is_an_error_and_no_invalid_skill(server, analyzer, played):
    server.script = [(500, "", "")] * 3
    with pytest.raises(ConnectionError, match=r"analyzer server http.*500"):
        analyzer.analyze([played("put pen 1 .")])
    server.script = [(401, "", "")]
    with pytest.raises(ConnectionError, match="401"):
        analyzer.analyze([played("put pen 1 .")])
    assert len(server.asked) == 4


def test_answers_that_do_not_parse_are_invalid_skills(server, analyzer, played):
    server.script = [(200, "no", "stop")]
    (skill,) = analyzer.analyze([played("put pen 1 .")])
    assert not skill.valid and skill.raw == "no"
    server.script = [(200, '{"episode', "length")]
    (skill,) = analyzer.analyze([played("put pen 1 .")])
    assert "cut by length" in skill.problem


def test_an_unreachable_server_is_named(word_chat, played):
    analyzer = OpenAIAnalyzer("http://127.0.0.1:9", "m", word_chat, WORDS, max_new_tokens=9, retries=0)
    with pytest.raises(ConnectionError, match=r"analyzer server http://127.0.0.1:9/chat/completions"):
        analyzer.analyze([played("put pen 1 .")])
