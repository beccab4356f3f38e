"""`sprout rescore`, the offline pilot: do skills carry signal about stored trajectories? No training."""
