"""Started in the checkout's root, Python must still find Hugging Face's package named `kernels`."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

from sprout.kernels.namesake import give_way

ROOT = Path(__file__).resolve().parents[2]


def test_the_next_package_of_that_name_is_imported(tmp_path):
    theirs = tmp_path / "kernels"
    theirs.mkdir()
    (theirs / "__init__.py").write_text("from kernels import inner\n")
    (theirs / "inner.py").write_text("NAME = 'theirs'\n")
    program = (
        f"import sys; sys.path[:1] = [{str(ROOT)!r}, {str(tmp_path)!r}]\n"
        "import kernels, sprout.kernels\n"
        "print(kernels.__file__, kernels.inner.NAME, sprout.kernels.rms_norm.__module__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == f"{theirs / '__init__.py'} theirs sprout.kernels.rms_norm\n"


def test_ours_stays_where_there_is_no_other(monkeypatch):
    ours = ModuleType("kernels")
    monkeypatch.setitem(sys.modules, "kernels", ours)
    monkeypatch.setattr(sys, "path", [str(ROOT)])
    give_way(str(ROOT / "kernels/__init__.py"))
    assert sys.modules["kernels"] is ours
