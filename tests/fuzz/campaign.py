"""Feed mutated inputs to every reader and count what comes back.

    PYTHONPATH=tests python -m fuzz.campaign --inputs 1000000    # the recorded campaign
    PYTHONPATH=tests python -m fuzz.campaign --target spec --inputs 2000 --seed 7

Prints one line a target. A crash is written to `--crashes` with its traceback; once mended, its
input belongs in `corpus/crashes/<target>/`, which the tests feed again.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from fuzz.mutate import mutate
from fuzz.targets import TARGETS, Target
from sieve.errors import SieveError


@dataclass
class Counts:
    """What came of a target's inputs.

    Attributes:
        read: accepted.
        refused: refused with a `SieveError`.
        crashes: first input of each distinct fault, by its last line of code.
        slowest_s: longest time that one input took.
    """

    read: int = 0
    refused: int = 0
    crashes: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    num_crashed: int = 0
    slowest_s: float = 0.0
    slowest: bytes = b""


def feed(target: Target, inputs: Iterable[bytes], folder: Path) -> Counts:
    """Give each input to the target's reader."""
    counts = Counts()
    path = folder / f"{target.name}{target.suffix}"
    for data in inputs:
        path.write_bytes(data)
        started = time.perf_counter()
        try:
            target.read(path)
            counts.read += 1
        except SieveError:
            counts.refused += 1
        except Exception as error:  # noqa: BLE001 - that any other error leaves is what is looked for
            counts.num_crashed += 1
            place = traceback.extract_tb(error.__traceback__)[-1]
            key = f"{type(error).__name__} {Path(place.filename).name}:{place.lineno}"
            counts.crashes.setdefault(key, (data, traceback.format_exc()))
        took = time.perf_counter() - started
        if took > counts.slowest_s:
            counts.slowest_s, counts.slowest = took, data
    return counts


def inputs_of(target: Target, count: int, seed: int) -> Iterable[bytes]:
    """Yield the target's seeds and then mutations of them, `count` in all."""
    rng = random.Random(f"{seed} {target.name}")
    seeds = target.seeds()
    yield from seeds[:count]
    for _ in range(count - len(seeds)):
        yield mutate(rng.choice(seeds), rng.choice(seeds), rng)


def main() -> int:
    """Run a campaign; the exit code is 1 if anything crashed."""
    names = [target.name for target in TARGETS]
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--inputs", type=int, default=10_000, help="in all, shared evenly")
    parser.add_argument("--target", choices=names, action="append")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--crashes", type=Path, default=None, help="folder for what crashed")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    chosen = [target for target in TARGETS if target.name in (args.target or names)]
    share = -(-args.inputs // len(chosen))
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        for target in chosen:
            started = time.process_time()
            counts = feed(target, inputs_of(target, share, args.seed), Path(name))
            line = {
                "target": target.name, "inputs": share, "read": counts.read,
                "refused": counts.refused, "crashed": counts.num_crashed,
                "faults": len(counts.crashes), "slowest_s": round(counts.slowest_s, 3),
                "cpu_s": round(time.process_time() - started, 1),
            }  # fmt: skip
            print(json.dumps(line), flush=True)
            failed += counts.num_crashed
            if args.crashes is not None:
                _keep(args.crashes / target.name, target, counts)
    return 1 if failed else 0


def _keep(folder: Path, target: Target, counts: Counts) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"slowest{target.suffix}").write_bytes(counts.slowest)
    for number, (key, (data, trace)) in enumerate(counts.crashes.items()):
        (folder / f"{number:02d}{target.suffix}").write_bytes(data)
        (folder / f"{number:02d}.txt").write_text(f"{key}\n{trace}")


if __name__ == "__main__":
    sys.exit(main())
