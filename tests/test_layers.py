"""Imports point one way only: seed -> engine -> kernels; bench may import all of them."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ALLOWED = {
    "kernels": {"kernels"},
    "engine": {"kernels", "engine"},
    "seed": {"kernels", "engine", "seed"},
    "bench": {"kernels", "engine", "seed", "bench"},
}


def imported(file):
    """Layers of `sprout` that a module imports, with the line of each import."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file}:{node.lineno}: a relative import hides its layer"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            top, _, rest = name.partition(".")
            if top == "sprout":
                yield rest.partition(".")[0], node.lineno


@pytest.mark.parametrize("layer", ALLOWED)
def test_imports_point_down(layer):
    files = sorted((ROOT / layer).rglob("*.py"))
    assert files
    for file in files:
        for name, line in imported(file):
            if (layer, name) == ("seed", "bench"):
                assert file.name == "cli.py", f"{file}:{line}: only the command line may start benchmarks"
                continue
            assert name in ALLOWED[layer], f"{file}:{line}: {layer} must not import sprout.{name}"
