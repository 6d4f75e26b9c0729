"""Tries backends in processes of their own: one that crashes, hangs or fails when it is used must not do so here.

The process imports the backend, asks which devices it finds, opens one, and compiles and launches a network of one
layer there. It reports each step before it begins, so that a crash or a hang is named by its step.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from framefit.core.files import cache_folder
from framefit.core.run_record import BackendSummary, FoundDevice
from framefit.core.target import BackendEntry, Target, Unit
from framefit.core.workload import MachineSettings
from framefit.devices.device import BACKEND_API, Backend, allocate
from framefit.devices.host import available_cores, fingerprint
from framefit.errors import DeviceError, FramefitError, InputError

LIMIT_S = 120.0
"""For one step of a trial; drivers that compile their kernels first need a minute."""
LISTED_LIMIT_S = 20.0
"""For one step where all backends are only listed."""


def load_backend(entry: BackendEntry) -> Backend:
    """Import a backend.

    Raises:
        InputError: it cannot be imported, is no backend, or is made for another version of the protocol.
    """
    who, remedy = _named(entry), _upgrade(entry)
    module, _, attribute = entry.value.partition(":")
    try:
        backend = getattr(importlib.import_module(module), attribute)
    except FramefitError:
        raise
    except (Exception, SystemExit) as error:  # whatever a package does when it is imported
        raise InputError(f"{who} cannot be imported: {_reason(error)}", where=entry.value, remedy=remedy) from error
    if not isinstance(backend, Backend):
        what = f"{who} is a {type(backend).__name__}, and not a framefit.devices.Backend"
        raise InputError(what, where=entry.value, remedy=remedy)
    if backend.api != BACKEND_API:
        raise InputError(
            f"{who} is made for version {backend.api} of the device protocol, and this Framefit has {BACKEND_API}",
            where=entry.value,
            remedy=remedy if backend.api < BACKEND_API else "pip install --upgrade framefit",
        )
    return backend


def _named(entry: BackendEntry) -> str:
    return f"backend {entry.kind!r} of {entry.package} {entry.version}".rstrip()


def _upgrade(entry: BackendEntry) -> str:
    return f"upgrade or uninstall {entry.package}"


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


class _Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a child tries: one target, or the first of each device that the backend finds."""

    entry: BackendEntry
    paths: tuple[str, ...]
    target: Target | None = None
    where: str | None = None


class _Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a child: a step that begins, devices that it found, or an error."""

    begun: str = ""
    devices: tuple[FoundDevice, ...] | None = None
    failed: str = ""
    where: str | None = None
    remedy: str | None = None
    exit_code: int = 0  # of an error of Framefit's own
    done: bool = False


class _Outcome(msgspec.Struct, kw_only=True):
    """What became of a trial."""

    step: str = "starting Python"
    devices: tuple[FoundDevice, ...] = ()
    problem: str = ""
    error: _Step | None = None


def try_in_child() -> None:
    """Carry out the request on standard input; the main program of the child."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever libraries print

    def say(step: _Step) -> None:
        out.write(msgspec.json.encode(step) + b"\n")
        out.flush()

    request = msgspec.json.decode(sys.stdin.buffer.read(), type=_Request)
    sys.path[:] = request.paths
    try:
        say(_Step(begun="importing it"))
        backend = load_backend(request.entry)
        if request.target is None:
            say(_Step(begun="looking for devices"))
            devices = tuple(backend.find())
            say(_Step(devices=devices))
            kind, names = request.entry.kind, [device.name for device in devices]
            targets = [Target(name=name, kind=kind, units=(Unit(name=name, device=name),)) for name in names]
        else:
            targets = [request.target]
        for target in targets:
            where = None if request.where is None else Path(request.where)
            say(_Step(begun=f"opening {target.name}"))
            device = backend.open(target, MachineSettings(), where, computes=True)
            for unit in device.target.units:
                say(_Step(begun=f"compiling a network of one layer on {unit.name}"))
                model = backend.trial()
                handle = device.compile(model, unit.name, "trial")
                say(_Step(begun=f"running a network of one layer on {unit.name}"))
                device.submit(handle.bind({t.name: allocate(t) for t in (*model.inputs, *model.outputs)}))
        say(_Step(done=True))
    except FramefitError as error:
        say(_Step(failed=error.what, where=error.where, remedy=error.remedy, exit_code=error.exit_code))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a backend does
        say(_Step(failed=_reason(error)))


def _tried(requests: Sequence[_Request], limit_s: float) -> list[_Outcome | None]:
    """Try side by side, each step within a limit; ``None``: no process can be started here."""

    def tried(request: _Request) -> _Outcome | None:
        process = _started(request)
        return None if process is None else _followed(process, limit_s)

    with ThreadPoolExecutor(len(available_cores())) as pool:
        return list(pool.map(tried, requests))


