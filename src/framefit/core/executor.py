"""Where independent tasks are done: in this process, in processes here, or on a Ray cluster (``--workers``).

A task is a function of a module with two arguments: what all tasks share, and the task. Both are sent to other
processes, so they are picklable, and nothing else may change the result: then any number of workers gives the same.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import itertools
import os
import pickle
import platform
import signal
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol, TypeVar

from framefit.errors import InputError, needs_extra

__all__ = ["Executor", "Here", "executor_of", "in_order"]

S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")
_ATTEMPTS = 3  # of a task whose process dies
_LATE, _LEAST_LATE_S = 3.0, 2.0  # times the median of the others: then it is given out once more
_POLL_S = 0.2


class Executor(Protocol):
    """Does tasks.

    Attributes:
        workers: how many are done at a time.
    """

    workers: int

    def each(self, work: Callable[[S, T], R], shared: S, tasks: Sequence[T]) -> Generator[tuple[int, R]]:
        """Results as they come, each with its task's number; what has not begun when the iterator is closed never does.

        Args:
            work: a function of a module, of ``shared`` and a task.
            shared: the same for all tasks. The same object is sent once, if nothing else was shared in between.
            tasks: independent of each other.

        Raises:
            Exception: what ``work`` raises.
        """


class Here:
    """In this process, one after the other."""

    workers = 1

    def each(self, work: Callable[[S, T], R], shared: S, tasks: Sequence[T]) -> Generator[tuple[int, R]]:
        """See :class:`Executor`."""
        for number, task in enumerate(tasks):
            yield number, work(shared, task)


def in_order(results: Iterator[tuple[int, R]]) -> Iterator[R]:
    """Results of an executor in the order of their tasks, each as soon as it and those before it are there."""
    known: dict[int, R] = {}
    following = 0
    for number, result in results:
        known[number] = result
        while following in known:
            yield known.pop(following)
            following += 1


@contextlib.contextmanager
def executor_of(workers: int | str) -> Iterator[Executor]:
    """The executor that an option names: a number of processes, "ray" (this machine's cluster), or "ray://HOST:PORT".

    Raises:
        InputError: Ray is not installed, does not answer, or has a node with other versions.
    """
    name = str(workers)
    if name == "1":
        yield Here()
        return
    spread: _Spread = _OnRay(name) if name.startswith("ray") else _Processes(int(name))
    try:
        yield spread
    finally:
        spread.close()


class _LostError(Exception):
    """The process of a task died."""


class _Spread(ABC):
    """Tasks on several workers; one that dies or is slow costs time only.

    Args:
        workers: how many tasks are done at a time.
        ahead: how many more are given out, so that no worker waits for one to reach it.
    """

    def __init__(self, workers: int, ahead: int = 0) -> None:
        self.workers, self._given_out = workers, workers + ahead
        self._latest: tuple[Any, Any] | None = None  # what was shared, and what stands for it
        self._needed: list[Any] = []  # by tasks that are being done

    @abstractmethod
    def close(self) -> None:
        """End all workers."""

    @abstractmethod
    def _share(self, value: Any) -> Any:
        """Make something known to all workers; what stands for it."""

    @abstractmethod
    def _forget(self, shared: Any) -> None:
        """It is not needed any more."""

    @abstractmethod
    def _start(self, work: Callable[..., Any], shared: Any, task: Any) -> Any:
        """Give a task out."""

    @abstractmethod
    def _ended(self, running: Sequence[Any]) -> Sequence[Any]:
        """Those that have ended, after a short wait."""

    @abstractmethod
    def _result(self, one: Any) -> Any:
        """What one gave.

        Raises:
            _LostError: its process died.
        """

    @abstractmethod
    def _cancel(self, one: Any) -> None:
        """Do not begin it."""

    def each(self, work: Callable[[S, T], R], shared: S, tasks: Sequence[T]) -> Generator[tuple[int, R]]:
        """See :class:`Executor`."""
        if not tasks:
            return
        place = self._place(shared)
        self._needed.append(place)
        waiting, running = deque(range(len(tasks))), dict[Any, tuple[int, float]]()
        done, lost = set[int](), Counter[int]()
        took: list[float] = []
        try:
            while len(done) < len(tasks):
                while len(running) < self._given_out and (number := self._next(waiting, running, took)) is not None:
                    if number in done:  # its copy has ended meanwhile
                        continue
                    if lost[number] >= _ATTEMPTS:  # what kills other processes may not kill this one, or it says why
                        done.add(number)
                        yield number, work(shared, tasks[number])
                    else:
                        running[self._start(work, place, tasks[number])] = number, time.monotonic()
                for one in self._ended(list(running)):
                    number, since = running.pop(one)
                    if number in done:
                        self._cancel(one)
                        continue
                    try:
                        result = self._result(one)
                    except _LostError:
                        lost[number] += 1
                        if number not in waiting:
                            waiting.appendleft(number)
                        continue
                    done.add(number)
                    took.append(time.monotonic() - since)
                    yield number, result
        finally:
            for one in running:
                self._cancel(one)
            self._needed.remove(place)
            self._forget_old(place)

    def _place(self, shared: Any) -> Any:
        """What stands for something that was or is now made known to all workers."""
        if self._latest is not None and self._latest[0] is shared:
            return self._latest[1]
        before, self._latest = self._latest, (shared, self._share(shared))
        if before is not None:
            self._forget_old(before[1])
        return self._latest[1]

    def _forget_old(self, place: Any) -> None:
        latest = self._latest
        if place not in self._needed and not (latest and latest[1] is place):
            self._forget(place)

    @staticmethod
    def _next(waiting: deque[int], running: dict[Any, tuple[int, float]], took: Sequence[float]) -> int | None:
        """The task to give out next: one that waits, or once more one that takes far longer than others did."""
        if waiting:
            return waiting.popleft()
        if not took or not running:
            return None
        copies = Counter(number for number, _ in running.values())
        number, since = min(running.values(), key=lambda one: one[1])
        late_s = max(_LATE * sorted(took)[len(took) // 2], _LEAST_LATE_S)
        return number if copies[number] == 1 and time.monotonic() - since > late_s else None


class _Processes(_Spread):
    """Processes of this machine."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self._folder = tempfile.TemporaryDirectory(prefix="framefit-")
        self._pool: ProcessPoolExecutor | None = None
        self._given_to: dict[Future[Any], ProcessPoolExecutor] = {}
        self._numbers = itertools.count()

    def close(self) -> None:
        """See :class:`_Spread`."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            for process in list((self._pool._processes or {}).values()):  # noqa: SLF001 - or it waits for late copies
                process.terminate()
        self._folder.cleanup()

    def _share(self, value: Any) -> Path:
        path = Path(self._folder.name, f"{next(self._numbers)}.pickle")
        path.write_bytes(pickle.dumps(value))
        return path

    def _forget(self, shared: Path) -> None:
        shared.unlink(missing_ok=True)

    def _start(self, work: Callable[..., Any], shared: Path, task: Any) -> Future[Any]:
        if self._pool is None:
            spawn = get_context("spawn")
            self._pool = ProcessPoolExecutor(self.workers, spawn, initializer=_begin, initargs=(os.getpid(),))
        try:
            given = self._pool.submit(_done, work, shared, task)
        except BrokenProcessPool as error:
            given = Future()
            given.set_exception(error)
        self._given_to[given] = self._pool
        return given

    def _ended(self, running: Sequence[Future[Any]]) -> Sequence[Future[Any]]:
        return list(wait(running, timeout=_POLL_S, return_when=FIRST_COMPLETED).done)

    def _result(self, one: Future[Any]) -> Any:
        pool = self._given_to.pop(one)
        try:
            return one.result()
        except BrokenProcessPool as error:
            if self._pool is pool:  # else there is a new one already
                self._pool = None
            raise _LostError from error

    def _cancel(self, one: Future[Any]) -> None:
        self._given_to.pop(one, None)
        one.cancel()


def _begin(parent: int) -> None:
    """In a new process: Ctrl-C is for its parent, with which it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@functools.lru_cache(maxsize=1)
def _read(shared: Path) -> Any:
    return pickle.loads(shared.read_bytes())  # noqa: S301 - this program's own


def _done(work: Callable[[Any, Any], R], shared: Path, task: Any) -> R:
    return work(_read(shared), task)


class _OnRay(_Spread):
    """A Ray cluster; it starts tasks anew whose process or node dies.

    Args:
        address: "ray": the cluster of this machine or of the environment's ``RAY_ADDRESS``, or else a new one; or
            "ray://HOST:PORT".

    Raises:
        InputError: Ray is not installed, does not answer, or has a node with other versions.
    """

    def __init__(self, address: str) -> None:
        with needs_extra("Ray", "fleet"):
            import ray  # large, and only needed here
        self._ray, self._began = ray, not ray.is_initialized()
        if self._began:
            try:
                ray.init(
                    None if address == "ray" else address,
                    include_dashboard=None if address != "ray" else False,
                    logging_level="ERROR",
                    log_to_driver=False,
                )
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise InputError(
                    f"Ray does not answer: {error}",
                    where=address,
                    remedy="start it (ray start --head), or name another",
                ) from error
        workers = max(int(ray.cluster_resources().get("CPU", 1)), 1)
        super().__init__(workers, ahead=workers)
        self._remote = ray.remote(num_cpus=1, max_retries=_ATTEMPTS)(_on_node)
        try:
            self._check_nodes()
        except BaseException:
            self.close()
            raise

    def _check_nodes(self) -> None:
        """Refuse nodes that would compute something else."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        ask, here = self._ray.remote(num_cpus=0, max_retries=0)(versions), versions()
        for node in self._ray.nodes():
            if not node["Alive"]:
                continue
            there_only = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            there = self._ray.get(ask.options(scheduling_strategy=there_only).remote())
            other = [
                f"{name} {there.get(name)} there, {here[name]} here" for name in here if there.get(name) != here[name]
            ]
            if other:
                raise InputError(
                    f"node {node['NodeManagerAddress']} has other versions: {'; '.join(other)}",
                    remedy="install the same on all nodes",
                )

    def close(self) -> None:
        """See :class:`_Spread`."""
        if self._began:
            self._ray.shutdown()

    def _share(self, value: Any) -> Any:
        return self._ray.put(value)

    def _forget(self, shared: Any) -> None:
        """Ray does, when nothing refers to it."""

    def _start(self, work: Callable[..., Any], shared: Any, task: Any) -> Any:
        return self._remote.remote(work, shared, task)

    def _ended(self, running: Sequence[Any]) -> Sequence[Any]:
        ended: Sequence[Any] = self._ray.wait(list(running), num_returns=1, timeout=_POLL_S)[0]
        return ended

    def _result(self, one: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(one)
        except errors.RayTaskError as error:
            raise error.cause from None
        except (
            errors.WorkerCrashedError,
            errors.NodeDiedError,
            errors.OutOfMemoryError,
            errors.ObjectLostError,
        ) as error:
            raise _LostError from error

    def _cancel(self, one: Any) -> None:
        self._ray.cancel(one, force=True)


def _on_node(work: Callable[[Any, Any], R], shared: Any, task: Any) -> R:
    return work(shared, task)


def versions() -> dict[str, str]:
    """What results depend on beside tasks and seeds."""
    known = {name: importlib.metadata.version(name) for name in ("framefit", "numpy")}
    return {"python": platform.python_version(), **known}
