"""Model folders: round trips through transformers, and every way a folder can be wrong."""

import json
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import FAMILIES, as_transformers, tiny_config, tiny_decoder
from tokenizers import Tokenizer, models
from transformers import AutoConfig, AutoModelForCausalLM

from sprout.engine import weights
from sprout.engine.forest import Forest, Turn
from sprout.engine.model import Decoder
from sprout.engine.weights import load_model, save_model


def logits(decoder):
    """Token ids of one sequence, and the decoder's logits for them."""
    ids = torch.arange(1, 20) * 7 % 50
    with torch.no_grad():
        forest = Forest.pack([Turn(ids[:1].numpy(), ids[1:].numpy())])
        hidden, _ = decoder(forest)
        return forest.token[: forest.trained], hidden @ decoder.head_weight.T


def theirs(model, ids):
    with torch.no_grad():
        return model(ids[None]).logits[0]


def write_tokenizer(folder, tokens):
    vocabulary = {f"t{i}": i for i in range(tokens)}
    Tokenizer(models.WordLevel(vocabulary, unk_token="t0")).save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text("{{ messages }}")


def edit_tensors(folder, edit):
    file = folder / "model.safetensors"
    tensors = load_file(file)
    edit(tensors)
    save_file(tensors, file)


def edit_config(folder, **changes):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    save_model(tiny_decoder(), folder)
    return folder


