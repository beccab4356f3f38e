"""What SECURITY.md promises, tried: hostile folders and files run no code and touch nothing but their own."""

import json
import os
import pickle
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import numpy as np
import orjson
import pytest
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerFast

from sprout.engine import checkpoint
from sprout.engine.chat import ChatFormat
from sprout.engine.files import replace_file
from sprout.engine.gguf import _read
from sprout.engine.optimizer import Optimizer, OptimizerConfig
from sprout.engine.tokenizer import load_tokenizer
from sprout.engine.weights import load_model, save_model
from sprout.seed import cli
from sprout.seed.config import dump_config, load_config
from sprout.seed.envs.alfworld.grammar import parse_grammar
from sprout.seed.export import export_model
from sprout.seed.run_dir import RunDir
from sprout.seed.trajectory import Skill, read_trajectories, write_trajectories

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FORBIDDEN = (
    "pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "os.spawn",
    "subprocess.Popen", "socket.connect", "socket.getaddrinfo", "socket.bind",
)  # fmt: skip
_watching: list[tuple[str, str]] | None = None


def _hook(event, args):
    if _watching is not None and event in FORBIDDEN:
        _watching.append((event, repr(args)[:200]))


sys.addaudithook(_hook)


@contextmanager
def nothing_is_executed(folder):
    """Fails if anything of FORBIDDEN happens inside, code of `folder` is imported, or a payload was run."""
    global _watching
    _watching = events = []
    before = set(sys.modules)
    try:
        yield
    finally:
        _watching = None
    found = [sys.modules[name] for name in set(sys.modules) - before]
    assert not events
    assert not [module for module in found if str(folder) in str(getattr(module, "__file__", ""))]
    assert not list(folder.rglob("owned"))


class Payload:
    """Runs when it is unpickled."""

    def __init__(self, mark):
        self.mark = str(mark)

    def __reduce__(self):
        return os.mkdir, (self.mark,)


def poison(folder):
    """Puts into a model folder, or a folder of trainer state, all that other software would execute."""
    code = f"import os\nos.mkdir({str(folder / 'owned')!r})\n"
    for name in ("modeling_evil.py", "configuration_evil.py", "tokenization_evil.py", "__init__.py"):
        (folder / name).write_text(code)
    payload = pickle.dumps(Payload(folder / "owned"))
    for name in ("pytorch_model.bin", "optimizer.pt", "training_args.bin", ".metadata", "__0_0.distcp"):
        (folder / name).write_bytes(payload)
    classes = {"AutoConfig": "configuration_evil.C", "AutoModelForCausalLM": "modeling_evil.M"}
    classes["AutoTokenizer"] = [None, "tokenization_evil.T"]
    for name in ("config.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            content = json.loads((folder / name).read_bytes())
            (folder / name).write_text(json.dumps(content | {"auto_map": classes}))


@pytest.fixture(scope="module")
def stored_run(tmp_path_factory, bpe_chat, make_decoder, make_trajectory):
    """A run folder with a model, a checkpoint and a trajectory, of random weights."""
    run, tokenizer_folder = RunDir(tmp_path_factory.mktemp("stored") / "run"), tmp_path_factory.mktemp("tok")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe_chat.text._backend, eos_token="<|im_end|>")
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(tokenizer_folder)
    decoder = make_decoder(len(tokenizer))
    save_model(decoder, run.stage1_model, tokenizer_folder)
    optimizer = Optimizer(decoder, OptimizerConfig())
    step = checkpoint.step_folder(run.checkpoints, 4)
    checkpoint.save(step, decoder, optimizer, {"update": 4}, tokenizer_folder=tokenizer_folder)
    run.config_file.write_text(dump_config(load_config("tiny")))
    pairs = [([3, 4], [5, 6]), ([3, 4, 5, 6, 7], [8])]
    skill = Skill(text="open it", analyzer="static")
    write_trajectories(run.trajectories(1), [make_trajectory(pairs, skill=skill)])
    return run.root


@pytest.fixture
def run_copy(stored_run, tmp_path):
    return Path(shutil.copytree(stored_run, tmp_path / "run"))


@pytest.fixture
def model(run_copy):
    return run_copy / "checkpoints" / "sft" / "model"


