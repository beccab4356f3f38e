"""EZPoints: writing a formula that makes twelve of two cards."""

from sprout.seed.envs.ezpoints.env import EZPointsEnv

__all__ = ["EZPointsEnv"]
