"""One file per family of ops: its sizes, its peers, and what its work is counted as."""

from collections.abc import Callable, Iterator, Mapping

from sprout.bench.case import Case, Setting
from sprout.bench.ops import attention, decoding, logprob, optimizer, paired, pointwise, policy

Cases = Callable[[Setting], Iterator[Case]]

CASES: Mapping[str, Cases] = {
    "rms_norm": pointwise.rms_norm_cases,
    "add_rms_norm": pointwise.add_rms_norm_cases,
    "rotary": pointwise.rotary_cases,
    "swiglu": pointwise.swiglu_cases,
    "tree_attention": attention.cases,
    "selected_logprob": logprob.cases,
    "policy_loss": policy.cases,
    "paired_logprob_loss": paired.cases,
    "decode_attention": decoding.attention_cases,
    "sample": decoding.sample_cases,
    "adamw_": optimizer.cases,
}
