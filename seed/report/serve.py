"""The report over HTTP, rebuilt when a run has written something new.

Only three things are answered: `/` (the page), `/data.json` (what it shows, with an ETag) and the browser's
question for an icon. No path reaches the disk. On a loopback address only requests for a loopback name are
answered, so that no page elsewhere can read the report through the browser of the person who runs it.
"""

from __future__ import annotations

import hashlib
import ipaddress
import socket
import sys
import threading
import warnings
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import orjson

from sprout.engine.terminal import one_line
from sprout.seed.report.audit import Known, Limits
from sprout.seed.report.data import report_data
from sprout.seed.report.page import html
from sprout.seed.report.runs import find_runs

REFRESH_S = 5.0
WATCHED = ("metrics.jsonl", "evals/*", "scores/*", "stages/*", "checkpoints/*/COMPLETE")
UNREADABLE = (ValueError, OSError)


class LiveReport:
    """The data of the runs in `folders`, built anew when one of their files has changed."""

    def __init__(self, folders: Sequence[Path], limits: Limits) -> None:
        self._folders, self._limits = folders, limits
        self._lock = threading.Lock()
        self._known: Known = {}
        self._seen: list[tuple[str, int, int]] | None = None
        self._body, self._tag = b"", ""

    def data(self) -> tuple[bytes, str]:
        """JSON and its ETag. Raises ValueError or OSError while a run cannot be read."""
        with self._lock:
            seen = self._files()
            if seen != self._seen:
                body = orjson.dumps(report_data(self._folders, self._limits, known=self._known))
                self._seen, self._body = seen, body
                self._tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            return self._body, self._tag

    def _files(self) -> list[tuple[str, int, int]]:
        """Name, time and size of everything that the report is made of."""
        roots = [run.folder.root for run in find_runs(self._folders)]
        found = [file for root in roots for pattern in WATCHED for file in sorted(root.glob(pattern))]
        stats = [(str(file), file.stat()) for file in found if file.exists()]
        return [(name, stat.st_mtime_ns, stat.st_size) for name, stat in stats]


def make_server(report: LiveReport, host: str, port: int) -> ThreadingHTTPServer:
    """A server that is bound but does not run yet. Raises OSError naming the address and what to change."""

    class Handler(_Handler):
        live = report
        loopback = _is_loopback(host)

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    try:
        return Server((host, port), Handler)
    except OSError as error:
        reason = error.strerror or error
        raise OSError(f"cannot serve on {host}:{port}: {reason}; choose another --port or --host") from None


def serve(folders: Sequence[Path], host: str, port: int, limits: Limits) -> None:
    """Serve until interrupted. Raises what `report_data` raises, before anything is served."""
    report = LiveReport(folders, limits)
    report.data()
    with make_server(report, host, port) as server:
        if not _is_loopback(host):
            warnings.warn(f"{host} is not a loopback address: others can read this report", stacklevel=2)
        name = f"[{host}]" if ":" in host else host
        print(f"http://{name}:{server.server_address[1]}/ (Ctrl-C ends it)", flush=True)
        server.serve_forever()


class _Handler(BaseHTTPRequestHandler):
    live: LiveReport
    loopback: bool
    server_version = "sprout-report"
    timeout = 30

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if self.loopback and not _is_loopback(_host_name(self.headers.get("Host", ""))):
            self._answer(HTTPStatus.FORBIDDEN, b"ask for a loopback address\n")
        elif path == "/favicon.ico":
            self._answer(HTTPStatus.NO_CONTENT, b"")
        elif path not in ("/", "/data.json"):
            self._answer(HTTPStatus.NOT_FOUND, b"there is only /\n")
        else:
            self._report(path)

    def _report(self, path: str) -> None:
        try:
            body, tag = self.live.data()
        except UNREADABLE as error:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{one_line(str(error))}\n".encode())
            return
        if path == "/":
            self._answer(HTTPStatus.OK, html(body, REFRESH_S, tag), "text/html; charset=utf-8")
        elif self.headers.get("If-None-Match") == tag:
            self._answer(HTTPStatus.NOT_MODIFIED, b"", tag=tag)
        else:
            self._answer(HTTPStatus.OK, body, "application/json", tag)

    def _answer(
        self, status: HTTPStatus, body: bytes, kind: str = "text/plain; charset=utf-8", tag: str = ""
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        if tag:
            self.send_header("ETag", tag)
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, *_: object) -> None:
        """A page that asks every few seconds is nothing to write down."""

    def log_message(self, format: str, *args: object) -> None:
        print(f"report: {one_line(format % args)}", file=sys.stderr)


def _host_name(header: str) -> str:
    """The name in a Host header; empty for one that makes no sense."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
