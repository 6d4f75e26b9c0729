"""Tasks in processes: the same results as here, whatever happens to a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from framefit.core.executor import Executor, Here, executor_of
from framefit.errors import InputError
from framefit.fit.settings import ChooseSettings


class Ground:
    """What tasks share; counts how often it is sent."""

    def __init__(self, seed: int) -> None:
        self.seed, self.sent = seed, 0

    def __getstate__(self) -> dict[str, int]:
        self.sent += 1
        return self.__dict__


def of_ground(shared: Ground, task: int) -> int:
    """A number that depends on both."""
    return shared.seed + task


@pytest.fixture(scope="module")
def two() -> Iterator[Executor]:
    """Two processes, for all of these tests."""
    with executor_of(2) as executor:
        yield executor


def drawn(shared: int, task: int) -> tuple[int, float]:
    """A number that depends on both."""
    return task, float(np.random.default_rng((shared, task)).random())


def killed(mark: Path, task: int) -> int:
    """Die in task 2, once."""
    if task == 2 and not mark.exists():
        mark.write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    return task * task


def slow(mark: Path, task: int) -> int:
    """Take very long in task 1, the first time."""
    if task == 1 and not mark.exists():
        mark.write_text("")
        time.sleep(60)
    return task + 1


def refused(_: None, task: int) -> int:
    """An error of an engine in task 1."""
    if task == 1:
        raise InputError("no such layer", where="net.onnx", remedy="give another")
    return task


def process(_: None, task: int) -> int:
    """Which process it is."""
    return os.getpid()


def test_processes_give_what_one_gives(two: Executor) -> None:
    """In any order, each with its number."""
    here, there = (dict(executor.each(drawn, 7, range(9))) for executor in (Here(), two))
    assert here == there
    assert list(here) == list(range(9))
    assert two.workers == 2
    assert list(two.each(drawn, 7, [])) == []
    assert os.getpid() not in dict(two.each(process, None, range(4))).values()


def test_what_is_shared_is_sent_once(two: Executor) -> None:
    """However often tasks need it, unless they need something else in between; also while others are being done."""
    one, other = Ground(10), Ground(20)
    for _ in range(3):
        assert dict(two.each(of_ground, one, [1, 2])) == {0: 11, 1: 12}
    assert one.sent == 1
    begun = two.each(of_ground, one, range(6))
    first = next(begun)
    assert dict(two.each(of_ground, other, [1, 2])) == {0: 21, 1: 22}
    assert dict([first, *begun]) == {number: 10 + number for number in range(6)}
    assert dict(two.each(of_ground, one, [3])) == {0: 13}
    assert (one.sent, other.sent) == (2, 1)


def test_a_process_that_dies_costs_time_only(tmp_path: Path) -> None:
    """Its task, and those of others that ended with it, are done again."""
    with executor_of(2) as executor:
        assert dict(executor.each(killed, tmp_path / "mark", range(5))) == {n: n * n for n in range(5)}
    assert (tmp_path / "mark").exists()


def test_a_slow_process_does_not_hold_up_the_rest(tmp_path: Path) -> None:
    """What takes three times as long as others is given out once more, and the first result counts."""
    begun = time.monotonic()
    with executor_of(2) as executor:
        assert dict(executor.each(slow, tmp_path / "mark", range(4))) == {n: n + 1 for n in range(4)}
    assert time.monotonic() - begun < 30


def test_an_error_arrives_as_it_is(two: Executor) -> None:
    """With place and remedy."""
    with pytest.raises(InputError, match="no such layer") as error:
        dict(two.each(refused, None, range(3)))
    assert (error.value.where, error.value.remedy) == ("net.onnx", "give another")
    assert dict(two.each(refused, None, [0])) == {0: 0}


def test_what_is_closed_begins_no_more(two: Executor) -> None:
    """And the executor can be used again."""
    results = two.each(drawn, 7, range(1000))
    next(results)
    results.close()
    assert dict(two.each(drawn, 7, range(2))) == dict(Here().each(drawn, 7, range(2)))


def test_processes_end_with_the_one_that_began_them() -> None:
    """Also where that is killed."""
    program = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[1]); from test_executor import process\n"
        "from framefit.core.executor import executor_of\n"
        "if __name__ == '__main__':\n"
        "    with executor_of(2) as executor:\n"
        "        print(*dict(executor.each(process, None, range(4))).values(), flush=True)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", program, str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}/exe").exists() for pid in done.stdout.split()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [pid for pid in done.stdout.split() if Path(f"/proc/{pid}/exe").exists()]


@pytest.mark.parametrize("workers", ["none", "0", "-1", "http://ray", ""])
def test_what_names_no_executor_is_refused(workers: str) -> None:
    """With what can be given."""
    with pytest.raises(ValueError, match="give a number of processes, ray, or ray://HOST:PORT"):
        ChooseSettings(workers=workers)


def test_ray_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the extra that installs it."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match="Ray is not installed") as error, executor_of("ray"):
        pass
    assert error.value.remedy == "pip install 'framefit[fleet]'"


@pytest.mark.slow
def test_ray_gives_what_one_process_gives(tmp_path: Path) -> None:
    """On two nodes, of which one dies in the middle."""
    ray = pytest.importorskip("ray", reason="the extra 'fleet' is not installed")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    node = cluster.add_node(num_cpus=1)
    try:
        ray.init(
            address=cluster.address,
            log_to_driver=False,
            runtime_env={"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}},
        )
        with executor_of("ray") as executor:
            results = executor.each(drawn, 7, range(40))
            there = dict([next(results)])
            cluster.remove_node(node)
            there |= dict(results)
            assert there == dict(Here().each(drawn, 7, range(40)))
            with pytest.raises(InputError, match="no such layer"):
                dict(executor.each(refused, None, range(3)))
    finally:
        ray.shutdown()
        cluster.shutdown()
