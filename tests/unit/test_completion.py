"""Shell completion: the protocol of the scripts that `--install-completion` sets up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sieve.catalog.accelerators import load_gpu
from sieve.catalog.models import load_model

SIEVE = Path(sys.executable).with_name("sieve")
LIMIT_S = 0.5


def cpu_s() -> float:
    """Return the CPU seconds of the processes started so far, which do not count waiting."""
    spent = os.times()
    return spent.children_user + spent.children_system


def complete(line: str) -> tuple[list[str], float]:
    """Return what bash would offer at the end of a line, and the seconds of CPU it took."""
    words = line.split()
    place = len(words) if line.endswith(" ") else len(words) - 1
    env = os.environ | {
        "COMP_WORDS": line,
        "COMP_CWORD": str(place),
        "_SIEVE_COMPLETE": "complete_bash",
    }
    begin = cpu_s()
    done = subprocess.run([SIEVE], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return done.stdout.split(), cpu_s() - begin


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("sieve tab", ["tables"]),
        ("sieve trace i", ["inspect"]),
        ("sieve run cha", ["chat"]),
        ("sieve fleet size rea", ["reasoning"]),
        ("sieve gpus l40", ["l40s-48gb"]),
        ("sieve fit meta-llama/Llama-3.1-8", ["meta-llama/Llama-3.1-8B-Instruct"]),
        ("sieve fit llama-3.1-8", ["llama-3.1-8b-instruct"]),
        ("sieve fit Llama-3.1-8", ["Llama-3.1-8B-Instruct"]),
        ("sieve fit m --gpu H200-S", ["H200-SXM-141GB"]),
        ("sieve bound m --gpu h200-s", ["h200-sxm-141gb"]),
        ("sieve check m --gpu L4 --engine ref", ["reference"]),
        ("sieve fit m --weight-dtype fp", ["fp16", "fp8"]),
        ("sieve bound m --kv-cache-dtype au", ["auto"]),
        ("sieve batch jobs.yaml --executor r", ["ray"]),
        ("sieve calibrate b.json --gpu H200-S", ["H200-SXM-141GB"]),
        ("sieve trace inspect cha", ["chat"]),
        ("sieve explain nowhere h", []),
        ("sieve run requests", []),  # then the shell offers files
    ],
)
def test_what_is_offered(line: str, offered: list[str]) -> None:
    assert complete(line)[0] == offered


def test_the_candidates_of_a_run_are_offered(small_run: Any) -> None:
    ranked = [row["candidate_id"] for row in small_run.data["ranking"]]
    offered = complete(f"sieve explain {small_run.folder} h100-sxm-80gb.tp2")[0]
    assert offered == [name for name in ranked if name.startswith("h100-sxm-80gb.tp2")]
    assert offered


@pytest.mark.parametrize("name", ["llama-3.1-8b-instruct", "Llama-3.1-8B-Instruct"])
def test_each_spelling_that_is_offered_is_taken(name: str) -> None:
    assert load_model(name).name == "meta-llama/Llama-3.1-8B-Instruct"
    assert load_gpu("l40s-48gb").name == "L40S-48GB"


def test_every_command_and_option_is_offered() -> None:
    assert {"run", "fit", "trace", "verify"} <= set(complete("sieve ")[0])
    assert {"--gpu", "--tp", "--json"} <= set(complete("sieve fit m --")[0])


def test_an_answer_comes_before_the_reader_waits() -> None:
    """CPU seconds, the best of five, since other processes share the cores."""
    assert min(complete("sieve fit m --gpu H")[1] for _ in range(5)) < LIMIT_S


def test_bash_finds_the_script(tmp_path: Path) -> None:
    script = subprocess.run(
        [SIEVE],
        env=os.environ | {"_SIEVE_COMPLETE": "source_bash"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    path = tmp_path / "sieve.bash"
    path.write_text(script, encoding="utf-8")
    asked = (
        f"PATH={SIEVE.parent}:$PATH; source {path}; COMP_WORDS=(sieve fit m --gpu H200-S); "
        "COMP_CWORD=4; _sieve_completion sieve; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(
        ["bash", "-c", asked], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["H200-SXM-141GB"]
