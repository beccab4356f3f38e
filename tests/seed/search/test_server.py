"""The retrieval client against a server that fails in every way."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sprout.seed.envs.search import SearchEnv
from sprout.seed.envs.search.passages import Passage
from sprout.seed.envs.search.server import RetrievalServer

ITEM = {"document": {"id": 7, "contents": '"Nile"\nA river.'}, "score": 1.5}
GOOD = {"result": [[ITEM]]}


class Server(ThreadingHTTPServer):
    """Answers each request with the next of `answers`: a JSON value, bytes, a status, or a function."""

    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_):
        pass


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, body))
        answer = self.server.answers.pop(0) if len(self.server.answers) > 1 else self.server.answers[0]
        if callable(answer):
            answer(self)
        elif isinstance(answer, int):
            self.send_error(answer)
        else:
            self.reply(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

    def reply(self, content, length=None):
        self.send_response(200)
        self.send_header("Content-Length", str(len(content) if length is None else length))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


def hang(_):
    time.sleep(1.5)


def dribble(handler):
    handler.reply(b"", length=1000)
    for _ in range(15):
        time.sleep(0.1)
        handler.wfile.write(b" ")
        handler.wfile.flush()


def hang_up(handler):
    handler.connection.close()


def stop_halfway(handler):
    handler.reply(b'{"result": [[', length=1000)


def no_http(handler):
    handler.wfile.write(b"hello\r\n\r\n")


@pytest.fixture
def server():
    server = Server(("127.0.0.1", 0), Handler)
    server.asked, server.answers = [], [GOOD]
    server.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def client(server, **options):
    return RetrievalServer(server.url, **({"timeout_s": 0.4, "retries": 2, "first_wait_s": 0.01} | options))


def test_asks_and_reads(server):
    server.answers = [
        {"result": [[ITEM, {"document": {"id": "8", "title": "t", "text": "x"}, "score": 1}], []]}
    ]
    assert client(server).retrieve(["nile", "other"], 1) == [[Passage("7", "Nile", "A river.", 1.5)], []]
    assert server.asked == [("/retrieve", {"queries": ["nile", "other"], "topk": 1, "return_scores": True})]
    assert client(server).retrieve([], 1) == [] and len(server.asked) == 1


def test_a_path_of_its_own_is_kept(server):
    RetrievalServer(f"{server.url}/dense/retrieve").retrieve(["a"], 3)
    RetrievalServer(f"{server.url}/").retrieve(["a"], 3)
    assert [path for path, _ in server.asked] == ["/dense/retrieve", "/retrieve"]


@pytest.mark.parametrize(
    "failure",
    [500, 503, 429, hang, dribble, hang_up, stop_halfway, no_http, b"<html>", b"\xff", {"result": [[], []]}],
)
def test_a_passing_failure_is_tried_again(server, failure):
    server.answers = [failure, GOOD]
    assert client(server).retrieve(["a"], 3)[0][0].title == "Nile"
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (500, "500 Internal Server Error"),
        (hang, "TimeoutError"),
        (dribble, "TimeoutError"),
        (hang_up, ""),
        (stop_halfway, "JSONDecodeError"),
        (no_http, ""),
        (b"<html>", "JSONDecodeError"),
        (b"[]", "its answer is no {result"),
        ({"result": 3}, "its answer is no {result"),
        ({"result": [3]}, "its answer is no {result"),
        ({"result": []}, "0 results for 1 queries"),
        ({"result": [[{"id": 1}]]}, "a result is no {document"),
        ({"result": [[{"document": {"id": 1}, "score": 1}]]}, "a passage needs title and text"),
        ({"result": [[{"document": 1, "score": 1}]]}, "a passage is an object"),
    ],
)
def test_a_lasting_failure_is_one_line(server, failure, said):
    server.answers = [failure]
    started = time.monotonic()
    with pytest.raises(ConnectionError) as error:
        client(server).retrieve(["a"], 3)
    assert time.monotonic() - started < 3.5
    assert f"retrieval server {server.url}/retrieve: " in str(error.value) and "\n" not in str(error.value)
    assert said in str(error.value) and len(server.asked) == 3


@pytest.mark.parametrize("status", [400, 404, 422])
def test_a_refusal_is_not_repeated(server, status):
    server.answers = [status]
    with pytest.raises(ConnectionError, match=str(status)):
        client(server).retrieve(["a"], 3)
    assert len(server.asked) == 1


def test_nobody_listens(server):
    server.shutdown()
    server.server_close()
    with pytest.raises(ConnectionError, match="URLError"):
        client(server).retrieve(["a"], 3)


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://a/b", "http://", "http:///retrieve"])
def test_no_address(url):
    with pytest.raises(ValueError, match="is no address such as"):
        RetrievalServer(url)


def test_in_the_environment(server, library):
    env = SearchEnv(questions=str(library / "train"), server=server.url, retries=0, timeout_s=0.4)
    env.reset(seed=0)
    observation, *_, info = env.step("<search>nile</search>")
    assert 'Doc 1(Title: "Nile") A river.' in observation and info["retrieved"] == ["7"]
    server.answers = [500]
    with pytest.raises(ConnectionError, match="retrieval server"):
        env.step("<search>nile</search>")
