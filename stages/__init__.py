"""The seven stages of a run. These files are the specification: which rule rejects what."""

from stages import (
    s1_validity,
    s2_memory_fit,
    s3_batch_sizing,
    s4_shortlist,
    s5_simulate,
    s6_rank,
    s7_confirm,
)

STAGES = (
    s1_validity,
    s2_memory_fit,
    s3_batch_sizing,
    s4_shortlist,
    s5_simulate,
    s6_rank,
    s7_confirm,
)
"""In the order in which they run."""
