"""A small byte-level BPE tokenizer made from the environment's own words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from sprout.seed.envs.search import text

if TYPE_CHECKING:
    from sprout.seed.envs.search.env import SearchEnv

TOKENS, QUESTIONS = 2048, 256
START, END = "<|im_start|>", "<|im_end|>"
TAGS = [f"<{slash}{name}>" for name in ("think", "search", "information", "answer") for slash in ("", "/")]
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def build_tokenizer(env: SearchEnv) -> PreTrainedTokenizerFast:
    """Trained on some of the training questions, the passages they find, and the prompts."""
    asked = [env.reset(seed=seed, options={"split": "train"})[1]["task"] for seed in range(QUESTIONS)]
    found = env.retriever.retrieve(list(dict.fromkeys(asked)), env.topk)
    words = [text.SYSTEM_PROMPT, text.INVALID, *text.ANALYZER_INSTRUCTIONS.values()]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[START, END],
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        [*words, *asked, *(text.information(passages) for passages in found)], trainer
    )
    tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in TAGS])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=END, additional_special_tokens=[START]
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast
