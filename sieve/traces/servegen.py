"""Client models in ServeGen's form: many clients, each with its own rate, burstiness and lengths.

Two tables (Parquet or CSV) in one folder:

`client_windows` has the columns `client`, `window_start_s`, `rate_req_per_s`, `cv` and `pattern`
(Gamma or Weibull); `client_length_pdfs` has `client`, `window_start` (s), `field` (`input_tokens`
or `output_tokens`), `value` and `prob`.

Per client and window the gaps are drawn with that mean and coefficient of variation, the lengths
from the client's distribution of the length window it falls in. Input and output are drawn
independently, because the model has no joint distribution. A client without lengths gets the
mixture of the others, weighted by their rates.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from sieve.arrays import FloatArray, IntArray, Requests
from sieve.errors import TraceError
from sieve.traces.files import TraceFile, listing, read_file
from sieve.traces.limits import generator, whole_ns

WINDOWS: Final = "client_windows"
LENGTHS: Final = "client_length_pdfs"
WINDOW_COLUMNS: Final = ("client", "window_start_s", "rate_req_per_s", "cv", "pattern")
LENGTH_COLUMNS: Final = ("client", "window_start", "field", "value", "prob")
MAX_REQUESTS: Final = 20_000_000


@dataclass(frozen=True, eq=False)
class ClientModel:
    """The two tables of a client model."""

    windows: pl.DataFrame
    lengths: pl.DataFrame
    name: str
    sha256: str


def find(path: Path) -> Path | None:
    """Return the folder of a client model, given the folder or one of its tables; else None."""
    folder = path if path.is_dir() else path.parent
    if not path.is_dir() and not path.name.startswith((WINDOWS, LENGTHS)):
        return None
    return folder if any(folder.glob(f"{WINDOWS}.*")) else None


def load(folder: Path, label: str) -> ClientModel:
    """Return the client model of a folder.

    Raises:
        TraceError: a table or a column is missing, or a value is out of range.
    """
    frames, hashes = [], []
    for stem, names in ((WINDOWS, WINDOW_COLUMNS), (LENGTHS, LENGTH_COLUMNS)):
        paths = sorted(folder.glob(f"{stem}.*"))
        if len(paths) != 1:
            raise TraceError(f"{label}: {len(paths)} files {stem}.*; expected one (Parquet or CSV)")
        file = read_file(paths[0], f"{label}/{paths[0].name}")
        frames.append(_frame(file, names))
        hashes.append(file.sha256)
    windows, lengths = frames
    bad = windows.filter(
        ~(pl.col("rate_req_per_s").is_between(0, 1e9) & pl.col("cv").is_between(0, 1e3))
    )
    if len(bad):
        raise TraceError(f"{label}: a rate or CV is negative, missing or too large: {bad.row(0)}")
    if lengths.filter(
        ~(pl.col("value").is_between(0, 1e7) & pl.col("prob").is_between(0, 1))
    ).height:
        raise TraceError(f"{label}: a length or probability is out of range in {LENGTHS}")
    if not windows["rate_req_per_s"].sum():
        raise TraceError(f"{label}: no client sends anything")
    digest = hashlib.sha256("".join(hashes).encode()).hexdigest()
    return ClientModel(windows, lengths, folder.name, digest)


def _frame(file: TraceFile, names: tuple[str, ...]) -> pl.DataFrame:
    missing = [name for name in names if name not in file.columns]
    if missing:
        raise TraceError(
            f"{file.label}: column {missing[0]} is missing; found {listing(file.columns)}"
        )
    reader: Any = pl.read_parquet if file.is_parquet else pl.read_csv
    try:
        frame: pl.DataFrame = reader(file.content, columns=list(names))
        kinds = {"pattern": pl.String, "field": pl.String}
        return frame.select(pl.col(n).cast(kinds.get(n, pl.Float64)) for n in names)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise TraceError(f"{file.label}: cannot be read: {str(error)[:120]}") from None


def draw(
    model: ClientModel, window_s: tuple[float, float] | None, requests: int | None, seed: int
) -> Requests:
    """Return drawn requests of the client model, the first at 0.

    Args:
        model: the clients.
        window_s: part of the model's time axis; None: all of it.
        requests: stop after so many; None: all.
        seed: of the draw.

    Raises:
        TraceError: nothing in the window, or more requests than can be drawn.
    """
    start, end = window_s or (0.0, float("inf"))
    starts = np.unique(model.windows["window_start_s"].to_numpy())
    width = float(np.diff(starts).min()) if len(starts) > 1 else 600.0
    used = model.windows.filter(
        (pl.col("window_start_s") + width > start) & (pl.col("window_start_s") < end)
        & (pl.col("rate_req_per_s") > 0)
    ).sort("window_start_s", "client")  # fmt: skip
    expected = float(used["rate_req_per_s"].sum()) * width
    if expected > MAX_REQUESTS and (requests is None or requests > MAX_REQUESTS):
        raise TraceError(
            f"{model.name}: about {expected:,.0f} requests; set requests or window_s "
            f"(--requests, --window) for at most {MAX_REQUESTS:,}"
        )
    rng = generator(seed, "servegen.arrival")
    times: list[FloatArray] = []
    clients: list[IntArray] = []
    total = 0
    for (begin,), part in used.group_by("window_start_s", maintain_order=True):
        offset_s, client = _window(part, width, rng)
        at = offset_s + float(begin)
        inside = (at >= start) & (at < end)
        times.append(at[inside])
        clients.append(client[inside])
        total += int(inside.sum())
        if requests is not None and total >= requests:
            break
    if not total:
        raise TraceError(f"{model.name}: no request in the window; its windows run from "
                         f"{starts[0]:g} to {starts[-1] + width:g} s")  # fmt: skip
    at, client = np.concatenate(times)[:requests], np.concatenate(clients)[:requests]
    input_tokens, output_tokens, notes = _lengths(model, at, client, seed)
    return Requests(
        arrival_s=whole_ns(at - at[0]),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        source=model.name,
        sha256=model.sha256,
        notes=("drawn from a client model; input and output lengths independent", *notes),
    )


def _window(
    part: pl.DataFrame, width: float, rng: np.random.Generator
) -> tuple[FloatArray, IntArray]:
    """Return sorted seconds inside a window and the client of each request."""
    at: list[FloatArray] = []
    who: list[IntArray] = []
    for client, rate, cv, pattern in part.select(
        "client", "rate_req_per_s", "cv", "pattern"
    ).iter_rows():
        times = _renewal(rate, cv or 1.0, pattern, width, rng)
        at.append(times)
        who.append(np.full(len(times), int(client), np.int64))
    every = np.concatenate(at)
    order = np.argsort(every, kind="stable")
    return every[order], np.concatenate(who)[order]


def _renewal(
    rate: float, cv: float, pattern: str | None, width: float, rng: np.random.Generator
) -> FloatArray:
    """Return the arrivals of a renewal process in [0, width) that began long before."""
    most = int(rate * width * 1.2 + 6 * cv * np.sqrt(rate * width) + 10)
    # The window begins at a moment anywhere in a stretch of gaps, not at an arrival.
    gaps = _gaps(pattern, cv, 2 * most, rng) / rate
    at = np.cumsum(gaps)
    shift = rng.random() * at[most - 1]
    at = at[at >= shift] - shift
    if len(at) and at[-1] < width:
        more = at[-1] + np.cumsum(_gaps(pattern, cv, 4 * most, rng) / rate)
        at = np.concatenate([at, more])
    return np.asarray(at[at < width], np.float64)


def _gaps(pattern: str | None, cv: float, n: int, rng: np.random.Generator) -> FloatArray:
    """Return (n,) gaps of mean 1 and the given coefficient of variation."""
    if (pattern or "Gamma").lower().startswith("weibull"):
        from scipy.special import gamma as gamma_function  # late: slow to import

        shapes = np.geomspace(0.12, 20.0, 400)
        squares = gamma_function(1 + 2 / shapes) / gamma_function(1 + 1 / shapes) ** 2
        log_cv = 0.5 * np.log(squares - 1)
        shape = float(np.interp(np.log(cv), log_cv[::-1], shapes[::-1]))
        return np.asarray(rng.weibull(shape, n) / gamma_function(1 + 1 / shape), np.float64)
    shape = max(cv, 1e-6) ** -2.0
    return np.asarray(rng.standard_gamma(shape, n) / shape, np.float64)


def _lengths(
    model: ClientModel, at: FloatArray, client: IntArray, seed: int
) -> tuple[IntArray, IntArray, list[str]]:
    """Return (n,) input and output lengths, and notes."""
    notes: list[str] = []
    out: list[IntArray] = []
    known = {int(c) for c in model.lengths["client"].unique().to_list()}
    strange = ~np.isin(client, np.fromiter(known, np.int64, len(known)))
    if strange.any():
        notes.append(
            f"{strange.mean():.1%} of requests are of clients without lengths: drawn from the "
            "mixture of the others"
        )
    starts = np.unique(model.lengths["window_start"].to_numpy())
    window = starts[np.clip(np.searchsorted(starts, at, side="right") - 1, 0, None)]
    rate = model.windows.group_by("client").agg(pl.col("rate_req_per_s").mean().alias("weight"))
    for field in ("input_tokens", "output_tokens"):
        pdfs = model.lengths.filter(pl.col("field") == field)
        if not len(pdfs):
            raise TraceError(f"{model.name}: {LENGTHS} has no field {field}")
        rng = generator(seed, f"servegen.{field}")
        value = np.zeros(len(at))
        tables = dict(pdfs.group_by("client", "window_start"))
        mixture = pdfs.join(rate, on="client").with_columns(pl.col("prob") * pl.col("weight"))
        by_client = dict(pdfs.group_by("client"))
        groups = pl.DataFrame({"c": client, "w": window}).with_row_index("row")
        for (who, when), rows in groups.group_by("c", "w", maintain_order=True):
            part = tables.get((float(who), float(when)))
            if part is None:
                part = by_client.get((float(who),), mixture)
            share = np.cumsum(part["prob"].to_numpy())
            if not share[-1] > 0:
                raise TraceError(f"{model.name}: the probabilities of client {who} sum to 0")
            place = rng.random(len(rows)) * share[-1]
            i = np.minimum(np.searchsorted(share, place, side="right"), len(share) - 1)
            value[rows["row"].to_numpy()] = part["value"].to_numpy()[i]
        out.append(np.maximum(np.rint(value), 1).astype(np.int64))
    return out[0], out[1], notes
