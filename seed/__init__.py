"""The SEED recipe: environments, episodes, analyzers, objectives, stages and the command line."""
