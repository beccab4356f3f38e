"""COMMANDS.md and the command line say the same: commands, options, settings, files, errors, examples."""

import ast
import re
import shlex
from pathlib import Path

import pytest
import typer

from sprout.bench.cli import bench_app
from sprout.seed import cli
from sprout.seed.config import _all_keys, load_config
from sprout.seed.schema import Config

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "COMMANDS.md").read_text()
SPROUT = typer.main.get_command(cli.app).commands
BENCH = {f"bench {name}": command for name, command in typer.main.get_command(bench_app).commands.items()}
COMMANDS = {name: command for name, command in SPROUT.items() if name != "bench"} | BENCH
SECTIONS = dict(re.findall(r"^##+ sprout ([\w -]+)\n(.*?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL))
STAGES = ("run", *cli.STAGE_HELP)
ONLY_WITH_A_SERVER = {"answers.jsonl"}


def options_of(names):
    found = {"--debug", "--help"}
    for name in names:
        for parameter in COMMANDS[name].params:
            found |= {*parameter.opts, *parameter.secondary_opts}
    return found


def examples(text, prompt):
    """The sprout command lines of a page, without comments; a backslash ends no line."""
    text = re.sub(r" \\\n +", " ", text)
    line = rf"^{prompt}(?:torchrun .* -m )?sprout ((?:(?!  +#|\.\.\.).)+?)(?:  +#.*| \.\.\.)?$"
    return re.findall(line, text, re.MULTILINE)


EXAMPLES = sorted({*examples(TEXT, r"\$ "), *examples((ROOT / "README.md").read_text(), " {4}")})


def test_every_command_has_its_section():
    assert SECTIONS.keys() == COMMANDS.keys() | {"bench"}


def test_every_section_has_an_example():
    shown = [line for text in SECTIONS.values() for line in examples(text, r"\$ ")]
    assert {" ".join(line.split()[: 1 + line.startswith("bench")]) for line in shown} == COMMANDS.keys()


@pytest.mark.parametrize("line", EXAMPLES)
def test_examples_parse_and_their_settings_are_valid(line):
    words = ["--resume=latest" if word == "--resume" else word for word in shlex.split(line)]
    name, rest = (" ".join(words[:2]), words[2:]) if words[0] == "bench" else (words[0], words[1:])
    context = COMMANDS[name].make_context(name, rest)
    if "overrides" in context.params:
        recipe = context.params.get("recipe")
        shipped = recipe if recipe and not recipe.endswith(".yaml") else None
        load_config(shipped, context.params["overrides"] or ())


@pytest.mark.parametrize("name", SECTIONS)
def test_options_that_are_mentioned_exist(name):
    prose = re.sub(r"^\$ torchrun.*$", "", SECTIONS[name], flags=re.MULTILINE)
    prose = re.sub(r"```console.*?```", "", prose, flags=re.DOTALL)
    known = options_of(BENCH if name == "bench" else [name])
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", prose)) <= known


def test_settings_that_are_mentioned_exist():
    known = {*_all_keys()}
    mentioned = re.findall(r"`([a-z]+\.[a-z_0-9]+)(?:=[^`]*)?`", TEXT)
    settings = {key for key in mentioned if key.partition(".")[0] in Config.model_fields}
    assert len(settings) > 20 and settings <= known


def leaves(section):
    """What its "Leaves" item names."""
    found = re.search(r"^- [^\n]*?(?:Leaves|leaves) (.*?)(?=^- |\Z|^#)", section, re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`]+)`", found[1]) if found else []


@pytest.mark.parametrize("name", STAGES)
def test_a_run_leaves_what_its_section_says(tiny, name):
    paths = {path for path in leaves(SECTIONS[name]) if re.search(r"/|\.\w+$", path)}
    paths = {path for path in paths if path.split(".")[0] not in Config.model_fields}
    assert paths
    for path in paths - ONLY_WITH_A_SERVER - {"runs/NAME/"}:
        assert (tiny.folder.root / path).exists(), path


def literals():
    """Every longer string of the sources, values in it shown as an ellipsis."""
    found = []
    for folder in ("seed", "engine", "bench"):
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.JoinedStr):
                    parts = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
                    found.append("".join(map(str, parts)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return [text for text in found if len(text) > 8]


def test_files_and_errors_are_those_of_the_sources():
    texts = literals()
    for path in re.findall(r"`((?:seed|engine|bench)/[\w./]*)`", TEXT):
        assert (ROOT / path).exists(), path
    for name in ("comparison.json", "comparison.png", "state.json", "report.html", "kernels.md"):
        assert f"`{name}`" in TEXT and any(name in text for text in texts), name
    items = re.findall(r"^- Errors: (.*?)(?=^- |^#|\Z)", TEXT, re.MULTILINE | re.DOTALL)
    quoted = [text for item in items for text in re.findall(r"`([^`]+)`", item)]
    errors = [text for text in quoted if "…" in text or " " in text]
    assert len(errors) > 20
    for error in errors:
        pieces = " ".join(error.split()).split("…")
        assert any(re.search(".*".join(map(re.escape, pieces)), text, re.DOTALL) for text in texts), error
