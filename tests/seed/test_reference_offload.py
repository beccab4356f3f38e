"""train.reference_offload moves the KL term's reference and nothing else."""

from test_resume import assert_same_training, before_training, open_tiny

from sprout.seed.run import perform


def test_training_with_the_reference_in_cpu_memory_gives_the_same_bits(tiny, tmp_path):
    assert tiny.config.objective.kl_coef > 0 and not tiny.config.train.reference_offload
    run = before_training(tiny, tmp_path)
    perform(open_tiny(tmp_path, "train.reference_offload=true"), "train")
    assert_same_training(run, tiny.folder)
