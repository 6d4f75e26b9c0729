"""``framefit-runtime``: checks and runs a bundle on the device that it was made for; it neither plans nor measures.

It needs numpy, msgspec and a runtime. Records take bounded space: a line a minute (``health.jsonl``), and one file
before it. Where systemd starts it, it says when it is ready, and tells the watchdog as long as windows begin on all
units (sd_notify(3)).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from framefit.core.bundle import Bundle, read_bundle
from framefit.core.journal import Data, Journal, JournalFile
from framefit.devices.device import Device
from framefit.devices.host import available_cores, flushed_denormals, format_cores, isolated_cores, pinned
from framefit.devices.ort import OrtDevice
from framefit.errors import DeviceError, FramefitError, InputError
from framefit.execution.bundled import read_test, test_difference, wired_again
from framefit.execution.compiled import Compiler, Launch, OpenTimetable, open_timetable
from framefit.runtime.exporter import exported
from framefit.runtime.log import FrameLog, FrameOutcome
from framefit.runtime.session import MeasuredRun, Session

if TYPE_CHECKING:
    from framefit.core.timetable import Timetable
    from framefit.devices.measure import Measurement
    from framefit.runtime.units import UnitGroup

_TOLERANCE = 1e-4  # relative, of outputs: other instructions round otherwise
_ENDLESS = 1 << 40  # windows
_LOOK_S = 0.25
_LINE_S = 60.0
_TEXTS = 4  # of errors in a line
_MOST_BYTES = 1 << 20  # of records, twice


@dataclass(frozen=True)
class OpenBundle:
    """A bundle whose models are bound to the device here.

    Attributes:
        bundle: its manifest.
        opened: what a session runs.
    """

    folder: Path
    bundle: Bundle
    opened: OpenTimetable


class _Unmeasured:
    """Durations of launches that nobody measures."""

    def around(self, launches: Sequence[Launch]) -> list[Measurement]:
        """Refused."""
        raise DeviceError(f"{len(launches)} launches are not measured here")

    def wake_ups(self) -> tuple[int, ...]:
        """None."""
        return (0,)


def open_bundle(folder: Path, *, anyway: bool = False, output: Path | None = None) -> OpenBundle:
    """Check a bundle, and bind its models to the device here.

    Args:
        folder: of the bundle.
        anyway: on another device, too.
        output: folder of files that sinks write; default: the bundle's.

    Raises:
        InputError: a byte has changed, the device is another one, or a function does not exist.
        DeviceError: a segment cannot be compiled.
    """
    bundle, timetable, workload = read_bundle(folder)
    _check_cores({unit.core for unit in bundle.target.units if unit.name in timetable.units}, folder)
    device = OrtDevice(bundle.settings)
    if not anyway:
        _check_device(timetable, device, folder)
    _check_processor(bundle, timetable, folder)
    sinks = Path() if output is None else output.resolve()
    outputs = tuple(
        msgspec.structs.replace(one, sink=str(sinks / Path(one.sink).name)) if one.is_file else one
        for one in workload.outputs
    )
    workload = msgspec.structs.replace(workload, outputs=outputs)
    timetable = msgspec.structs.replace(timetable, source=None)
    app = folder.resolve() / "app.toml"
    wired = [wired_again(model, workload, folder.resolve()) for model in bundle.models]
    models = open_timetable(timetable, wired, workload, app, Compiler(device))
    opened = OpenTimetable(app, workload, timetable, device, _Unmeasured(), models)
    return OpenBundle(folder, bundle, opened)


def _check_cores(cores: Collection[int], folder: Path) -> None:
    """Refuse a device, or a process, without the cores that the plan has models on."""
    permitted = sorted({*available_cores(), *isolated_cores()})
    missing = sorted(set(cores).difference(permitted))
    if missing:
        raise InputError(
            f"its models run on core {format_cores(missing)}, and this process may run on "
            f"{format_cores(permitted)} only",
            where=folder,
            remedy="let it run there (taskset, AllowedCPUs), or make a bundle on a device of this kind",
        )


def _check_processor(bundle: Bundle, timetable: Timetable, folder: Path) -> None:
    """Refuse segments that a runtime has optimised for processors of another kind: their operators do not exist here.

    Models that were not cut run anywhere.
    """
    assert timetable.source is not None
    there, here = timetable.source.device.get("machine"), platform.machine()
    cut = [model.name for model in bundle.models if any(part.lowered for part in model.parts)]
    if cut and there != here:
        raise InputError(
            f"segments of {', '.join(cut)} were optimised for {there}, and this is {here}",
            where=folder,
            remedy="make the bundle on a device of this kind (framefit bundle --on)",
        )


def _check_device(timetable: Timetable, device: Device, folder: Path) -> None:
    """Refuse a device whose facts differ from those of the plan."""
    assert timetable.source is not None
    wanted = timetable.source.device
    facts = {name: value for name, value in device.fingerprint().items() if name != "clock"}
    other = [name for name in sorted({*facts, *wanted}) if facts.get(name) != wanted.get(name)]
    if other:
        named = "; ".join(f"{name}: {wanted.get(name)!r} there, {facts.get(name)!r} here" for name in other)
        raise InputError(
            f"was made for another device ({named})",
            where=folder,
            remedy="make a bundle on a device of this kind, or run it with --anyway: its promises do not hold then",
        )


def check(opened: OpenBundle) -> dict[str, float]:
    """Launch every model, and compare its outputs with the stored ones.

    Returns:
        Model -> greatest relative difference.

    Raises:
        DeviceError: a model does not run, or its outputs differ by more than 1e-4.
    """
    differences = {}
    with pinned(opened.opened.device.host_core), flushed_denormals():
        for stored, model in zip(opened.bundle.models, opened.opened.models, strict=True):
            test = read_test(opened.folder / stored.test)
            difference = max(test_difference(replica, test) for replica in model.replicas)
            if not difference <= _TOLERANCE:
                raise DeviceError(
                    f"outputs differ by {difference:.2g} (relative) from those in the bundle",
                    where=f"{opened.folder}: model {stored.name!r}",
                    remedy="check the runtime's version, and make the bundle again with it",
                )
            differences[stored.name] = difference
    return differences


class _CountedFile(JournalFile):
    """A file of a log that only counts rows, by given columns."""

    def __init__(self, journal: Journal, columns: Sequence[int], width: int) -> None:
        super().__init__(journal, None)
        self._columns, self._width = list(columns), width
        self.counts: Counter[tuple[int, ...]] = Counter()

    @property
    def named(self) -> bool:
        """Logs are handed over at once."""
        return True

    @property
    def failed(self) -> bool:
        """Rows cannot be read again."""
        return True

    def append(self, data: Data | Callable[[], Data]) -> None:
        """Count rows."""
        if self.observer is not None and not callable(data):
            self.observer(data)
        if self._columns and not callable(data):
            rows = np.frombuffer(data, np.int64).reshape(-1, self._width)[:, self._columns]
            self.counts.update(map(tuple, rows.tolist()))


class HealthJournal(Journal):
    """Instead of the logs of a run: how many frames had which fate, and whether windows begin.

    Args:
        models: names, by number.
        folder: of ``health.jsonl``; ``None``: nothing is written.
        watchdog_s: time within which systemd is to hear something; ``None``: it is not told.
        announce: tells systemd.
    """

    def __init__(
        self, models: Sequence[str], folder: Path | None, watchdog_s: float | None, announce: Callable[[str], None]
    ) -> None:
        super().__init__(None)
        self.group: UnitGroup | None = None
        self._models, self._place, self._watchdog_s, self._announce = models, folder, watchdog_s, announce
        self._counted: list[_CountedFile] = []
        self._over = threading.Event()
        self._watch: threading.Thread | None = None

    def file(self, name: str) -> JournalFile:
        """A log, or the file of a sink."""
        if name.startswith("sink-"):
            return super().file(name)
        of_frames = name.startswith("frames-")
        made = _CountedFile(
            self, [FrameLog.MODEL, FrameLog.OUTCOME] if of_frames else [], len(FrameLog.columns) if of_frames else 1
        )
        self._counted.append(made)
        self._files[name] = made
        return made

    def start(
        self,
        note: Callable[[], bytes],  # noqa: ARG002 - of a journal that can be resumed
        place: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        """Watch from now on."""
        self._announce("READY=1")
        self._watch = threading.Thread(target=self._work, args=(place,), name="framefit-health", daemon=True)
        self._watch.start()

    def stop(self) -> None:
        """Write the last line."""
        self._over.set()
        if self._watch is not None:
            self._watch.join()
            self._watch = None
            self._announce("STOPPING=1")

    def health(self) -> dict[str, object]:
        """Windows so far, frames of each model by their fate, and the latest errors."""
        counts: Counter[tuple[int, ...]] = Counter()
        for file in self._counted:
            counts.update(file.counts)
        frames = {
            name: {
                FrameOutcome(fate).name.lower(): count for (model, fate), count in sorted(counts.items()) if model == at
            }
            for at, name in enumerate(self._models)
        }
        windows = 0 if self.group is None else self.group.windows
        texts = [] if self.group is None else self.group.faults.texts[-_TEXTS:]
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return {"time": now, "windows": windows, "frames": frames, "errors": texts}

    def _work(self, place: Callable[[], contextlib.AbstractContextManager[object]]) -> None:
        written_s, told_s, seen = time.monotonic(), time.monotonic(), -1
        look_s = _LOOK_S if self._watchdog_s is None else min(_LOOK_S, self._watchdog_s / 8)
        with place():
            while not self._over.wait(look_s):
                now_s = time.monotonic()
                begun = 0 if self.group is None else self.group.begun_on_all
                if self._watchdog_s is not None and begun != seen and now_s - told_s > self._watchdog_s / 4:
                    self._announce("WATCHDOG=1")
                    told_s, seen = now_s, begun
                if now_s - written_s > _LINE_S:
                    self._write()
                    written_s = now_s

    def _write(self) -> None:
        """Append a line; a full disk costs lines, and no run."""
        if self._place is None:
            return
        path = self._place / "health.jsonl"
        with contextlib.suppress(OSError):
            if path.exists() and path.stat().st_size > _MOST_BYTES:
                path.replace(self._place / "health.1.jsonl")
            with path.open("a") as file:
                file.write(json.dumps(self.health()) + "\n")

    def close(self) -> None:
        """Write what was counted to the end."""
        self._write()


def run(
    opened: OpenBundle,
    *,
    windows: int | None = None,
    output: Path | None = None,
    metrics: str | None = None,
    stop: Callable[[], bool] = lambda: False,
    notify: Callable[[str], None] = lambda _: None,
) -> dict[str, object]:
    """Run a bundle, without an end where none is asked for.

    Args:
        opened: a bundle.
        windows: how many.
        output: folder of the records; ``None``: none are written.
        metrics: address for Prometheus, "host:port"; ``None``: there is none.
        stop: asked between launches.
        notify: receives what is being done.

    Returns:
        What :meth:`HealthJournal.health` has counted.

    Raises:
        FramefitError: the device, a stream or a sink failed.
    """
    names = [model.name for model in opened.bundle.models]
    microseconds = os.environ.get("WATCHDOG_USEC")
    watchdog_s = int(microseconds) / 1e6 if microseconds else None
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
    journal = HealthJournal(names, output, watchdog_s, tell_systemd)
    session = Session(opened.opened, seed=0, journal=journal)
    journal.group = session.group
    count = min([windows or _ENDLESS, *session.sources.lengths()])
    played = MeasuredRun(session, seed=0, force=True, measures=False, notify=notify)
    with played.processor(), exported(session, metrics):
        played.warm_up(count)
        notify("running" if windows is None else f"running {count} windows")
        played.play(count, stop=stop)
    played.close()
    journal.close()
    if played.failure is not None:
        raise played.failure
    return journal.health()


def tell_systemd(state: str) -> None:
    """Send a line to the service manager that started this process; without one, nothing happens."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(0)  # a manager that does not read holds nothing up
        sender.sendto(state.encode(), address)


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set."""
    over = threading.Event()
    before = {number: signal.signal(number, lambda *_: over.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield over
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    given = _parser().parse_args(arguments)
    folder, output = Path(given.bundle), None if given.command == "check" else Path(given.output)

    def say(text: str) -> None:
        if not given.json:
            print(text, file=sys.stderr, flush=True)  # noqa: T201 - the command line

    try:
        opened = open_bundle(folder, anyway=given.anyway, output=output)
        if given.command == "check":
            result: dict[str, object] = {"models": check(opened)}
            text = "\n".join(f"{name}: outputs as stored (difference {each:.1e})" for name, each in _items(result))
        else:
            windows = given.windows
            if given.seconds is not None:
                windows = max(round(given.seconds * opened.opened.workload.beat_hz), 1)
            with _stopped_by_signals() as over:
                result = run(
                    opened, windows=windows, output=output, metrics=given.metrics, stop=over.is_set, notify=say
                )
            text = json.dumps(result, indent=1)
    except FramefitError as error:
        if given.json:
            print(json.dumps({"error": type(error).__name__, "what": error.what, "where": error.where}))  # noqa: T201
        else:
            print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    print(json.dumps(result) if given.json else text)  # noqa: T201
    return 0


def _items(result: dict[str, object]) -> list[tuple[str, float]]:
    models = result["models"]
    assert isinstance(models, dict)
    return list(models.items())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="framefit-runtime", description="Check and run a bundle that framefit bundle has made."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("check", "Refuse a bundle that has changed or is for another device; launch every model once."),
        ("run", "Run a bundle until it is stopped, or for so many windows."),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("bundle", metavar="BUNDLE", help="folder of the bundle")
        command.add_argument("--anyway", action="store_true", help="on another device than it was made for")
        command.add_argument("--json", action="store_true", help="print the result as JSON")
    command.add_argument("-o", "--output", metavar="DIR", default="records", help="folder of the records")
    command.add_argument("--metrics", metavar="HOST:PORT", help="where Prometheus can read counts and response times")
    length = command.add_mutually_exclusive_group()
    length.add_argument("--windows", type=int, help="end after so many windows")
    length.add_argument("--seconds", type=float, help="end after so many seconds")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