def _started(request: _Request) -> subprocess.Popen[bytes] | None:
    command = [sys.executable, "-c", "from framefit.devices.trial import try_in_child; try_in_child()"]
    try:
        process = subprocess.Popen(  # noqa: S603 - this Python, with a fixed program
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    except OSError:  # an embedded Python, or one of another architecture
        return None
    assert process.stdin is not None
    with contextlib.suppress(OSError):  # it has ended at once, and that is seen by what it did not write
        process.stdin.write(msgspec.json.encode(request))
        process.stdin.close()
    return process


def _followed(process: subprocess.Popen[bytes], limit_s: float) -> _Outcome:
    """Read a child's steps until its end."""
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    stdout = process.stdout
    assert stdout is not None

    def read() -> None:
        for line in stdout:
            lines.put(line)
        lines.put(b"")

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    outcome = _Outcome()
    due_s = time.monotonic() + limit_s
    try:
        while True:
            line = lines.get(timeout=max(due_s - time.monotonic(), 0.001))
            if not line:
                outcome.problem = f"{_ended(process.wait())} while {outcome.step}"
                return outcome
            step = msgspec.json.decode(line, type=_Step)
            if step.begun:
                outcome.step, due_s = step.begun, time.monotonic() + limit_s
            elif step.devices is not None:
                outcome.devices = step.devices
            elif step.done:
                return outcome
            else:
                outcome.error, outcome.problem = step, step.failed
                return outcome
    except queue.Empty:
        outcome.problem = f"it did not end within {limit_s:g} s: {outcome.step}"
        return outcome
    finally:
        process.kill()
        process.wait()
        reader.join()
        stdout.close()


def _ended(code: int) -> str:
    """How a process ended that did not say so itself."""
    if code >= 0:
        return f"the process ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"the process crashed with {signal.Signals(-code).name}"
    return f"the process crashed with signal {-code}"


def examined(entries: Sequence[BackendEntry]) -> tuple[BackendSummary, ...]:
    """Try all devices that each of these backends finds, side by side."""
    taken: dict[str, BackendEntry] = {}
    for entry in entries:
        taken.setdefault(entry.kind, entry)
    firsts = list(taken.values())
    outcomes = _tried([_Request(entry=entry, paths=tuple(sys.path)) for entry in firsts], LISTED_LIMIT_S)
    by_kind = {entry.kind: outcome for entry, outcome in zip(firsts, outcomes, strict=True)}
    summaries = []
    for entry in entries:
        first = taken[entry.kind]
        outcome = by_kind[entry.kind] or _Outcome(problem="not tried: no process can be started here")
        problem, remedy = outcome.problem, None if outcome.error is None else outcome.error.remedy
        if first is not entry:
            problem, remedy = f"{first.package} has a backend of this name, too, which is used", _upgrade(entry)
        summaries.append(
            BackendSummary(
                kind=entry.kind,
                package=entry.package,
                version=entry.version,
                devices=() if first is not entry else outcome.devices,
                problem=problem,
                remedy=(remedy or _upgrade(entry)) if problem else None,
            )
        )
    return tuple(summaries)


def require_trial(entry: BackendEntry, target: Target, where: Path | None) -> None:
    """Try a target in a process of its own, unless the same one was tried here before.

    Errors that opening the target raises are left to opening it in this process.

    Raises:
        InputError: the backend crashes or hangs, or fails to run a network of one layer.
    """
    if entry.package == "framefit" and load_backend(entry).capabilities.modelled:
        return
    facts = msgspec.json.encode([entry, [(u.device, u.options) for u in target.units], fingerprint()], order="sorted")
    mark = cache_folder() / "trials" / hashlib.sha256(facts).hexdigest()[:16]
    if mark.is_file():
        return
    request = _Request(entry=entry, paths=tuple(sys.path), target=target, where=None if where is None else str(where))
    (outcome,) = _tried([request], LIMIT_S)
    if outcome is None:
        return
    if not outcome.problem:
        with contextlib.suppress(OSError):  # it only saves time
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
        return
    error = outcome.error
    if error is not None and error.exit_code == InputError.exit_code:
        return
    what = f"{_named(entry)} cannot be used for {target.name!r}: {outcome.problem}"
    if error is not None and error.exit_code == DeviceError.exit_code:
        raise InputError(what, where=error.where, remedy=error.remedy or "check the device and its driver")
    raise InputError(what, remedy=f"check the device and its driver, or {_upgrade(entry)}")