@pytest.fixture
def folder(template, tmp_path):
    return shutil.copytree(template, tmp_path / "tiny")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_export_loads_in_transformers_with_equal_logits(tmp_path, family, tied):
    decoder = tiny_decoder(family, tied=tied)
    save_model(decoder, tmp_path / "model")
    stored = load_file(tmp_path / "model" / "model.safetensors")
    assert ("lm_head.weight" in stored) == (not tied)
    model, report = AutoModelForCausalLM.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    ids, ours = logits(decoder)
    torch.testing.assert_close(ours, theirs(model, ids), rtol=1e-4, atol=1e-4)
    assert torch.equal(logits(load_model(tmp_path / "model"))[1], ours)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_models_saved_by_transformers_load(tmp_path, family, tied):
    model = as_transformers(tiny_decoder(family, tied=tied))
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    ids, ours = logits(load_model(tmp_path))
    torch.testing.assert_close(ours, theirs(model, ids), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dtype_round_trip_is_exact_and_angles_stay_fp32(tmp_path, dtype):
    decoder = tiny_decoder(dtype=dtype)
    save_model(decoder, tmp_path / "model")
    again = load_model(tmp_path / "model", dtype=dtype)
    assert all(torch.equal(p, q) for p, q in zip(decoder.parameters(), again.parameters(), strict=True))
    assert again.dtype == dtype
    assert again.rope.inv_freq.dtype == torch.float32
    assert torch.equal(again.rope.inv_freq, Decoder(tiny_config()).rope.inv_freq)
    assert AutoConfig.from_pretrained(tmp_path / "model").dtype == dtype


def test_loaded_weights_are_trainable_and_not_views_of_the_file(folder):
    decoder = load_model(folder)
    before = {name: p.detach().clone() for name, p in decoder.named_parameters()}
    assert all(p.requires_grad for p in decoder.parameters())
    shutil.rmtree(folder)
    assert all(torch.equal(p, before[name]) for name, p in decoder.named_parameters())


def test_large_models_are_sharded_with_an_index(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "MAX_SHARD_BYTES", 10_000)
    decoder = tiny_decoder(tied=True)
    save_model(decoder, tmp_path / "model")
    index = json.loads((tmp_path / "model" / "model.safetensors.index.json").read_text())
    assert "lm_head.weight" not in index["weight_map"]
    assert len(set(index["weight_map"].values())) == len(list((tmp_path / "model").glob("model-*"))) > 2
    ids, ours = logits(load_model(tmp_path / "model"))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    torch.testing.assert_close(ours, theirs(model, ids), rtol=1e-4, atol=1e-4)


def test_tokenizer_files_and_generation_config_travel(tmp_path, folder):
    write_tokenizer(folder, 50)
    (folder / "generation_config.json").write_text('{"eos_token_id": [3, 7]}')
    save_model(load_model(folder), tmp_path / "export", tokenizer_folder=folder)
    names = {path.name for path in (tmp_path / "export").iterdir()}
    expected = {"tokenizer.json", "chat_template.jinja", "config.json", "generation_config.json"}
    assert names == {*expected, "model.safetensors"}
    assert json.loads((tmp_path / "export" / "generation_config.json").read_text()) == {
        "eos_token_id": [3, 7]
    }
    with pytest.raises(FileNotFoundError, match=r"tokenizer.json does not exist"):
        save_model(load_model(folder), tmp_path / "other", tokenizer_folder=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["export", "tiny"]


def test_saving_replaces_a_model_but_nothing_else(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(weights, "MAX_SHARD_BYTES", 10_000)
    save_model(tiny_decoder(seed=5), folder)
    monkeypatch.undo()
    save_model(tiny_decoder(seed=6), folder)
    assert not list(folder.glob("*index*"))
    assert torch.equal(load_model(folder).head_weight, tiny_decoder(seed=6).head_weight)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("keep me")
    with pytest.raises(FileExistsError, match="not a model"):
        save_model(tiny_decoder(), tmp_path / "notes")
    assert (tmp_path / "notes" / "todo.txt").read_text() == "keep me"


def test_redundant_tied_head_is_accepted_only_when_it_agrees(folder):
    edit_tensors(folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    load_model(folder)
    edit_tensors(folder, lambda t: t["lm_head.weight"].add_(1))
    with pytest.raises(ValueError, match="set tie_word_embeddings to false"):
        load_model(folder)


def test_old_rotary_buffers_are_ignored(folder):
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    edit_tensors(folder, lambda t: t.update({name: torch.ones(4)}))
    load_model(folder)


def truncate(name, size):
    def damage(folder):
        os.truncate(folder / name, size)

    return damage


def overwrite(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def shard_missing(folder):
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def index_without_map(folder):
    shard_missing(folder)
    (folder / "model.safetensors.index.json").write_text("{}")


def tensors(edit):
    return lambda folder: edit_tensors(folder, edit)


def config(**changes):
    return lambda folder: edit_config(folder, **changes)


def layers(count):
    return config(num_hidden_layers=count, layer_types=["full_attention"] * count)


WRONG = {
    "no folder": (shutil.rmtree, FileNotFoundError, "tiny does not exist"),
    "no config": (lambda f: (f / "config.json").unlink(), FileNotFoundError, "config.json does not exist"),
    "no weights": (
        lambda f: (f / "model.safetensors").unlink(),
        FileNotFoundError,
        "convert it to safetensors",
    ),
    "no shard": (shard_missing, FileNotFoundError, "model-00001-of-00002.safetensors does not exist"),
    "bad index": (index_without_map, ValueError, "has no weight_map"),
    "torn config": (truncate("config.json", 30), ValueError, "config.json is not valid JSON"),
    "list config": (overwrite("config.json", b"[]"), ValueError, "config.json must hold a JSON object"),
    "no model type": (overwrite("config.json", b"{}"), ValueError, "has no model_type"),
    "other family": (overwrite("config.json", b'{"model_type": "gpt2"}'), ValueError, "config.json: .*gpt2"),
    "invented family": (overwrite("config.json", b'{"model_type": "sprouty"}'), ValueError, "sprouty"),
    "ill-typed size": (config(hidden_size="wide"), ValueError, "config.json: .*hidden_size"),
    "torn weights": (truncate("model.safetensors", 9000), ValueError, "model.safetensors is damaged"),
    "torn header": (truncate("model.safetensors", 5), ValueError, "model.safetensors is damaged"),
    "empty weights": (truncate("model.safetensors", 0), ValueError, "model.safetensors is damaged"),
    "odd layer list": (config(num_hidden_layers=1), ValueError, "config.json: .*num_hidden_layers"),
    "other sizes": (config(intermediate_size=40), ValueError, r"down_proj.weight is .*asks for \(32, 40\)"),
    "more layers": (layers(3), ValueError, "lacks 12 of .*first model.layers.2"),
    "fewer layers": (layers(1), ValueError, "holds model.layers.1.*does not have"),
    "untied": (config(tie_word_embeddings=False), ValueError, "lacks 1 of .*lm_head.weight"),
    "lost tensor": (tensors(lambda t: t.pop("model.norm.weight")), ValueError, "first model.norm.weight"),
    "extra tensor": (tensors(lambda t: t.update(x=torch.ones(2))), ValueError, "holds x,"),
    "quantized": (
        tensors(lambda t: t.update({"model.norm.weight": torch.ones(32, dtype=torch.int8)})),
        ValueError,
        "unquantized",
    ),
    "large tokenizer": (
        lambda f: write_tokenizer(f, 51),
        ValueError,
        "token id 50 but the embedding has 50 rows",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_folder_is_a_one_line_error_that_names_it(folder, case):
    spoil, error, message = WRONG[case]
    spoil(folder)
    with pytest.raises(error, match=message) as raised:
        load_model(folder)
    assert "\n" not in str(raised.value)
    assert str(folder) in str(raised.value)


def test_weights_are_as_readable_as_the_rest_of_the_folder(tmp_path):
    save_model(tiny_decoder(), tmp_path / "model")
    modes = {file.name: file.stat().st_mode for file in (tmp_path / "model").iterdir()}
    assert modes["model.safetensors"] == modes["config.json"]
