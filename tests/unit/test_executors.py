"""Threads and Ray: same results, order of items, errors that name the candidate."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import sieve
from sieve.errors import InvalidInput, SieveError
from sieve.parallel import LocalExecutor, RayExecutor, make_executor

SPEC = {
    "name": "executors",
    "model": "Qwen/Qwen3-8B",
    "traffic": {"trace": "chat", "requests": 150, "rate_per_s": 10, "levels": [0.5, 1.0, 1.5]},
    "slo": {"ttft_p99": "2 s", "tpot_p99": "40 ms"},
    "fleet": {"gpus": ["H100-SXM-80GB"], "max_gpus": 4},
}


@pytest.fixture(scope="module")
def ray_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ray_home")


@pytest.fixture
def ray_home(ray_folder, monkeypatch):
    """Keep Ray's token out of the user's home; a process reads it once, so one folder for all."""
    monkeypatch.setenv("HOME", str(ray_folder))


def add(shared: int, item: int) -> int:
    if item == 13:
        raise InvalidInput("thirteen")
    return shared + item


def test_threads_keep_the_order():
    done = []

    def on_done(number, result):
        done.append(number)
        return 2 * result

    got = LocalExecutor(4).map_ordered(add, 100, range(12), [str(i) for i in range(12)], on_done)
    assert got == [2 * (100 + i) for i in range(12)]
    assert sorted(done) == list(range(12))


def test_an_error_names_the_candidate():
    with pytest.raises(InvalidInput, match="thirteen") as caught:
        LocalExecutor(2).map_ordered(add, 0, [1, 13], ["first", "second"])
    assert caught.value.__notes__ == ["while working on second"]


@pytest.mark.parametrize(
    ("kind", "address", "expected"),
    [
        ("auto", None, LocalExecutor),
        ("local", None, LocalExecutor),
        ("ray", None, RayExecutor),
        ("auto", "127.0.0.1:6379", RayExecutor),
    ],
)
def test_choice_of_executor(kind, address, expected):
    assert isinstance(make_executor(kind, address), expected)


@pytest.mark.parametrize(("kind", "address"), [("dask", None), ("local", "127.0.0.1:6379")])
def test_impossible_choices(kind, address):
    with pytest.raises(SieveError):
        make_executor(kind, address)


def without_clock(folder: Path) -> dict[str, object]:
    data = json.loads((folder / "result.json").read_text())
    del data["elapsed_s"]
    for stage in data["stages"]:
        del stage["elapsed_s"]
    return data


def test_twice_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        sieve.run(SPEC, out=tmp_path / name, executor="local")
    assert without_clock(tmp_path / "one") == without_clock(tmp_path / "two")
    for file in ("candidates.parquet", "simulations.parquet"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def run_command(executor: str, out: Path, home: Path) -> None:
    """Run the command line in a process of its own; Ray keeps its token below HOME."""
    spec = out.parent / "spec.yaml"
    spec.write_text(json.dumps(SPEC))
    command = [sys.executable, "-c", "from sieve.cli.main import main; main()", "run", str(spec)]
    done = subprocess.run(
        [*command, "--out", str(out), "--executor", executor],
        capture_output=True,
        text=True,
        env={**os.environ, "HOME": str(home)},
        check=False,
    )
    assert done.returncode in {0, 4, 5}, done.stderr


@pytest.mark.ray
def test_ray_gives_the_same_bytes_as_threads(tmp_path):
    for executor in ("local", "ray"):
        run_command(executor, tmp_path / executor, tmp_path)
    assert without_clock(tmp_path / "local") == without_clock(tmp_path / "ray")
    for file in ("candidates.parquet", "simulations.parquet"):
        assert (tmp_path / "local" / file).read_bytes() == (tmp_path / "ray" / file).read_bytes()
    plans = sorted(p.relative_to(tmp_path / "local") for p in (tmp_path / "local").glob("plan/*/*"))
    assert plans
    for plan in plans:
        assert (tmp_path / "local" / plan).read_bytes() == (tmp_path / "ray" / plan).read_bytes()


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore")  # Ray's own start-up warns about its future defaults
def test_ray_passes_the_error_on(ray_home):
    with pytest.raises(InvalidInput, match="thirteen") as caught:
        RayExecutor(workers=1).map_ordered(add, 0, [1, 13], ["a", "b"])
    assert any("while working on b" in note for note in caught.value.__notes__)


def lose_once(folder: str, item: int) -> int:
    """Return the square; the first attempt at 3 ends its process, that at 5 never returns."""
    with (Path(folder) / f"{item}").open("a") as attempts:
        attempts.write("x")
    first = (Path(folder) / f"{item}").stat().st_size == 1
    if item == 3 and first:
        os.kill(os.getpid(), signal.SIGKILL)
    if item == 5 and first:
        time.sleep(600)
    return item * item


def never_ends(_shared: None, _item: int) -> None:
    time.sleep(600)


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore")
def test_ray_loses_and_doubles_nothing(tmp_path, ray_home):
    """One worker is killed, one task passes its time limit: both are made again, once."""
    folder = tmp_path / "attempts"
    folder.mkdir()
    done = []

    def on_done(number, result):
        done.append(number)
        return result

    executor = RayExecutor(workers=2, task_limit_s=4)
    labels = [f"item {i}" for i in range(12)]
    got = executor.map_ordered(lose_once, str(folder), range(12), labels, on_done)
    assert got == [i * i for i in range(12)]
    assert sorted(done) == list(range(12))
    attempts = {i: (folder / f"{i}").stat().st_size for i in range(12)}
    assert attempts == {i: 2 if i in {3, 5} else 1 for i in range(12)}
    executor = RayExecutor(workers=1, task_limit_s=1)
    with pytest.raises(SieveError, match=r"slow one: its worker was lost 3 times .* 1 s"):
        executor.map_ordered(never_ends, None, [0], ["slow one"])


def test_a_ray_that_does_not_start_is_told_in_one_line():
    class Stuck:
        def __init__(self) -> None:
            self.is_up = True

        def init(self, **_options: object) -> None:
            raise RuntimeError("Timed out waiting for file port\nand more")

        def shutdown(self) -> None:
            self.is_up = False

    ray = Stuck()
    with pytest.raises(SieveError, match=r"^Ray did not start: Timed out .*port; see .*local$"):
        RayExecutor()._connect(ray)
    assert not ray.is_up


def square_and_tell_the_node(folder: str, item: int) -> int:
    import ray

    with (Path(folder) / f"{item}").open("a") as nodes:
        nodes.write(f"{ray.get_runtime_context().get_node_id()}\n")
    time.sleep(0.5)
    return item * item


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore")
def test_a_lost_node_costs_no_task(tmp_path, ray_home):
    """Two nodes; the second is killed while its tasks run: they are made again on the first."""
    from ray.cluster_utils import Cluster

    folder = tmp_path / "attempts"
    folder.mkdir()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        second = cluster.add_node(num_cpus=1)
        lost = second.node_id
        done: list[int] = []

        def nodes_of(item: int) -> list[str]:
            path = folder / f"{item}"
            return path.read_text().split() if path.exists() else []

        def on_done(number: int, result: int) -> int:
            open_items = set(range(16)) - {*done, number}
            begun = {node for item in open_items for node in nodes_of(item)}
            if lost in begun and second.any_processes_alive():
                cluster.remove_node(second, allow_graceful=False)
            done.append(number)
            return result

        executor = RayExecutor(address=cluster.address)
        labels = [f"item {i}" for i in range(16)]
        got = executor.map_ordered(
            square_and_tell_the_node, str(folder), range(16), labels, on_done
        )
    finally:
        cluster.shutdown()
    assert got == [i * i for i in range(16)]
    assert sorted(done) == list(range(16))
    again = [item for item in range(16) if len(nodes_of(item)) > 1]
    assert again
    assert all(nodes_of(item)[0] == lost != nodes_of(item)[-1] for item in again)


def exit_of(tmp_path: Path, *flags: str, blocked: str = "") -> tuple[int, str]:
    """Return exit code and stderr of `sieve run`; `blocked` names a package that is not there."""
    spec = tmp_path / "spec.yaml"
    spec.write_text(json.dumps(SPEC))
    hide = f"import sys; sys.modules[{blocked!r}] = None; " if blocked else ""
    done = subprocess.run(
        [sys.executable, "-c", hide + "from sieve.cli.main import main; main()", "run", str(spec),
         "--out", str(tmp_path / "out"), *flags],
        capture_output=True, text=True, check=False, env={**os.environ, "HOME": str(tmp_path)},
    )  # fmt: skip
    return done.returncode, done.stderr


def test_a_cluster_that_does_not_answer_is_bad_input(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code, text = exit_of(tmp_path, "--ray-address", f"127.0.0.1:{port}")
    assert code == 2
    assert "no Ray cluster answers" in text
    assert "ray start --head" in text
    assert "Traceback" not in text


def test_a_missing_ray_is_bad_input(tmp_path):
    code, text = exit_of(tmp_path, "--executor", "ray", blocked="ray")
    assert code == 2
    assert "pip install 'sieve-sizing[ray]'" in text
    assert "Traceback" not in text
