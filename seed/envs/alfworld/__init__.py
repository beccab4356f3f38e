"""ALFWorld: household games in text, played from their original files by an interpreter of our own."""

from sprout.seed.envs.alfworld.env import AlfworldEnv

__all__ = ["AlfworldEnv"]
