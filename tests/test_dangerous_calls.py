"""No source executes what a file names, fetches it from anywhere, or prints it as it is."""

import ast
from pathlib import Path

import pytest

import sprout.bench
import sprout.engine
import sprout.kernels
import sprout.seed


def sources():
    packages = (sprout.kernels, sprout.engine, sprout.seed, sprout.bench)
    roots = [Path(package.__file__).parent for package in packages]
    return [file for root in roots for file in sorted(root.rglob("*.py")) if ".venv" not in file.parts]


FLAGS = {"trust_remote_code": "True", "allow_pickle": "True", "shell": "True", "weights_only": "False"}
EXECUTE = {"eval", "exec", "compile", "Unpickler", "os.system", "os.popen", "torch.load", "yaml.load"}
EXECUTE |= {"yaml.unsafe_load", "yaml.full_load"}
SHOW = {"print", "typer.echo", "Console"}
PICKLES = ("pickle", "marshal", "shelve", "joblib", "dill", "cloudpickle")
ALLOWED = {"worker_process.py": {"pickle.loads"}}  # between a run and the workers that it has started


def dangers(tree):
    """Calls that execute what they are given, fetch it from anywhere, or show it as it is."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        module, _, function = name.rpartition(".")
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        yield from (f"{flag}={value}" for flag, value in FLAGS.items() if given.get(flag) == value)
        if name in EXECUTE | SHOW or (module in PICKLES and function in ("load", "loads", "open")):
            yield name
        if function == "from_pretrained" and not given.keys() & {"local_files_only", None}:  # None: **options
            yield f"{name} from anywhere"


# Their own texts, or `visible` ones.
PRINTS = {"terminal.py", "cli.py", "serve.py", "gpu_check.py", "scaling_rank.py"}


@pytest.mark.parametrize("file", sources(), ids=lambda file: "/".join(file.parts[-3:]))
def test_no_source_executes_or_prints_what_it_is_given(file):
    found = set(dangers(ast.parse(file.read_text())))
    found -= ALLOWED.get(file.name, set()) | ({"print"} if file.name in PRINTS else set())
    assert not found
