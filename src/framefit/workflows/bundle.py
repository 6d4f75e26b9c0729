"""``framefit bundle``: everything that a device needs to run a plan, in one folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import msgspec

from framefit.core.bundle import MANIFEST, Bundle, digest_of, write_sums
from framefit.core.files import check_folder, read_record, write_record, write_whole_folder
from framefit.core.settings import Notify, silent, verb
from framefit.core.target import absolute_target
from framefit.core.timetable import Timetable
from framefit.core.trees import tree_layers
from framefit.core.workload import Workload
from framefit.devices.host import flushed_denormals, format_cores, pinned
from framefit.devices.ort import settings_of
from framefit.errors import InputError, UnsupportedError
from framefit.execution.bundled import bundled_model
from framefit.planning.plan import Plan
from framefit.workflows.plan import names_plan, plan, read_plan, ready, write_timetables
from framefit.workflows.settings import BundleSettings

__all__ = ["bundle"]

_WHAT = "a bundle"
_DEAD_S = 10  # least time for the watchdog: a machine that stalls for seconds is no reason to restart


@verb(BundleSettings, "app")
def bundle(settings: BundleSettings, *, notify: Notify = silent) -> Bundle:
    """Put a plan, its segments, a test of each model and the user's modules into a folder for a device.

    The folder holds ``bundle.json``, the timetables, ``models/NAME/`` with segments as ONNX files and a test, Python
    modules of the app's folder, a unit for systemd, and ``SHA256SUMS``. ``framefit-runtime`` checks and runs it; it
    needs neither ONNX nor the planner. Models run by ONNX Runtime alone there, so they are planned without kernels.

    Args:
        settings: what to put where.
        notify: receives what is being done.

    Raises:
        InputError: see :func:`framefit.plan`; the plan uses kernels, the target is not this machine's ONNX Runtime,
            or a folder exists.
        InfeasibleError: the plan does not fit.
        DeviceError: a model does not run.

    Example:
        >>> framefit.bundle("app.toml", output="doors.bundle").models[0].name  # doctest: +SKIP
        'face'
    """
    folder = Path(settings.output)
    check_folder(folder, MANIFEST, _WHAT, force=settings.force)
    if names_plan(settings.app):
        if settings.target is not None:
            raise InputError(
                "a stored plan has its target", where=settings.app, remedy="leave --target out, or plan again"
            )
        planned = read_plan(settings.app, notify)
    else:
        planned = plan(settings.app, target=settings.target, kernels="never", notify=notify)
    _check(planned)
    planned = ready(planned, notify)
    opened = planned.opened()
    notify(f"writing {folder}")
    device, workload, app = planned.device, planned.workload, planned.app.resolve()
    where = None if workload.target == "cpu" else app
    with write_whole_folder(folder, MANIFEST, _WHAT, force=settings.force) as part:
        with pinned(device.host_core), flushed_denormals():
            models = tuple(bundled_model(model, part) for model in opened.models)
        _write_plan(planned, part)
        for module in _modules(app.parent, folder.resolve()):
            place = part / module.relative_to(app.parent)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(module, place)
        made = Bundle(
            name=folder.stem,
            framefit=metadata.version("framefit"),
            onnxruntime=metadata.version("onnxruntime"),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            target=device.target,
            settings=settings_of(device.target, workload.machine, where),
            quantile=workload.schedule.quantile,
            parents={path.name: digest_of(path) for path in [app, *(Path(one.path) for one in workload.models)]},
            models=models,
        )
        write_record(part / MANIFEST, made)
        (part / "framefit.service").write_text(_unit_file(made, planned))
        if settings.docker:
            (part / "Dockerfile").write_text(_DOCKER.format(name=made.name, version=made.onnxruntime))
        write_sums(part)
    return made


def _write_plan(planned: Plan, part: Path) -> None:
    """Timetables, and the files that streams read; no path of this machine stands in them."""
    write_timetables(planned, part)
    copied = {
        stream.name: _copied(Path(stream.source), part / "streams" / stream.name)
        for stream in planned.workload.streams
        if stream.is_file
    }
    target = planned.workload.target
    if target != "cpu":
        shutil.copyfile(absolute_target(target, planned.app.resolve().parent), part / "target.toml")
    for path in part.glob("timetable*.json"):
        timetable = read_record(path, Timetable)
        source, ladder = timetable.source, timetable.ladder
        if source is not None:
            workload = _portable(source.workload, copied)
            timetable = msgspec.structs.replace(
                timetable, source=msgspec.structs.replace(source, app="app.toml", workload=workload)
            )
        if ladder is not None:
            rungs = tuple(
                msgspec.structs.replace(rung, workload=_portable(rung.workload, copied)) for rung in ladder.rungs
            )
            timetable = msgspec.structs.replace(timetable, ladder=msgspec.structs.replace(ladder, rungs=rungs))
        write_record(path, timetable, force=True)


def _copied(source: Path, folder: Path) -> str:
    """Copy a file or folder that a stream reads; its place below the bundle."""
    folder.mkdir(parents=True)
    if source.is_dir():
        shutil.copytree(source, folder / source.name)
    else:
        shutil.copyfile(source, folder / source.name)
    return f"streams/{folder.name}/{source.name}"


def _portable(workload: Workload, copied: Mapping[str, str]) -> Workload:
    """A workload whose files are in the bundle; of models only their names are left."""
    replace = msgspec.structs.replace
    return replace(
        workload,
        target=workload.target if workload.target == "cpu" else "target.toml",
        table=None,
        models=tuple(replace(model, path=Path(model.path).name) for model in workload.models),
        streams=tuple(replace(one, source=copied.get(one.name, one.source)) for one in workload.streams),
        outputs=tuple(replace(one, sink=Path(one.sink).name) if one.is_file else one for one in workload.outputs),
    )


def _check(planned: Plan) -> None:
    """Refuse what a board without Framefit's kernels could not run as planned."""
    kind, workload = planned.device.target.kind, planned.workload
    if kind != "ort":
        raise UnsupportedError(
            f"target {planned.device.target.name!r} is of kind {kind!r}; bundles are for ONNX Runtime on processors",
            where=planned.app,
            remedy="plan for the processor of the board (--on BOARD, --target cpu)",
        )
    if workload.machine.device.custom_ops:
        raise UnsupportedError(
            "libraries of custom operators are not put into bundles", where=planned.app, remedy="leave custom_ops out"
        )
    for wired in planned.wired:
        model = wired.model
        where = f"model {wired.entry.name!r}"
        if model.notes and tree_layers(model):
            raise UnsupportedError(
                "groups of trees run by kernels that are not on the board",
                where=where,
                remedy="bundle it without trees",
            )
        zeros = any(ratio > 0 for ratio in model.weight_zeros())
        int8 = any(node.op in ("QuantizeLinear", "DequantizeLinear") for nodes in model.nodes for node in nodes)
        if workload.kernels != "never" and (zeros or int8):
            raise InputError(
                "the plan may use kernels for zeros or int8, which are not on the board",
                where=where,
                remedy="plan without them: framefit plan --kernels never",
            )


