"""Sokoban: pushing boxes onto targets in small rooms that can be solved by construction."""

from sprout.seed.envs.sokoban.env import SokobanEnv

__all__ = ["SokobanEnv"]