def test_a_pickle_would_be_noticed(tmp_path):
    with pytest.raises(AssertionError), nothing_is_executed(tmp_path):
        pickle.loads(pickle.dumps(Payload(tmp_path / "owned")))


def test_a_model_folder_is_data(model):
    poison(model)
    with nothing_is_executed(model):
        decoder = load_model(model)
        tokenizer = load_tokenizer(model)
        ChatFormat.from_tokenizer(tokenizer)
    assert decoder.config.family and type(tokenizer) is PreTrainedTokenizerFast


@pytest.mark.parametrize("kind", ["qwen2", "evil"])
def test_a_plan_of_a_strangers_model_runs_none_of_its_code(model, tmp_path, capfd, kind):
    poison(model)
    content = json.loads((model / "config.json").read_bytes()) | {"model_type": kind}
    (model / "config.json").write_text(json.dumps(content))
    with nothing_is_executed(tmp_path):
        code = cli.execute(["run", "tiny", "--dry-run", "run.stages=[collect]", f"model.path={model}"])
    captured = capfd.readouterr()
    assert code == (0 if kind == "qwen2" else 2)
    assert kind == "qwen2" or ("config.json: " in captured.err and len(captured.err.splitlines()) == 1)


def test_a_gguf_file_is_read_alone(model, monkeypatch):
    import transformers

    seen = {}

    def from_pretrained(folder, **options):
        seen.update(options, names=[file.name for file in Path(folder).iterdir()])
        raise ValueError("no such quantisation")

    monkeypatch.setitem(sys.modules, "gguf", ModuleType("gguf"))
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", from_pretrained)
    poison(model)
    (model / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(ValueError, match=r"m\.gguf: transformers cannot read it"):
        _read(model / "m.gguf")
    assert seen["names"] == ["m.gguf"] and seen["trust_remote_code"] is False and seen["local_files_only"]


def test_a_checkpoint_is_data(run_copy):
    folder = run_copy / "checkpoints" / "step-000004"
    poison(folder / "trainer")
    for name in ("modeling_evil.py", "pytorch_model.bin"):
        shutil.copy(folder / "trainer" / name, folder / "model")
    decoder = load_model(folder / "model")
    optimizer = Optimizer(decoder, OptimizerConfig())
    with nothing_is_executed(folder):
        assert checkpoint.load(folder, decoder, optimizer)


def test_what_is_written_names_no_code(model, tmp_path):
    poison(model)
    save_model(load_model(model), tmp_path / "again", model)
    files = {file.name for file in (tmp_path / "again").iterdir()}
    assert not [name for name in files if name.endswith((".py", ".bin", ".pt", ".pkl"))]
    for name in ("config.json", "tokenizer_config.json"):
        assert "auto_map" not in (tmp_path / "again" / name).read_text()


def test_an_export_holds_the_model_and_nothing_else(run_copy, tmp_path):
    folder = run_copy / "checkpoints" / "step-000004" / "model"
    for name in ("modeling_evil.py", "pytorch_model.bin"):
        (folder / name).write_bytes(b"x")
    with nothing_is_executed(tmp_path):
        export_model(run_copy, tmp_path / "model")
    found = {file.name for file in (tmp_path / "model").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= found
    assert not found & {"modeling_evil.py", "pytorch_model.bin"}
    secret = tmp_path / "secret"
    secret.write_text("key")
    (folder / "merges.txt").symlink_to(secret)
    with pytest.raises(ValueError, match=r"merges\.txt is a link to .*secret"):
        export_model(run_copy, tmp_path / "other")
    assert not (tmp_path / "other").exists()


ELSEWHERE = ["../outside.safetensors", "{outside}", "a/../../outside.safetensors", "..", "", 7, None, ["x"]]


@pytest.mark.parametrize("name", ELSEWHERE)
def test_an_index_of_shards_leads_to_no_other_folder(model, tmp_path, name):
    outside = model.parent / "outside.safetensors"
    save_file(load_file(model / "model.safetensors"), outside)
    (model / "model.safetensors").unlink()
    name = name.format(outside=outside) if isinstance(name, str) else name
    index = {"weight_map": {"model.norm.weight": name}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises((ValueError, FileNotFoundError), match=r"no file of this folder|does not exist"):
        load_model(model)


@pytest.mark.parametrize("name", ["../../../secret", "/etc/hostname"])
def test_a_checkpoints_marker_leads_to_no_other_folder(run_copy, name):
    folder = run_copy / "checkpoints" / "step-000004"
    manifest = json.loads((folder / "COMPLETE").read_bytes())
    manifest[name] = {"bytes": 1, "sha256": "0"}
    (folder / "COMPLETE").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="COMPLETE is damaged"):
        checkpoint.verify(folder)


TEMPLATES = [
    "{{ cycler.__init__.__globals__.os.mkdir('owned') }}",
    "{{ lipsum.__globals__['os'].popen('mkdir owned').read() }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages|attr('__class__')|attr('__mro__') }}",
    "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "{% set x = messages.append(1) %}",
    "{% include '/etc/hostname' %}",
    "{% import '/etc/hostname' as x %}",
    "{{ 1 / 0 }}",
    "{{ messages[99].content + 1 }}",
    "{{ 'a' * 10 ** 15 }}",
    "{% for i in range(10 ** 9) %}{% endfor %}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{{",
]


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_chat_template_is_confined_and_ends_as_one_line(bpe_chat, tmp_path, monkeypatch, template):
    monkeypatch.chdir(tmp_path)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe_chat.text._backend, eos_token="<|im_end|>")
    tokenizer.chat_template = template + "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    with nothing_is_executed(tmp_path):
        try:
            pieces = ChatFormat.from_tokenizer(tokenizer).pieces
        except ValueError as error:
            assert str(error).startswith("the chat template of")
        else:  # what the sandbox keeps back is empty text
            assert pieces["user"][0] == []


EXPRESSIONS = [
    "__import__('os').mkdir('owned')", "().__class__.__bases__", "t.name.__class__", "open('/etc/x').read()",
    "(lambda: 1)()", "[c for c in ()]", "f'{t}'", "t.name if t else t", "'a' * 9", "t.name[0]", "t.a()",
]  # fmt: skip


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_game_files_expressions_are_no_python(expression, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = f'action take {{ template :: "take {{{expression}}}"; feedback :: "Taken."; }}'
    with nothing_is_executed(tmp_path):
        try:
            symbols = parse_grammar(text).actions["take"].command
        except ValueError:
            return
    assert all(isinstance(symbol, str) for symbol in symbols)  # what is left out is not evaluated either


def test_a_search_index_is_data(tmp_path):
    pytest.importorskip("bm25s")
    from sprout.seed.envs.search.index import build_index, open_index

    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(json.dumps({"id": "../../x", "title": "t", "text": "some words here"}) + "\n")
    build_index(corpus, tmp_path / "index")
    for file in sorted((tmp_path / "index").glob("*.npy")):
        spoiled = tmp_path / "spoiled"
        shutil.rmtree(spoiled, ignore_errors=True)
        shutil.copytree(tmp_path / "index", spoiled)
        np.save(spoiled / file.name, np.array([Payload(tmp_path / "owned")], object), allow_pickle=True)
        with nothing_is_executed(tmp_path), pytest.raises(ValueError, match="damaged search index"):
            open_index(spoiled)
    with pytest.raises(ValueError, match=r"\.yaml"):  # a recipe may not make objects either
        (tmp_path / "r.yaml").write_text("run: !!python/object/apply:os.mkdir [owned]")
        load_config(tmp_path / "r.yaml")


def hostile_line(file, **changes):
    """The first trajectory of a file with other fields."""
    return orjson.loads(file.read_bytes().splitlines()[0]) | changes


CONTEXT = "rollout.max_context_tokens=1024"
TRAVERSAL = "../../../../{place}/owned"


def test_names_in_a_trajectory_are_never_paths(run_copy, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    evil = TRAVERSAL.format(place=tmp_path.relative_to("/"))
    said = [{"role": "user", "content": "put a pen"}, {"role": "assistant", "content": "look"}]
    record = {"id": evil, "group": "/owned", "family": evil, "skill": evil, "messages": said}
    file = tmp_path / "evil.jsonl"
    file.write_bytes(orjson.dumps(record) + b"\n")
    names = dict.fromkeys(("group", "env", "split", "family", "task"), evil)
    played = run_copy / "trajectories" / "000001.jsonl"
    played.write_bytes(orjson.dumps(hostile_line(played, **names)) + b"\n")
    before = {path for path in tmp_path.rglob("*") if run_copy not in path.parents}
    model = run_copy / "checkpoints" / "sft" / "model"
    code = cli.execute(["rescore", str(file), str(tmp_path / "out"), f"model.path={model}", CONTEXT])
    captured = capfd.readouterr()
    assert code == 0 and "left out" not in captured.out, captured
    assert cli.execute(["report", str(run_copy)]) == 0
    new = {path for path in tmp_path.rglob("*") if run_copy not in path.parents} - before
    assert all(tmp_path / "out" in (path, *path.parents) for path in new)
    assert not list(tmp_path.rglob("owned"))
    assert not any((folder / "owned").exists() for folder in tmp_path.parents)


@pytest.mark.parametrize("value", [-1, -(2**40), 2**31, 1.5, "1", True])
def test_ids_that_are_no_ids_are_refused_when_read(run_copy, tmp_path, value):
    record = hostile_line(run_copy / "trajectories" / "000001.jsonl")
    record["turns"][0]["action"][0] = value
    (tmp_path / "odd.jsonl").write_bytes(orjson.dumps(record) + b"\n")
    if value in (True, "1"):
        assert next(read_trajectories(tmp_path / "odd.jsonl")).turns[0].action[0] == 1
        return
    with pytest.raises(ValueError, match=r"odd.jsonl:1: turns.0.action.0"):
        next(read_trajectories(tmp_path / "odd.jsonl"))


ODD_RECORDS = [
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": ["x"]}]},
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": {"a": 1}}]},
    {"messages": [[]]}, {"messages": {}}, {"messages": [{"role": {}}]},
    {"prompt": "a", "response": "<answer>b</answer>", "golden_answers": 7},
    {"prompt": "a", "response": "<answer>b</answer>", "golden_answers": [7]},
    {"schema_version": 1}, {"schema_version": 1, "turns": [[]]}, [1], 7,
]  # fmt: skip


@pytest.mark.parametrize("record", ODD_RECORDS)
def test_odd_records_are_one_line(bpe_chat, record):
    from sprout.seed.rescore.readers import Line, parse

    line = Line("f:1", 1, orjson.dumps(record), bpe_chat, load_config().rollout)
    with pytest.raises(ValueError, match=r"^f:1: .") as raised:
        parse(line)
    assert "\n" not in str(raised.value)


def test_what_a_trajectory_says_is_text_on_the_terminal(run_copy, tmp_path, capfd):
    evil = "\x1b]0;owned\x07\x1b[2J[red]"
    line = hostile_line(run_copy / "trajectories" / "000001.jsonl", group=evil)
    line["turns"][0]["action"][0] = 2**31 - 1
    (tmp_path / f"{evil}.jsonl").write_bytes(orjson.dumps(line) + b"\n")
    model = run_copy / "checkpoints" / "sft" / "model"
    file, out = str(tmp_path / f"{evil}.jsonl"), str(tmp_path / "out")
    assert cli.execute(["rescore", file, out, f"model.path={model}", CONTEXT, "--debug"]) == 2
    captured = capfd.readouterr()
    assert "\x1b" not in captured.out + captured.err and r"\x1b]0;owned\x07\x1b[2J[red]" in captured.err


def test_a_link_in_the_way_is_not_written_through(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for name in (".tmp-report.html", "report.html"):
        (tmp_path / name).symlink_to(victim)
    replace_file(tmp_path / "report.html", b"page")
    assert victim.read_text() == "mine" and (tmp_path / "report.html").read_bytes() == b"page"
    assert not (tmp_path / "report.html").is_symlink()


@pytest.mark.parametrize(
    "override",
    [
        "analyzer.base_url=https://me:hunter2@host/v1",
        "analyzer.base_url=https://hunter2@host/v1",
        "analyzer.key_variable=sk-hunter2",
        "env.options={server: 'http://me:hunter2@host:8000'}",
        "env.options={deep: [{x: 'ftp://hunter2@host'}]}",
    ],
)
def test_a_secret_in_the_configuration_is_refused_and_not_repeated(tmp_path, capfd, override):
    assert cli.execute(["run", "tiny", f"run.dir={tmp_path}", override]) == 2
    captured = capfd.readouterr()
    assert "hunter2" not in captured.out + captured.err and not list(tmp_path.iterdir())
