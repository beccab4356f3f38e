"""Loading the tokenizer of a Hugging Face model folder."""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedTokenizerFast


def load_tokenizer(folder: str | Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a model folder, from disk alone and exactly as `tokenizer.json` defines it.

    (`AutoTokenizer` may put another one in its place: for a Qwen2 config.json it always builds Qwen's BPE.)
    Raises FileNotFoundError without a `tokenizer.json`: only that file says exactly how text becomes ids.
    """
    file = Path(folder) / "tokenizer.json"
    if not file.is_file():
        raise FileNotFoundError(
            f"{file} does not exist: a model folder needs the tokenizer files of its model"
        )
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(
        str(folder), local_files_only=True
    )
    return tokenizer
