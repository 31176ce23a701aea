"""Inputs made to hurt, given to every reader: deep nesting, absurd numbers, archives, bombs."""

from __future__ import annotations

import ast
import gzip
import io
import random
import re
import time
import zipfile
from pathlib import Path

import pytest
import zstandard

from fuzz.campaign import feed
from fuzz.targets import ROOT, TARGETS, Target

pytestmark = pytest.mark.filterwarnings("ignore")
NUMBER = re.compile(rb"(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.])")
NUMBERS = (
    b"1e308",
    b"-1e308",
    b"1e-320",
    b"NaN",
    b"-Infinity",
    b"9" * 400,
    b"9" * 40,
    b"-1",
    b"1" + b"0" * 18,
)
PLACES = 8
LONGEST_S = 20.0
"""Far above what the slowest takes on two shared cores; an endless loop would exceed it."""


def zipped(data: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../etc/cron.d/x", data)
    return stream.getvalue()


def shapes(seed: bytes) -> dict[str, bytes]:
    deep = 50_000
    return {
        "deep lists": b"[" * deep + b"]" * deep,
        "deep objects": b'{"a":' * deep + b"1" + b"}" * deep,
        "unclosed lists": b"[" * deep,
        "one long line": b"x" * 3_000_000,
        "many commas": b"," * 500_000,
        "many lines": b"1,2,3\n" * 50_000,
        "null bytes": b"\0" * 100_000,
        "not UTF-8": b"\xff\xfe" + seed,
        "UTF-16": seed.decode("utf-8", "replace").encode("utf-16"),
        "lone surrogates": seed.replace(b"a", b"\\ud800"),
        "a zip archive": zipped(seed),
        "a zip archive that leads outside": zipped(b"\0" * 10_000_000),
        "a gzip bomb": gzip.compress(seed + b" " * 30_000_000),
        "a gzip of a gzip": gzip.compress(gzip.compress(seed)),
        "a zstd bomb": zstandard.compress(seed + b" " * 30_000_000),
        "a pickle": b"\x80\x04cposix\nsystem\n(S'touch owned'\ntR.",
        "an ELF head": b"\x7fELF" + b"\0" * 60,
    }


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_no_shape_of_input_breaks_a_reader(target: Target, tmp_path: Path) -> None:
    found = {}
    feed(target, target.seeds()[:1], tmp_path)  # compiles and imports what is needed
    for name, data in shapes(target.seeds()[0][:2_000_000]).items():
        counts = feed(target, [data], tmp_path)
        found[name] = (list(counts.crashes), counts.slowest_s < LONGEST_S)
    assert {name: got for name, got in found.items() if got != ([], True)} == {}
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("target", [t for t in TARGETS if t.suffix != ".parquet"],
                         ids=lambda t: t.name)  # fmt: skip
def test_no_number_breaks_a_reader(target: Target, tmp_path: Path) -> None:
    """Numbers of the valid inputs are replaced one at a time by ones that no field can take."""
    rng = random.Random(target.name)
    inputs = []
    for seed in target.seeds():
        places = [match.span() for match in NUMBER.finditer(seed[:100_000])]
        for first, last in rng.sample(places, min(PLACES, len(places))):
            inputs += [seed[:first] + number + seed[last:] for number in NUMBERS]
    inputs = rng.sample(inputs, min(len(inputs), 300))
    started = time.monotonic()
    counts = feed(target, inputs, tmp_path)
    assert counts.crashes == {}
    assert counts.read + counts.refused == len(inputs)
    assert time.monotonic() - started < LONGEST_S * 10


FORBIDDEN = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}


def names_of(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            found |= {name} if name in {"eval", "exec", "os.system", "__import__"} else set()
            keywords = {k.arg: ast.unparse(k.value) for k in node.keywords}
            found |= {"shell=True"} if keywords.get("shell") == "True" else set()
            found |= {"allow_pickle"} if keywords.get("allow_pickle") == "True" else set()
            unsafe = name in {"yaml.load", "yaml.load_all"} and "Loader" not in keywords
            found |= {"yaml.load without a loader"} if unsafe else set()
    return found


def test_nothing_is_unpickled_evaluated_or_given_to_a_shell() -> None:
    bad = FORBIDDEN | {"eval", "exec", "os.system", "__import__", "shell=True", "allow_pickle",
                       "yaml.load without a loader"}  # fmt: skip
    files = [*(ROOT / "sieve").rglob("*.py"), *(ROOT / "stages").rglob("*.py")]
    assert len(files) > 200
    used = {str(p.relative_to(ROOT)): names_of(ast.parse(p.read_text())) & bad for p in files}
    assert {path: names for path, names in used.items() if names} == {}
