"""Shared factories of the recipe's tests."""

import numpy as np
import pytest
import torch
from rich.console import Console
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from sprout.engine.chat import ChatFormat
from sprout.engine.model import Decoder, ModelConfig
from sprout.seed.config import load_config
from sprout.seed.player import Player
from sprout.seed.policy import load_policy
from sprout.seed.run import run_recipe, start
from sprout.seed.trajectory import Trajectory, TurnRecord, split_context


def _turn(context, action, previous=(), **fields):
    shared, tail = split_context(np.asarray(context, np.int64), np.asarray(previous, np.int64))
    values = {"observation": "o", "response": "r", "command": "r", "finished": "stop"}
    values |= {"well_formed": True, "admissible": True}
    values |= {"logprobs": [-0.5] * len(action), "mask": [True] * len(action)}
    return TurnRecord(**(values | fields), shared=shared, tail=tail, action=list(action))


def _trajectory(pairs, **fields):
    turns, previous = [], []
    for context, action in pairs:
        turns.append(_turn(context, action, previous))
        previous = [*context, *action]
    values = {"update": 0, "group": "train-1", "member": 0, "env": "household", "split": "train", "seed": 1}
    values |= {"task": "t", "family": "f", "reward": 1.0, "success": True}
    return Trajectory(**(values | fields), turns=turns)


@pytest.fixture(scope="session")
def make_turn():
    """Builds a `TurnRecord` from full context and action ids."""
    return _turn


@pytest.fixture(scope="session")
def make_trajectory():
    """Builds a `Trajectory` from (context, action) pairs; keyword arguments replace its fields."""
    return _trajectory


CHATML = (
    "{% for m in messages %}"
    "{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
WORDS = (
    "put a mug in the fridge . you see pen 1 2 3 , shelf is here hint : open it take look go to nothing"
    " happens system user assistant episode_summary episode_skill { } \" task step > ! invalid outcome"
    " success failure end"
)


def _wrap(tokenizer, **special):
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", **special)
    wrapped.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    wrapped.chat_template = CHATML
    return ChatFormat.from_tokenizer(wrapped)


def _word_chat():
    words = ["<unk>", "<|im_start|>", "<|im_end|>", *dict.fromkeys(WORDS.split())]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    split = pre_tokenizers.Split(Regex(r'[{}":,.]'), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), split])
    return _wrap(tokenizer, unk_token="<unk>")


def _bpe_chat():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([WORDS, WORDS.replace(" ", "\n")], trainer)
    return _wrap(tokenizer)


def _decoder(vocab, positions=1024, seed=0):
    sizes = {"vocab_size": vocab, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-6}
    sizes |= {"max_position_embeddings": positions, "tie_word_embeddings": True}
    decoder = Decoder(ModelConfig.from_hf({"model_type": "qwen2", **sizes})).initialize(seed)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(4.0 if parameter.dim() > 1 else 1.0)
    return decoder


@pytest.fixture(scope="session")
def word_chat():
    """A word-level tokenizer under a ChatML template."""
    return _word_chat()


@pytest.fixture(scope="session")
def bpe_chat():
    """A byte-level BPE tokenizer under a ChatML template."""
    return _bpe_chat()


@pytest.fixture(scope="session")
def make_decoder():
    """Builds a small random decoder whose next tokens are far from uniform."""
    return _decoder


@pytest.fixture(scope="session", params=["word", "bpe"])
def chat(request):
    """A chat format over a word-level, then over a byte-level BPE tokenizer."""
    return {"word": _word_chat, "bpe": _bpe_chat}[request.param]()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A finished run of the tiny recipe, every stage of it; tests copy what they change."""
    root = tmp_path_factory.mktemp("runs")
    run = start(load_config("tiny", [f"run.dir={root}"]), Console(quiet=True))
    run_recipe(run)
    return run


@pytest.fixture(scope="session")
def player(tiny):
    """The Stage-1 model of the tiny run, at play."""
    return Player(load_policy(tiny.folder.stage1_model, tiny.config), tiny.config, Console(quiet=True))
