"""Fused operations: tensors in, tensors out. They know no task and no trainer."""

from sprout.kernels.adamw import adamw_
from sprout.kernels.add_rms_norm import add_rms_norm
from sprout.kernels.decode_attention import decode_attention
from sprout.kernels.dispatch import available, use_backend
from sprout.kernels.linear import linear
from sprout.kernels.paired_logprob_loss import PairedLogprobs, paired_logprob_loss
from sprout.kernels.policy_loss import PolicyLossCoefficients, PolicyLossTerms, policy_loss
from sprout.kernels.rms_norm import rms_norm
from sprout.kernels.rotary import rotary
from sprout.kernels.sample import sample
from sprout.kernels.selected_logprob import selected_logprob
from sprout.kernels.swiglu import swiglu
from sprout.kernels.tree_attention import Intervals, tree_attention

__all__ = [
    "Intervals",
    "PairedLogprobs",
    "PolicyLossCoefficients",
    "PolicyLossTerms",
    "adamw_",
    "add_rms_norm",
    "available",
    "decode_attention",
    "linear",
    "paired_logprob_loss",
    "policy_loss",
    "rms_norm",
    "rotary",
    "sample",
    "selected_logprob",
    "swiglu",
    "tree_attention",
    "use_backend",
]

if __name__ == "kernels":
    from sprout.kernels.namesake import give_way

    give_way(__file__)
