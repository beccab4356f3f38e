"""WebShop: shopping by search and clicks over a catalogue of products, by an implementation of our own."""

from sprout.seed.envs.webshop.env import WebshopEnv

__all__ = ["WebshopEnv"]
