"""Range checks of what `decode_attention` addresses memory with."""

from torch import Tensor, arange


def check_ranges(k_pages: Tensor, page_table: Tensor, sequence: Tensor, length: Tensor) -> None:
    """Raise ValueError if a row's sequence, length or page is out of range; CPU tensors only."""
    pages, page = k_pages.shape[:2]
    sequences, max_pages = page_table.shape
    if bool(((sequence < 0) | (sequence >= sequences)).any()):
        raise ValueError(f"decode_attention: sequence must be in [0, {sequences})")
    if bool(((length < 0) | (length > max_pages * page)).any()):
        raise ValueError(f"decode_attention: length must be in [0, {max_pages * page}]")
    entry = page_table[sequence.long()]
    used = arange(max_pages)[None] * page < length[:, None]
    if bool((used & ((entry < 0) | (entry >= pages))).any()):
        raise ValueError(f"decode_attention: pages in use must be in [0, {pages})")
