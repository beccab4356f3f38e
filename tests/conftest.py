"""Fixtures of all tests."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data():
    """The folder of real inputs: `$SPROUT_SHARED_DATA`, else `../shared/data` beside the checkout."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("SPROUT_SHARED_DATA") or beside)
    if not folder.is_dir():
        pytest.skip(f"no real inputs: {folder} is not there; set SPROUT_SHARED_DATA")
    return folder
