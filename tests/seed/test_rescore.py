"""`sprout rescore`: equal to a plain two-pass computation, resumable, and clear about what it cannot read."""

import gzip
import json
import os
from pathlib import Path

import numpy as np
import orjson
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from sprout.engine.model import Decoder, ModelConfig
from sprout.engine.weights import save_model
from sprout.seed.config import load_config
from sprout.seed.rescore.command import Options, rescore
from sprout.seed.rescore.output import read_parts
from sprout.seed.rescore.readers import BUILT_IN, Line, input_files, parse, raw_lines
from sprout.seed.rescore.readers.search_r1 import exact_match
from sprout.seed.rescore.tally import Calibration, Tally
from sprout.seed.schema import RolloutSection

CHATML = (
    "{% for m in messages %}"
    "{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SHARED = Path(os.environ.get("SPROUT_SHARED_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
TINY = {
    "model_type": "llama", "vocab_size": 320, "hidden_size": 48, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 1024, "tie_word_embeddings": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model folder with random weights and a byte-level tokenizer."""
    folder = tmp_path_factory.mktemp("rescore") / "model"
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        ["open the fridge"] * 3, trainers.BpeTrainer(vocab_size=280, initial_alphabet=alphabet)
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(folder / "tokenizer")
    config = ModelConfig.from_hf(TINY | {"initializer_range": 0.2})
    save_model(Decoder(config).initialize(3), folder / "out", folder / "tokenizer")
    return folder / "out"


def episode(number, turns=3, **fields):
    messages = [{"role": "system", "content": "You act in a house."}]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"Room {number}: turn {turn}."})
        messages.append({"role": "assistant", "content": f"open fridge {number + turn}"})
    values = {"id": f"e{number}", "success": number % 2 == 0, "skill": f"open the fridge {number}"}
    return {"messages": messages, **values, **fields}


def write(path, records):
    path.write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))
    return path


@pytest.fixture
def run(model, tmp_path):
    """Scores a file into a folder: (turn records, summary)."""

    def run_(path, target="out", overrides=(), parquet=False, **options):
        config = load_config(None, [f"model.path={model}", "rollout.max_context_tokens=900", *overrides])
        options = Options(path, **{"chunk": 2, **options})
        summary = rescore(options, tmp_path / target, config, parquet, Console(quiet=True))
        return list(read_parts(tmp_path / target)), summary

    return run_


@torch.no_grad()
def two_pass(model, record):
    """l_theta and l_skill of every action token, one whole sequence per turn and context."""
    network = AutoModelForCausalLM.from_pretrained(model).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(model)

    def score(messages, action):
        prompt = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False
        )
        ids = torch.tensor(prompt + action)
        logprobs = network(ids[None]).logits[0].log_softmax(-1)
        return logprobs[torch.arange(len(prompt) - 1, len(ids) - 1), torch.tensor(action)].numpy()

    for place, message in enumerate(record["messages"]):
        if message["role"] == "assistant":
            before = record["messages"][:place]
            hint = {"role": "user", "content": f"hint : {record['skill']}"}
            action = tokenizer(message["content"])["input_ids"] + [tokenizer.eos_token_id]
            yield score(before, action), score([*before, hint], action)


def test_scores_equal_a_plain_two_pass_computation(model, run, tmp_path):
    records = [episode(n) for n in range(3)]
    turns, summary = run(write(tmp_path / "in.jsonl", records))
    expected = [scores for record in records for scores in two_pass(model, record)]
    assert len(turns) == len(expected) == 9
    for turn, (student, teacher) in zip(turns, expected, strict=True):
        np.testing.assert_allclose(turn["l_theta"], student, atol=1e-4)
        np.testing.assert_allclose(turn["l_skill"], teacher, atol=1e-4)
        np.testing.assert_allclose(turn["delta"], teacher - student, atol=2e-4)
        np.testing.assert_allclose(turn["gate"], 1 / (1 + np.exp(-5 * np.array(turn["delta"]))), atol=1e-6)
        assert "".join(turn["text"]).endswith("<|im_end|>")
    tokens = sum(len(student) for student, _ in expected)
    assert summary["scores"]["own"]["all"]["all"]["tokens"] == tokens
    mean = np.concatenate([t - s for s, t in expected]).mean()
    assert summary["scores"]["own"]["all"]["all"]["delta_mean"] == pytest.approx(mean, abs=1e-4)
    assert summary["trajectories"] == {"failure": 1, "success": 2, "unknown": 0}
    alone = sum(len(student) for student, _ in expected[6:])  # in its chunk: nobody to shuffle with
    assert summary["throughput"]["pair_tokens"] == 3 * tokens - alone
    assert summary["throughput"]["reuse_ratio"] > 2


def test_controls(run, tmp_path):
    turns, summary = run(write(tmp_path / "in.jsonl", [episode(n) for n in range(4)]), null="")
    assert all(np.all(np.array(turn["delta_null"]) == 0) for turn in turns)
    assert summary["scores"]["null"]["all"]["all"]["gate_mean"] == 0.5
    assert any(turn["delta_shuffled"] != turn["delta"] for turn in turns)
    plain, summary = run(tmp_path / "in.jsonl", "plain", null=None)
    assert "delta_null" not in plain[0] and summary["scores"]["null"]["all"] == {}
    assert plain[0]["delta"] == pytest.approx(turns[0]["delta"], abs=1e-5)


def test_an_interrupted_run_ends_like_a_whole_one(run, tmp_path):
    records = [episode(n) for n in range(7)]
    path = write(tmp_path / "in.jsonl", [*records[:5], {"messages": "?"}, *records[5:]])
    with pytest.raises(ValueError, match=r"in\.jsonl:6: no reader recognises"):
        run(path)
    assert len(list(read_parts(tmp_path / "out"))) == 12
    write(path, records)
    turns, summary = run(path)
    whole, expected = run(path, "whole")
    assert turns == whole
    for one in (summary, expected):
        for name in ("seconds", "pair_tokens_per_s", "logical_tokens_per_s", "peak_memory_mb"):
            del one["throughput"][name]
    assert summary == expected
    again, _ = run(path)
    assert again == whole


def test_a_folder_of_another_run_is_refused(run, tmp_path):
    path = write(tmp_path / "in.jsonl", [episode(0), episode(1)])
    run(path)
    with pytest.raises(ValueError, match="was begun with null = 'nothing'"):
        run(path, null="x")
    write(path, [episode(0), episode(2)])
    with pytest.raises(ValueError, match="has changed since it was scored"):
        run(path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    with pytest.raises(FileExistsError, match="holds something else"):
        run(path, "full")


def test_bad_lines_can_be_counted(run, tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(orjson.dumps(episode(0)) + b"\n{broken\n\n" + orjson.dumps(episode(1)) + b"\n")
    with pytest.raises(ValueError, match=r"in\.jsonl:2: not a JSON line"):
        run(path)
    with pytest.warns(UserWarning, match=r"skipped: .*in\.jsonl:2"):
        turns, summary = run(path, "other", skip_bad=True)
    assert len(turns) == 6 and summary["left_out"] == {"bad_line": 1}


def test_what_does_not_fit_or_has_no_skill_is_counted(run, tmp_path):
    records = [episode(0), episode(1, skill=""), episode(2, turns=40)]
    turns, summary = run(write(tmp_path / "in.jsonl", records))
    assert summary["left_out"]["no_skill"] == 1 and summary["left_out"]["too_long"] > 0
    assert {turn["trajectory"] for turn in turns} == {"e0/0", "e2/0"}


def test_a_giant_line_is_refused_and_nothing_is_lost(run, tmp_path):
    path = write(tmp_path / "in.jsonl", [episode(0), episode(1), episode(2, note="x" * 2**21)])
    with pytest.raises(ValueError, match=r"in\.jsonl:3: the line is longer than 1 MiB; .*--max-line-mib"):
        run(path, max_line_bytes=2**20)
    assert len(list(read_parts(tmp_path / "out"))) == 6
    turns, _ = run(path)
    assert len(turns) == 9


def test_parquet(run, tmp_path):
    pytest.importorskip("pyarrow")
    path = write(tmp_path / "in.jsonl", [episode(n) for n in range(3)])
    lines, _ = run(path)
    turns, _ = run(path, "table", parquet=True)
    assert [turn["token"] for turn in turns] == [turn["token"] for turn in lines]
    np.testing.assert_allclose(turns[0]["delta"], lines[0]["delta"], rtol=1e-6)


def test_static_skills(run, tmp_path):
    path = write(tmp_path / "in.jsonl", [episode(0, skill="", family="heat"), episode(1, skill="")])
    skills = tmp_path / "skills.yaml"
    skills.write_text("default: go there\nheat: open the fridge\n")
    turns, _ = run(path, skills="static", overrides=[f"analyzer.static_path={skills}"])
    shown = {turn["trajectory"]: turn["skill"] for turn in turns}
    assert shown == {"e0/0": "open the fridge", "e1/0": "go there"}
    with pytest.raises(ValueError, match="needs a file of skills"):
        run(path, "other", skills="static")


@pytest.fixture
def line(bpe_chat):
    """A `Line` with some content."""
    layout = load_config().rollout
    return lambda record: Line("f:1", 1, orjson.dumps(record), bpe_chat, layout)


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ([1], "f:1: expected a JSON object, found list"),
        ({"a": 1}, "f:1: no reader recognises the keys a"),
        ({"messages": []}, "f:1: messages must be a list"),
        ({"messages": [{"role": "user", "content": "x"}]}, "no assistant message"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "does not follow a user"),
        ({"messages": [{"role": "oracle", "content": "x"}]}, "messages.0: role 'oracle' is none of"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages.0: content should be a text, not int"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "only text parts"),
        (episode(0, success="yes"), "success = 'yes': should be true or false"),
        (episode(0, reward="high"), "reward = 'high': should be a number"),
        ({"prompt": "p", "response": ""}, "f:1: the response holds no action"),
        ({"schema_version": 7}, "f:1: schema_version 7"),
    ],
)
def test_records_that_are_not_whole(line, record, problem):
    with pytest.raises(ValueError, match=problem):
        parse(line(record))


def test_messages_with_tools(line):
    call = {"function": {"name": "open", "arguments": json.dumps({"what": "fridge"})}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "cool it"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "it is open"},
        {"role": "user", "content": "go on"},
        {"role": "assistant", "content": "done"},
        {"role": "user", "content": "thanks"},
    ]
    trajectory = parse(line({"messages": messages, "reward": 0.5}))
    said = '<tool_call>\n{"name": "open", "arguments": {"what": "fridge"}}\n</tool_call>'
    assert trajectory.turns[0].response == said
    assert trajectory.turns[1].observation == "it is open\n\ngo on"
    assert trajectory.final_observation == "thanks" and trajectory.success and trajectory.reward == 0.5
    assert parse(line({"messages": messages[:2]})).reward is None


def test_search_r1(line):
    response = (
        "<think> a </think> <search> b </search>\n\n<information>Doc 1</information>\n\n"
        "<information>Doc 2</information>\n\n<think> c </think> <answer> The  Nile. </answer>"
    )
    system, user = ("<|im_start|>system\nhelp<|im_end|>\n", "<|im_start|>user\nWhich river?\n<|im_end|>\n")
    prompt = f"{system}{user}<|im_start|>assistant\n"
    record = {"id": "q1", "prompt": prompt, "response": response, "golden_answers": ["nile"], "dataset": "nq"}
    trajectory = parse(line(record))
    assert [turn.observation for turn in trajectory.turns] == [
        "Which river?",
        "<information>Doc 1</information>\n\n<information>Doc 2</information>",
    ]
    assert trajectory.turns[0].response == "<think> a </think> <search> b </search>"
    assert trajectory.system == "help" and trajectory.family == "nq" and trajectory.success
    assert not exact_match("<answer>nile</answer> <answer>amazon</answer>", ["Nile"])


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"{SHARED} is absent; set SPROUT_SHARED_DATA")
def test_real_search_r1_transcripts(bpe_chat):
    (file,) = input_files(SHARED / "search-r1-transcripts.jsonl.gz")
    layout = load_config().rollout
    read = [parse(Line(p, n, c, bpe_chat, layout)) for p, n, c in raw_lines(file, 2**26)]
    assert len(read) == 43 and {True, False} == {t.success for t in read}
    assert all("<information>" not in turn.response for t in read for turn in t.turns)
    assert max(len(t.turns) for t in read) > 1


def test_ids_of_another_tokenizer_are_refused(run, make_trajectory, tmp_path):
    beyond = make_trajectory([([1, 2, 3], [4, 999])], skill={"text": "s", "analyzer": "x"})
    path = write(tmp_path / "in.jsonl", [beyond.model_dump()])
    with pytest.raises(ValueError, match="has the token id 999, the model only 320 tokens"):
        run(path)
    other = make_trajectory([([1, 2, 3], [4, 9])], skill={"text": "s", "analyzer": "x"})
    with pytest.raises(ValueError, match="use the tokenizer and the settings it was collected with"):
        run(write(path, [other.model_dump()]))


def test_calibration():
    calibration = Calibration()
    for delta, success in [(-1.0, False), (-0.5, True), (0.5, False), (1.0, True)]:
        calibration.add(delta, success)
    assert calibration.record()["auc"] == 0.75
    other = Calibration()
    other.restore(orjson.loads(orjson.dumps(calibration.state())))
    assert other.record() == calibration.record()
    assert Calibration().record()["auc"] is None


def test_tally_quantiles_and_state():
    delta = np.linspace(-1, 1, 201)
    tally = Tally(("a", "b"))
    tally.add(np.zeros(201, np.int64), delta, np.full(201, 0.7))
    record = tally.record()
    assert list(record) == ["a"] and record["a"]["tokens"] == 201
    assert record["a"]["delta_p50"] == pytest.approx(0, abs=0.02)
    assert record["a"]["delta_p95"] == pytest.approx(0.9, abs=0.02)
    assert record["a"]["gate_active_ratio"] == 1.0
    other = Tally(("a", "b"))
    other.restore(orjson.loads(orjson.dumps(tally.state())))
    assert other.record() == record


@pytest.mark.parametrize("damage", ["cut", "torn", "no gzip"])
def test_a_damaged_gzip_file_is_named(tmp_path, damage):
    whole, file = gzip.compress(b"".join(b'{"n": %d}\n' % n for n in range(200))), tmp_path / "t.jsonl.gz"
    middle = len(whole) // 2
    torn = whole[:middle] + bytes(byte ^ 255 for byte in whole[middle:])
    file.write_bytes({"cut": whole[:middle], "torn": torn, "no gzip": b"{}"}[damage])
    with pytest.raises(ValueError, match=rf"{file}: damaged gzip file after line"):
        list(raw_lines(file, 2**20))


KEYS = [
    "messages", "prompt", "response", "golden_answers", "id", "group", "success", "reward", "skill", "role",
    "content", "tool_calls", "function", "arguments", "name", "type", "text", "turns", "schema_version",
]  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 2**40) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool"])},
        optional={"content": JSON, "tool_calls": JSON},
    ),
    max_size=4,
)


RECORDS = st.dictionaries(st.sampled_from(KEYS), JSON | MESSAGES, max_size=6)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(RECORDS, st.sampled_from([*BUILT_IN, "auto"]))
def test_any_record_is_read_or_refused_by_its_place(word_chat, record, name):
    line = Line("file:7", 7, orjson.dumps(record), word_chat, RolloutSection())
    try:
        parse(line, name)
    except ValueError as error:
        assert str(error).startswith("file:7") and "\n" not in str(error)
