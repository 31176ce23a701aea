import json
from dataclasses import replace

import numpy as np
import pytest

from sieve.arrays import Requests
from sieve.errors import TraceError
from sieve.traces import commands
from sieve.traces import draw as draw_module
from sieve.traces.draw import draw, draw_arrivals, draw_lengths, draw_window
from sieve.traces.summary import (
    LengthStats,
    Origin,
    Summary,
    dispersion,
    gap_cv,
    length_stats,
    log_correlation,
    summarise,
    window_length,
)

ORIGIN = Origin("A trace", "CC0-1.0", "v1", "0" * 64, "2026-11-29")


def requests(arrival_s, input_tokens, output_tokens):
    return Requests(
        np.array(arrival_s, float),
        np.array(input_tokens, np.int64),
        np.array(output_tokens, np.int64),
        source="hand",
    )


def summary_of(source, window_s=10.0):
    return summarise(source, name="hand", about="By hand.", origin=ORIGIN, window_s=window_s)


def two_speeds():
    """40 requests in 10 s, then 400 in 10 s, at equal gaps; short with short, long with long."""
    arrival = np.concatenate([np.arange(40) * 0.25, 10 + np.arange(401) * 0.025])
    odd = np.arange(441) % 2
    return requests(arrival, np.where(odd, 100, 5000), np.where(odd, 20, 900))


def test_statistics_of_hand_made_requests():
    s = summary_of(two_speeds())
    assert s.num_requests == 441
    assert s.span_s == 20.0
    assert s.rate_per_s == 22.0
    assert [w.num_requests for w in s.windows] == [40, 401]
    assert [w.rate_per_s for w in s.windows] == [4.0, 40.1]
    assert [w.gap_cv for w in s.windows] == pytest.approx([0.0, 0.0], abs=1e-9)
    # 221 of 441 have 5000 tokens.
    assert s.input_tokens.mean == pytest.approx((221 * 5000 + 220 * 100) / 441, rel=1e-5)
    assert (s.input_tokens.min, s.input_tokens.max) == (100, 5000)
    assert s.log_correlation == 1.0
    assert s.cells.tolist() == [[220, 0], [0, 221]]


def test_moments_by_formula():
    assert gap_cv(np.array([0.0, 1.0, 4.0])) == 0.5  # gaps 1 and 3: mean 2, deviation 1
    assert dispersion(np.array([0.5, 0.6, 0.7, 1.5]), 0.0, 2.0) == 0.5  # 3 and 1: 1 / 2
    assert length_stats(np.arange(1, 102)) == LengthStats(51.0, 51.0, 96.0, 100.0, 1, 101)
    assert log_correlation(requests([0, 1], [5, 5], [1, 2])) == 0.0
    assert log_correlation(requests([0, 1], [1, 2], [5, 5])) == 0.0


def test_json_round_trip():
    s = summary_of(two_speeds())
    text = s.to_json()
    again = Summary.from_json(text, "x")
    assert again.to_json() == text
    np.testing.assert_array_equal(again.cells, s.cells)
    assert json.loads(text)["schema_version"] == 1


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema_version": 1}', '{"schema_version": 9}'])
def test_damaged_summary(text):
    with pytest.raises(TraceError, match="chat: "):
        Summary.from_json(text, "chat")


@pytest.mark.parametrize(
    "source", [requests([0], [1], [1]), requests([0, 0], [1, 1], [1, 1])], ids=["one", "burst"]
)
def test_what_cannot_be_summarised(source):
    with pytest.raises(TraceError, match="hand: a summary needs"):
        summary_of(source)


def test_drawn_windows_hold_what_was_counted():
    s = summary_of(two_speeds())
    arrival_s = draw_arrivals(s, 882, seed=3)
    # Half a nanosecond keeps the arrival on a window's edge in the later window.
    counts = np.histogram(arrival_s + 5e-10, bins=[0, 10, 20, 30, 40])[0]
    assert counts.tolist() == [40, 401, 40, 401]
    assert arrival_s[0] == 0
    assert (np.diff(arrival_s) >= 0).all()


def test_more_requests_begin_with_the_same_arrivals():
    s = summary_of(two_speeds())
    longer = draw_arrivals(s, 1500, seed=3)
    for n in (1, 2, 40, 41, 442, 1499):
        np.testing.assert_array_equal(draw_arrivals(s, n, seed=3), longer[:n])


def test_silent_windows_stay_silent():
    arrival = np.concatenate([np.linspace(0, 9, 100), np.linspace(21, 30, 100)])
    s = summary_of(requests(arrival, np.full(200, 10), np.full(200, 10)))
    assert [w.num_requests for w in s.windows] == [100, 0, 100]
    assert s.windows[1].gap_cv is None
    drawn = draw_arrivals(s, 200, seed=1)
    assert not ((drawn > 10.001) & (drawn < 19.999)).any()


