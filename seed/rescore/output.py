"""The folder that `sprout rescore` writes; a killed run goes on after its last whole part.

    tokens/000000.jsonl   one object per turn, per-token lists inside; or tokens/000000.parquet, same columns
    state.json            what has been read and counted so far
    summary.json          the result; rewritten after every part

A part is written before the state that counts it, so a part that no state knows is simply written again.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from sprout.engine.files import replace_file

Records = Sequence[Mapping[str, Any]]


class Output:
    """Parts and state. `settings` are JSON values that must be the same for a folder to go on."""

    def __init__(self, root: Path, settings: Mapping[str, Any], parquet: bool) -> None:
        self.root, self._settings, self._parquet = root, dict(settings), parquet
        if parquet:
            _pyarrow()
        if root.exists() and not root.is_dir():
            raise FileExistsError(f"{root} is a file; give a folder")
        self.state = self._stored()

    def write(self, records: Records, state: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
        """One more part, then the state after it, then the summary of all."""
        number = self.state.get("parts", 0)
        kind = "parquet" if self._parquet else "jsonl"
        (self.root / "tokens").mkdir(parents=True, exist_ok=True)
        content = _parquet(records) if self._parquet else b"".join(orjson.dumps(r) + b"\n" for r in records)
        replace_file(self.root / "tokens" / f"{number:06d}.{kind}", content)
        self.state = {"settings": self._settings, **state, "parts": number + 1}
        replace_file(self.root / "state.json", orjson.dumps(self.state))
        self.write_summary(summary)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Replace summary.json."""
        self.root.mkdir(parents=True, exist_ok=True)
        replace_file(self.root / "summary.json", orjson.dumps(summary, option=orjson.OPT_INDENT_2))

    def _stored(self) -> dict[str, Any]:
        """The state to go on from; empty for a fresh folder. Raises ValueError for other settings."""
        file = self.root / "state.json"
        if not file.is_file():
            if self.root.is_dir() and any(p.name != "tokens" for p in self.root.iterdir()):
                raise FileExistsError(f"{self.root} holds something else; choose another folder")
            return {}
        try:
            state: dict[str, Any] = orjson.loads(file.read_bytes())
        except orjson.JSONDecodeError:
            raise ValueError(f"{file} is damaged; delete {self.root} and start again") from None
        before = state.get("settings", {})
        for key, value in orjson.loads(orjson.dumps(self._settings)).items():
            if before.get(key) != value:
                raise ValueError(
                    f"{self.root} was begun with {key} = {before.get(key)!r}, not {value!r}; "
                    "choose another folder"
                )
        return state


def read_parts(root: Path) -> Iterator[dict[str, Any]]:
    """The turns of all parts, in order."""
    for file in sorted((root / "tokens").iterdir()):
        if file.suffix == ".parquet":
            yield from _pyarrow().parquet.read_table(file).to_pylist()
        else:
            yield from map(orjson.loads, file.read_bytes().splitlines())


def _parquet(records: Records) -> bytes:
    arrow = _pyarrow()
    floats, texts = arrow.list_(arrow.float32()), arrow.list_(arrow.string())
    schema = arrow.schema(
        {
            "trajectory": arrow.string(), "turn": arrow.int32(), "success": arrow.bool_(),
            "skill": arrow.string(), "token": arrow.list_(arrow.int32()), "text": texts,
            "l_theta": floats, "l_skill": floats, "delta": floats, "gate": floats,
            "delta_null": floats, "delta_shuffled": floats,
        }
    )  # fmt: skip
    buffer = io.BytesIO()
    arrow.parquet.write_table(arrow.Table.from_pylist(list(records), schema=schema), buffer)
    return buffer.getvalue()


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError("--parquet needs pyarrow: pip install 'sprout-rl[parquet]'") from error
    return pyarrow
