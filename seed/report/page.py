"""The page: assets/page.html with style, scripts and data inside, so that one file is all there is.

Data are JSON in a block that is never executed, with `<` escaped; the scripts put them into the page as text
only. The page's own policy allows exactly its style and its scripts, nothing from elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import orjson
from jinja2 import Template

from sprout.engine.files import replace_file
from sprout.engine.terminal import PlainConsole
from sprout.seed.report.audit import Limits
from sprout.seed.report.data import report_data

MARK = b'<meta name="generator" content="sprout report">'
SCRIPTS = ("elements.js", "chart.js", "distributions.js", "curves.js", "audit.js", "page.js")


def write_report(folders: Sequence[Path], out: Path, limits: Limits) -> Path:
    """Write the report of the runs in `folders` to `out`.

    Raises FileExistsError for a file that is no report, and what `report_data` raises.
    """
    if out.is_dir():
        raise IsADirectoryError(f"{out} is a folder; give --out the name of a file")
    if out.exists() and MARK not in out.read_bytes()[:4096]:
        raise FileExistsError(f"{out} exists and is no report; choose another file with --out")
    page = html(orjson.dumps(report_data(folders, limits, PlainConsole(stderr=True))))
    out.parent.mkdir(parents=True, exist_ok=True)
    replace_file(out, page)
    return out


def html(data: bytes, refresh_s: float = 0, tag: str = "") -> bytes:
    """The whole page around `data`, JSON in UTF-8.

    With `refresh_s` it asks `data.json` that often for what is newer than `tag`.
    """
    style, script = _asset("style.css"), "".join(map(_asset, SCRIPTS))
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
        f"connect-src 'self'; base-uri 'none'; form-action 'none'"
    )
    parts = {"policy": policy, "style": style, "script": script, "data": embedded(data)}
    return Template(_asset("page.html")).render(parts, refresh=refresh_s, tag=tag).encode()


def embedded(data: bytes) -> str:
    """The same JSON, unable to end the script block it stands in."""
    return data.decode().replace("<", "\\u003c")


def _asset(name: str) -> str:
    return (files("sprout.seed.report") / "assets" / name).read_text("utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
