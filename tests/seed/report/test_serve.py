"""The served report: what is answered, what is refused, and that it follows the run."""

import http.client
import socket
import threading

import orjson
import pytest

from sprout.engine.metrics import MetricsLogger
from sprout.seed.report.audit import Limits
from sprout.seed.report.serve import LiveReport, make_server


@pytest.fixture
def served(tmp_path, write_run):
    """(folder, ask): a running server, and a function from path and headers to (status, headers, body)."""
    folder = write_run(tmp_path / "a", {1: [[0.1]]})
    with make_server(LiveReport([folder.root], Limits()), "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def ask(path, **headers):
            connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()

        ask.port = server.server_address[1]
        yield folder, ask
        server.shutdown()


def test_the_page_and_its_data_follow_the_run(served):
    folder, ask = served
    status, headers, page = ask("/")
    assert status == 200 and headers["Content-Type"].startswith("text/html") and b'data-refresh="5' in page
    _, headers, body = ask("/data.json")
    tag = headers["ETag"]
    assert orjson.loads(body)["runs"][0]["updates"] == 1
    assert tag.encode() in page and ask("/data.json", **{"If-None-Match": tag})[0] == 304
    MetricsLogger(folder.root, resume_from=2, tensorboard=False).log(2, {"episode/success_rate": 0.9})
    status, headers, body = ask("/data.json", **{"If-None-Match": tag})
    assert status == 200 and headers["ETag"] != tag and orjson.loads(body)["runs"][0]["updates"] == 2


@pytest.mark.parametrize(
    "path", ["/config.yaml", "/../config.yaml", "/%2e%2e/etc/passwd", "//etc/passwd", "//[", "/a"]
)
def test_nothing_else_is_served(served, path):
    status, _, body = served[1](path)
    assert status == 404 and b"updates" not in body


def test_only_loopback_names_are_answered(served):
    _, ask = served
    assert [ask("/", Host=host)[0] for host in ("localhost:1", "127.0.0.1", "[::1]:9")] == [200] * 3
    assert [ask("/data.json", Host=host)[0] for host in ("evil.example", "10.0.0.1", "")] == [403] * 3
    assert [ask("/data.json", Host=host)[0] for host in ("[", "::1]", "localhost@evil.example")] == [403] * 3


def test_what_is_logged_of_a_request_is_text(served, capfd):
    _, ask = served
    with socket.create_connection(("127.0.0.1", ask.port), timeout=30) as raw:
        raw.sendall(b"\x1b]0;owned\x07\x1b[2J / HTTP/1.0\r\n\r\n")
        raw.makefile("rb").read()
    err = capfd.readouterr().err
    assert "report: code 501" in err and "\x1b" not in err and r"\x1b]0;owned" in err


def test_a_run_that_cannot_be_read_is_said_and_recovers(served):
    folder, ask = served
    evaluation = folder.evaluation(1).read_bytes()
    folder.evaluation(1).write_text("{")
    status, _, body = ask("/data.json")
    assert status == 503 and b"000001.json" in body and len(body.splitlines()) == 1
    folder.evaluation(1).write_bytes(evaluation)
    assert ask("/data.json")[0] == 200


def test_an_address_in_use_is_one_line(served, tmp_path):
    report = LiveReport([tmp_path / "a"], Limits())
    with make_server(report, "127.0.0.1", 0) as first, pytest.raises(OSError, match="choose another --port"):
        make_server(report, "127.0.0.1", first.server_address[1])