def test_cells_get_their_share_to_within_one():
    s = summary_of(two_speeds())
    for n in (1, 7, 100, 1000):
        x, y = draw_lengths(s, n, seed=2)
        assert set(zip(x.tolist(), y.tolist(), strict=True)) <= {(100, 20), (5000, 900)}
        assert abs((x == 100).sum() - n * 220 / 441) < 1


def test_rate_is_scaled_on_request():
    s = summary_of(two_speeds())
    assert draw(s, 500, 7.0, seed=0).rate_per_s == pytest.approx(7.0)
    assert draw(s, 441, None, seed=0).rate_per_s == pytest.approx(22.0, rel=0.01)
    # Also where all arrive within a second.
    assert draw(s, 4, 7.0, seed=0).arrival_s[-1] == pytest.approx(3 / 7.0)
    assert len(draw(s, 1, 7.0, seed=0)) == 1


def test_notes_say_that_windows_repeat_and_arrivals_are_stated():
    s = summary_of(two_speeds())
    assert not any("repeat" in note for note in draw(s, 100, None, seed=0).notes)
    assert any("repeat" in note for note in draw(s, 1000, None, seed=0).notes)
    stated = replace(s, origin=replace(ORIGIN, arrivals="stated"))
    assert "arrivals: stated" in draw(stated, 10, None, seed=0).notes


def test_windows_of_drawn_traffic():
    s = summary_of(two_speeds())
    inside = draw_window(s, 10_000, (5.0, 12.0), seed=3)
    every = draw_arrivals(s, 2000, seed=3)
    np.testing.assert_array_equal(inside, every[(every >= 5) & (every < 12)])
    np.testing.assert_array_equal(draw_window(s, 3, (5.0, 12.0), seed=3), inside[:3])
    assert len(draw_window(s, 4000, (5.0, 1e6), seed=3)) == 4000


def test_window_out_of_reach(monkeypatch):
    monkeypatch.setattr(draw_module, "_MAX_ARRIVALS", 5000)
    with pytest.raises(TraceError, match="lies beyond"):
        draw_window(summary_of(two_speeds()), 10, (1e8, 2e8), seed=0)


def test_windows_are_shortened_where_the_rate_changes_inside():
    """Bursts of a second, 20 times the rate between them: 300 s windows would hide them."""
    rng = np.random.default_rng(3)
    busy = [rng.uniform(10 * i, 10 * i + 1, 2000) for i in range(20)]
    quiet = [rng.uniform(10 * i + 1, 10 * i + 10, 900) for i in range(20)]
    arrival_s = np.sort(np.concatenate([*busy, *quiet]))
    arrival_s -= arrival_s[0]
    window_s = window_length(arrival_s, 300.0)
    # 58,000 requests in 200 s: 500 of them take 1.72 s.
    assert window_s == pytest.approx(500 * arrival_s[-1] / len(arrival_s))
    lengths = np.full(len(arrival_s), 10)
    traffic = Requests(arrival_s, lengths, lengths)
    summary = commands.summary_of(traffic)
    assert len(summary.windows) > 100
    again = draw(summary, len(traffic), None, 0)

    def dispersion_of(times):
        counts = np.histogram(times, bins=100, range=(0, 200))[0]
        return counts.var() / counts.mean()

    # Windows a little longer than the bursts keep half of them; one window keeps nothing.
    assert dispersion_of(again.arrival_s) > dispersion_of(arrival_s) / 3
    whole = draw(summary_of(traffic, 300.0), len(traffic), None, 0)
    assert dispersion_of(whole.arrival_s) < dispersion_of(arrival_s) / 30


def test_a_constant_rate_keeps_long_windows():
    rng = np.random.default_rng(4)
    for cv in (0.5, 1.0, 3.0):
        gaps = rng.gamma(1 / cv**2, cv**2, 20_000)
        assert window_length(np.cumsum(gaps) - gaps[0], 3000.0) == 3000.0
    assert window_length(np.arange(600.0), 300.0) == 300.0


def test_windows_count_the_starts_of_sessions_and_no_turn_after():
    """Four sessions of two turns begin at 0, 10, 20 and 30 s; turns stand where theirs begins."""
    source = Requests(
        np.repeat(np.arange(4) * 10.0, 2),
        np.full(8, 50),
        np.full(8, 5),
        previous=np.array([-1, 0, -1, 2, -1, 4, -1, 6]),
        delay_s=np.tile([0.0, 1.0], 4),
        source="hand",
    )
    s = summary_of(source, window_s=30.0)
    assert [w.rate_per_s for w in s.windows] == [pytest.approx(4 / 30, rel=1e-4)]
    assert s.sessions.num_sessions == 4
