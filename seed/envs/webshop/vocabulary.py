"""A byte-level BPE tokenizer of a shop's pages, as an ordinary Hugging Face tokenizer."""

from __future__ import annotations

from collections.abc import Iterator

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from sprout.seed.envs.webshop.env import WebshopEnv
from sprout.seed.envs.webshop.expert import demonstrate

SIZE = 1024
_EPISODES = 100
PAD, END = "<pad>", "<end>"
ROLES = ("<system>", "<user>", "<assistant>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<' + message['role'] + '>' + message['content'] + '<end>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)


def build_tokenizer(env: WebshopEnv) -> PreTrainedTokenizerFast:
    """Byte-level BPE, trained on expert play in `env`; any text can be encoded. No BOS token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE,
        special_tokens=[PAD, END, *ROLES],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(env), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=list(ROLES),
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def _texts(env: WebshopEnv) -> Iterator[str]:
    yield from (env.system_prompt, *env.analyzer_instructions.values())
    for seed in range(_EPISODES):
        for turn, _ in demonstrate(env, "train", seed):
            yield from (turn.observation, turn.response)
