"""Loading the tokenizer of a Hugging Face model folder."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerFast


def load_tokenizer(folder: str | Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a model folder, from disk alone.

    Raises FileNotFoundError without a `tokenizer.json`: only that file says exactly how text becomes ids.
    """
    file = Path(folder) / "tokenizer.json"
    if not file.is_file():
        raise FileNotFoundError(
            f"{file} does not exist: a model folder needs the tokenizer files of its model"
        )
    tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ValueError(
            f"{folder}: tokenizer_config.json asks for {type(tokenizer).__name__}, which is not a fast "
            "tokenizer; save it again with transformers' fast tokenizer"
        )
    return tokenizer