def _modules(folder: Path, but: Path) -> Iterator[Path]:
    """Python modules of an app's folder, and of packages in it."""
    yield from sorted(folder.glob("*.py"))
    for package in sorted(folder.iterdir()):
        if (package / "__init__.py").is_file() and package.resolve() != but:
            yield from sorted(path for path in package.rglob("*.py") if "__pycache__" not in path.parts)


def _unit_file(made: Bundle, planned: Plan) -> str:
    """A service that starts the bundle at boot, and anew where it dies or hangs."""
    cores = {unit.core for unit in made.target.units} | {core for unit in made.settings.units for core in unit.cores}
    dead_s = max(_DEAD_S, round(20 * planned.workload.window_ns / 1e9))
    return _UNIT.format(name=made.name, cores=format_cores(cores), dead_s=dead_s)


_UNIT = """\
# Copy the bundle to /opt/framefit/{name}.bundle, a Python with framefit-runtime to /opt/framefit/venv, and this file to
# /etc/systemd/system; then: systemctl enable --now framefit.service
[Unit]
Description=Framefit: the models of {name} in every frame
After=multi-user.target

[Service]
Type=notify
NotifyAccess=main
ExecStart=/opt/framefit/venv/bin/framefit-runtime run /opt/framefit/{name}.bundle -o /var/lib/framefit
WatchdogSec={dead_s}
Restart=always
RestartSec=1
LimitRTPRIO=99
AllowedCPUs={cores}
StateDirectory=framefit
CacheDirectory=framefit
Environment=FRAMEFIT_CACHE=/var/cache/framefit PYTHONDONTWRITEBYTECODE=1

[Install]
WantedBy=multi-user.target
"""
_DOCKER = """\
# docker build -t {name} . && docker run --cap-add=SYS_NICE {name}; put the wheel framefit_runtime-*.whl beside it first
FROM python:3.12-slim
COPY framefit_runtime-*.whl /tmp/
RUN pip install --no-cache-dir /tmp/framefit_runtime-*.whl onnxruntime=={version}
COPY . /opt/{name}.bundle
RUN rm -f /opt/{name}.bundle/framefit_runtime-*.whl
CMD ["framefit-runtime", "run", "/opt/{name}.bundle", "-o", "/var/lib/framefit"]
"""
