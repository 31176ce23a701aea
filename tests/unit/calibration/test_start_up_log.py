"""Start-up logs of several releases: what is read, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from sieve.calibration.start_up_lines import grammar
from sieve.calibration.start_up_log import MOST_BYTES, StartUpLog, read_start_up_log
from sieve.errors import ResultError
from sieve.units import GIB

LOGS = Path(__file__).parent / "logs"
# Lines as the sources of the release print them (gpu_worker.py, gpu_model_runner.py,
# kv_cache_utils.py, mem_utils.py, worker.py); the figures of 0.19 are those of a public log.
V0 = (LOGS / "vllm-0.6.6.txt").read_text(encoding="utf-8")
V19 = (LOGS / "vllm-0.19.0.txt").read_text(encoding="utf-8")
V33 = (LOGS / "vllm-0.33.0.txt").read_text(encoding="utf-8")


@pytest.fixture
def read(tmp_path: Path):
    def reader(text: str | bytes, name: str = "vllm.log") -> StartUpLog:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_start_up_log(path)

    return reader


def gib(log: StartUpLog, name: str) -> float | None:
    value = log.value(name)
    return None if value is None else round(value / GIB, 4)


def test_the_older_engine(read) -> None:
    log = read(V0)
    assert (log.version, log.date, log.covers) == ("0.6.6", "01-15", ("0.6", "0.9"))
    assert gib(log, "weight_bytes") == 14.99  # the larger of two roundings
    assert gib(log, "non_torch_bytes") == 0.16
    assert gib(log, "activation_bytes") == 1.26
    assert gib(log, "kv_bytes") == 54.78
    assert gib(log, "total_bytes") == 79.1
    assert gib(log, "graph_bytes") == 0.24
    assert log.value("num_gpu_blocks") == 28_047
    assert log.value("utilisation") == 0.9
    assert log.arguments["max_model_len"] == "8192"
    assert not log.notes


def test_figures_on_two_lines(read) -> None:
    log = read(V19)
    assert (log.version, log.date, log.covers) == ("0.19.0", "04-12", ("0.10", "0.26"))
    assert gib(log, "weight_bytes") == 14.99
    assert gib(log, "kv_bytes") == 58.11
    assert gib(log, "requested_bytes") == 75.23
    assert gib(log, "free_bytes") == 78.66
    assert gib(log, "non_kv_bytes") == 17.13
    assert log.value("kv_tokens") == 476_000
    assert log.value("concurrency") == 58.11
    assert log.value("max_model_len") == 8192
    assert log.figures["kv_tokens"].line == 7
    assert log.states_arguments
    assert log.arguments["model"] == "meta-llama/Llama-3.1-8B-Instruct"
    assert log.arguments["gpu_memory_utilization"] == "0.95"
    assert "max_num_seqs" not in log.arguments  # it stands inside another option
    assert "kv_cache_dtype" not in log.arguments


def test_figures_on_one_line(read) -> None:
    log = read(V33)
    assert (log.version, log.date, log.covers) == ("0.33.0", "2026-11-20", ("0.27", "0.33"))
    assert gib(log, "consumed_bytes") == 9.81
    assert gib(log, "peak_bytes") == 3.44
    assert gib(log, "graph_estimate_bytes") == 1.1
    assert gib(log, "graph_bytes") == 1.05
    assert log.value("activation_bytes") is None
    assert (log.value("kv_tokens"), log.value("concurrency")) == (868_000, 52.98)
    assert log.num_workers == 2
    # The worker with the least cache decides; what it does not print comes from the others.
    assert (gib(log, "kv_bytes"), gib(log, "weight_bytes")) == (59.58, 7.69)


def test_the_stage_of_the_deciding_worker(read) -> None:
    log = read(
        "(Worker_PP0_TP0 pid=1) INFO 11-20 08:00:41 Available KV cache memory: 20.0 GiB\n"
        "(Worker_PP1_TP0 pid=2) INFO 11-20 08:00:41 Available KV cache memory: 18.5 GiB\n"
    )
    assert (log.stage, gib(log, "kv_bytes")) == (1, 18.5)
    assert log.version == ""


def test_without_a_banner_the_form_narrows_the_release(read) -> None:
    lines = [line for line in V33.splitlines(keepends=True) if "version" not in line]
    log = read("".join(lines))
    assert (log.version, log.covers) == ("", ("0.27", "0.33"))


def test_lines_of_another_release_are_noted(read) -> None:
    log = read(V19.replace("0.19.0", "0.30.1"))
    assert log.version == "0.30.1"
    assert "cache tokens" in log.notes[0]


@pytest.mark.parametrize(
    ("line", "failure", "name", "value"),
    [
        (
            "ValueError: To serve at least one request with the models's max seq len (262144), "
            "(24.00 GiB KV cache is needed, which is larger than the available KV cache memory "
            "(13.70 GiB). Based on the available memory, the estimated maximum model length is "
            "149632. ",
            "one request does not fit", "longest_len", 149_632,
        ),
        (
            "ValueError: The model's max seq len (16384) is larger than the maximum number of "
            "tokens that can be stored in KV cache (8112). Try increasing",
            "one request does not fit", "kv_tokens", 8112,
        ),
    ],
)  # fmt: skip
def test_start_ups_that_fail(read, line: str, failure: str, name: str, value: float) -> None:
    log = read(V19.splitlines(keepends=True)[0] + line + "\n")
    assert log.failure == failure
    assert log.value(name) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        (" \n\n", "empty"),
        (b"\x1f\x8b\x08\x00rest", "compressed"),
        (b"INFO\nab\0cd", ":2: a binary file"),
        ("hello\nworld\n", ":2: no vLLM start-up log"),
        (V19.splitlines()[0], "a vLLM log without memory figures"),
        ("[2026-01-01] server_args=ServerArgs(model_path='x')\n", ":1: a log of SGLang"),
        ("llama_model_loader: loaded meta data\n", ":1: a log of llama.cpp"),
        ("Model loading took 99999 GiB and 1 seconds", ":1: weight of 99999 cannot be"),
        ("Model loading took 1.2.3 GiB and 1 seconds", ":1: '1.2.3' is no number"),
        (f"Model loading took {'9' * 400} GiB and", "cannot be"),
        ("Model loading took -1.5 GiB and 1 seconds", "cannot be"),
        (V19.replace("took 14.99 GiB", "took 714.99 GiB"), ":4: weights of 714.99 GiB on a card"),
        (V19.replace("(0.95, 75.23", "(9.5, 75.23"), ":9: utilisation of 9.5 cannot be"),
        ("vLLM API server version abc\nModel loading took 1 GiB", "'abc' cannot be read"),
        (
            "INFO vLLM API server version 0.19.0\nModel loading took 1.0 GiB and 1 seconds\n"
            "INFO vLLM API server version 0.19.0\nModel loading took 2.0 GiB and 1 seconds\n",
            ":3: a second start-up begins",
        ),
    ],
)
def test_what_is_refused(read, text: str | bytes, message: str) -> None:
    with pytest.raises(ResultError) as caught:
        read(text)
    assert message in str(caught.value)
    assert "vllm.log" in str(caught.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="no such file"):
        read_start_up_log(tmp_path)
    with pytest.raises(ResultError, match="no such file"):
        read_start_up_log(tmp_path / "missing")
    large = tmp_path / "large.log"
    with large.open("wb") as handle:
        handle.truncate(MOST_BYTES + 1)
    with pytest.raises(ResultError, match="at most 50,000,000"):
        read_start_up_log(large)


def test_json_lines_of_the_engine_are_a_log(read) -> None:
    line = '{"levelname": "INFO", "message": "Available KV cache memory: 3.50 GiB"}'
    assert gib(read(line), "kv_bytes") == 3.5


def test_long_lines_do_not_stall(read) -> None:
    noise = "(" * 150_000 + "GiB tokens memory Worker" + "(Worker_TP0 " * 1000
    log = read(f"{noise}\n{'x' * 5_000_000}\nAvailable KV cache memory: 3.50 GiB\n")
    assert gib(log, "kv_bytes") == 3.5


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.txt")), ids=lambda path: path.stem)
def test_no_figure_is_passed_over(path: Path, tmp_path: Path) -> None:
    """Lines are searched only where a hint stands; every pattern that matches must have one."""
    lines = (*grammar().lines, *grammar().failures)
    for line in path.read_text(encoding="utf-8").splitlines():
        if any(kind.pattern.search(line) for kind in lines):
            alone = tmp_path / "alone.log"
            alone.write_text(line + "\n", encoding="utf-8")
            assert read_start_up_log(alone).figures
