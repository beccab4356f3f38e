"""Tokens, weights, forests, generation, optimizer, checkpoints and ranks. It knows no environment."""
