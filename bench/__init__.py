"""Benchmarks: ours and its peers side by side, in one process and in the same minutes."""
