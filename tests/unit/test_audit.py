"""`--audit`: recall and regret by hand, and over a small grid."""

from __future__ import annotations

import polars as pl
import pytest

import sieve
from sieve.api import prepare
from sieve.audit import compare
from sieve.errors import InvalidInput
from sieve.frames import METRICS
from sieve.parallel import LocalExecutor
from sieve.spec import load_spec


def ranked(costs, verdicts) -> pl.DataFrame:
    """Candidates a, b, c, ... in ranking order; all metrics but the cost are 1."""
    ids = [chr(ord("a") + i) for i in range(len(costs))]
    columns = {name: pl.Series([1.0] * len(ids)) for name in METRICS}
    columns["usd_per_mtok"] = pl.Series(costs)
    return pl.DataFrame({"candidate_id": ids, "verdict": verdicts, **columns})


@pytest.fixture
def context(make_spec):
    return prepare(load_spec(make_spec()), LocalExecutor(1))[0]


@pytest.mark.parametrize(
    ("shortlist", "best", "top5", "regret"),
    [
        ("ag", 1.0, 1 / 5, 0.0),
        ("b", 1.0, 1 / 5, 0.0),  # b has the metrics of a: an exact tie
        ("c", 0.0, 1 / 5, 0.1),
        ("cdef", 0.0, 4 / 5, 0.1),
        ("fg", 0.0, 1 / 5, 0.5),  # g is the sixth that differs
        ("h", 0.0, 0.0, None),  # clears nothing: another verdict
        ("", 0.0, 0.0, None),
    ],
)
def test_recall_and_regret_by_hand(context, shortlist, best, top5, regret):
    costs = [2.0, 2.0, 2.2, 2.4, 2.6, 3.0, 3.2, 1.0]
    table = ranked(costs, ["clears"] * 7 + ["misses"])
    got = compare(table, list(shortlist), context)
    assert (got["recall_best"], got["recall_top5"]) == (best, pytest.approx(top5))
    assert got["regret"] == (None if regret is None else pytest.approx(regret))


def test_nothing_served_is_unknown(context):
    got = compare(ranked([], []), ["a"], context)
    assert got == {"recall_best": None, "recall_top5": None, "regret": None}


def test_an_audit_leaves_the_run_as_it_is(make_spec, tmp_path):
    spec = make_spec({"grid.axes.tp": [1, 2], "grid.axes.max_num_seqs": [1, 2, 64],
                      "shortlist": {"size": 3, "per_family": 2}})  # fmt: skip
    plain = sieve.run(spec).data
    audited = sieve.run(spec, audit=True, out=tmp_path / "run")
    found = audited.data["audit"]
    assert plain["audit"] is None
    assert audited.data["ranking"] == plain["ranking"]
    everything = sieve.run(spec, exhaustive=True, audit=True)
    assert everything.data["audit"] == found
    assert found["best"] == everything.data["ranking"][0]["candidate_id"]
    assert found["num_exhaustive"] == everything.data["stages"][4]["num_in"] > 3
    own = next(row for row in found["by_size"] if row["size"] == 3)
    assert {key: found[key] for key in own} == own
    # A longer shortlist never finds less.
    recalls = [row["recall_top5"] for row in found["by_size"]]
    assert recalls == sorted(recalls)
    assert "Shortlist against everything" in (tmp_path / "run" / "report.html").read_text()


def test_an_audit_needs_a_ranking(make_spec):
    with pytest.raises(InvalidInput, match="--audit"):
        sieve.run(make_spec(), audit=True, stop_after=4)
