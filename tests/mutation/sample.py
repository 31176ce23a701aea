"""The changes that cosmic-ray knows for some files, and a random sample of them."""

from __future__ import annotations

import ast
import json
import random
import sqlite3
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, order=True)
class Mutant:
    """One change.

    Attributes:
        file: relative to the checkout.
        operator: kind of change.
        occurrence: which place of the file, counted by the operator.
        line: of the place.
    """

    file: str
    operator: str
    occurrence: int
    line: int


def possible(copy: Path, modules: Iterable[str]) -> list[Mutant]:
    """Return every change of the modules that a test could notice, sorted.

    Left out are annotations, which nothing evaluates, and the decorators that compile a kernel,
    which have no effect when it is interpreted.
    """
    config, session = copy / "mutants.toml", copy / "mutants.sqlite"
    session.unlink(missing_ok=True)
    config.write_text(
        "[cosmic-ray]\n"
        f"module-path = {json.dumps(list(modules))}\n"
        'timeout = 60.0\nexcluded-modules = ["**/__init__.py"]\ntest-command = ""\n'
        '[cosmic-ray.distributor]\nname = "local"\n'
    )
    subprocess.run(["cosmic-ray", "init", str(config), str(session)], cwd=copy, check=True)
    query = "select module_path, operator_name, occurrence, start_pos_row, start_pos_col from "
    with sqlite3.connect(session) as base:
        rows = base.execute(query + "mutation_specs").fetchall()
    silent = {file: _silent((copy / file).read_text()) for file in {str(row[0]) for row in rows}}
    return sorted(
        Mutant(str(file), operator, occurrence, line)
        for file, operator, occurrence, line, column in rows
        if not any(first <= (line, column) < last for first, last in silent[str(file)])
    )


def _silent(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the places of annotations and of decorators that compile."""
    nodes: list[ast.expr | None] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            nodes += [node.returns]
            nodes += [d for d in node.decorator_list if ast.unparse(d) in {"jit", "inlined"}]
        elif isinstance(node, ast.arg | ast.AnnAssign):
            nodes += [node.annotation]
    return [
        # The sign before a decorator belongs to it.
        ((n.lineno, n.col_offset - 1), (int(n.end_lineno or 0), int(n.end_col_offset or 0)))
        for n in nodes
        if n is not None
    ]


def shares(sizes: dict[str, int], count: int) -> dict[str, int]:
    """Return how many of `count` mutants each group gets, by its number of possible ones."""
    whole = sum(sizes.values())
    exact = {name: count * size / whole for name, size in sizes.items()}
    out = {name: int(value) for name, value in exact.items()}
    rest = sorted(exact, key=lambda name: (out[name] - exact[name], name))
    for name in rest[: count - sum(out.values())]:
        out[name] += 1
    return out


def chosen(mutants: list[Mutant], count: int, seed: str) -> list[Mutant]:
    """Return a random sample, the same for the same code and seed."""
    return random.Random(seed).sample(mutants, min(count, len(mutants)))
