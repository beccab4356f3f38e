"""The stages of a recipe: each a module with `run_stage(run) -> result`, resumable on its own."""
