"""What a calibration did to a run, in words for its assumptions."""

from __future__ import annotations

import math

import polars as pl

from sieve.calibration.serving import Calibration


def calibration_notes(calibration: Calibration, ranked: pl.DataFrame) -> list[str]:
    """Return what was corrected by how many points, which intervals are local, what expired.

    Args:
        calibration: of the run.
        ranked: candidates with the columns of corrections; may lack them if nothing was replayed.
    """
    dates = sorted({p.date for p in calibration.points if p.date})
    since = f", dated {dates[0]} to {dates[-1]}" if dates else ""
    hold = f"{len(calibration.points)} measured points hold{since} (sha256 {_short(calibration)})"
    notes = [hold]
    if calibration.expired:
        notes.append(
            f"{calibration.expired} points have expired and were left out: the engine profile, the "
            "step-time constants or the kernel tables behind their predictions have changed; read "
            "the results again with `sieve calibrate`"
        )
    if ranked.is_empty() or "correction_tpot" not in ranked.columns:
        return notes
    for gpu, part in ranked.group_by("gpu", maintain_order=True):
        notes.append(_of_gpu(str(gpu[0]), part))
    notes.append(
        "corrections act on the latencies of a replay made with uncorrected step times: who waited "
        "for whom stays, and so does the shortlist"
    )
    return notes


def _short(calibration: Calibration) -> str:
    return calibration.sha256[:12] or "in memory"


def _of_gpu(gpu: str, part: pl.DataFrame) -> str:
    words = []
    for kind in ("tpot", "ttft"):
        factors = part[f"correction_{kind}"].drop_nulls().to_list()
        if not factors:
            return f"{gpu}: nothing was replayed that could be corrected"
        low, high = math.exp(min(factors)), math.exp(max(factors))
        local = int(part[f"basis_{kind}"].is_not_null().sum())
        span = f"{low:.3f}" if high - low < 5e-4 else f"{low:.3f} to {high:.3f}"
        words.append(
            f"{kind.upper()} times {span}, interval from local points for {local} of {len(part)} "
            "candidates, else uncalibrated"
        )
    host = part["correction_host_s"].drop_nulls()[0]
    points = part["calibration_points"].drop_nulls().to_list()
    own = f"{min(points)}" if min(points) == max(points) else f"{min(points)} to {max(points)}"
    return f"{gpu}: {'; '.join(words)}; {host * 1e3:+.0f} ms to TTFT; {own} points of its own"
