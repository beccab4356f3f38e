"""The embedded household world: one room, text commands, six families of tasks, generated from a seed."""

from sprout.seed.envs.household.env import HouseholdEnv

__all__ = ["HouseholdEnv"]
