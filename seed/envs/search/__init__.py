"""Open-domain questions answered with a search engine, in the protocol of Search-R1 (arXiv 2503.09516)."""

from sprout.seed.envs.search.env import SearchEnv

__all__ = ["SearchEnv"]
