"""What would change a rejection, from the two numbers that a rule compared."""

from __future__ import annotations

from typing import Any

import pytest

from sieve.report.rejection import remedy
from sieve.validity.rules import RULES
from stages import STAGES


def words(reason: str, observed: float, limit: float, unit: str = "") -> str:
    row: dict[str, Any] = {"reason": reason, "observed": observed, "limit": limit, "unit": unit}
    return remedy(row)


@pytest.mark.parametrize(
    ("reason", "observed", "limit", "text"),
    [
        ("tp_divides_heads", 40, 16, "tp 1, 2, 4, 5, 8, 10, 20, 40 by this rule"),
        ("vocab_tp", 151936, 5, "tp 1, 2, 4, 8, 16, 32, 64, 128 by this rule"),
        ("kv_heads_tp", 8, 5, "tp 1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, "
         "112, 120, 128 by this rule"),
        ("pp_divides", 62, 4, "pp 1, 2, 31, 62 by this rule"),
        ("ep_divides_experts", 60, 8, "ep 1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60 by this rule"),
        ("ep_size", 2, 4, "ep 1 or 4"),
        ("ep_size", 4, 1, "ep 1"),
        ("pp_layers", 40, 28, "pp up to 28"),
        ("tokens_cover_seqs", 32, 64, "max_num_batched_tokens of 64 or more"),
        ("context_limit", 65536, 40960, "max_model_len up to 40,960"),
    ],
)  # fmt: skip
def test_legal_values_follow_from_the_numbers(
    reason: str, observed: float, limit: float, text: str
) -> None:
    assert words(reason, observed, limit) == text


def test_places_on_nodes() -> None:
    assert words("node", 16, 8, "GPUs in a node").startswith("tp x pp up to 8, or raise")
    assert words("node", 16, 8, "tensor ranks in a node") == (
        "tp up to 8, or fleet.tp_across_nodes (slow)"
    )
    assert "nodes_per_replica" in words("node", 4, 2, "nodes for one replica, its stages whole")


def test_every_reason_of_every_stage_says_what_would_change_it() -> None:
    reasons = {reason for module in STAGES for reason in module.STAGE.reasons}
    assert set(RULES) <= reasons
    unexplained = {reason for reason in reasons if not words(reason, 6.0, 4.0)}
    assert unexplained <= {"slim"}
