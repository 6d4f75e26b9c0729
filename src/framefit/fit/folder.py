"""The folder of a fit: a workload that runs from there, and the record of how it came about."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import msgspec

from framefit.core.files import read_record, to_toml, write_record, write_whole
from framefit.core.fit_results import PLAN_AFTER, PLAN_BEFORE, FitResult, FittedModel
from framefit.core.target import absolute_target, names_file
from framefit.core.timetable import Timetable
from framefit.core.workload import Workload, address_scheme, load_workload, names_function
from framefit.errors import InputError
from framefit.planning.plan import Plan
from framefit.training.campaign import SearchFolder

_APP = "app.toml"


class FitFolder(SearchFolder):
    """All that is new: ``app.toml``, ``models/``, ``steps/``, ``measured.table.json``, plans, ``fit.json``."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.resolve(), "fit")

    @property
    def steps(self) -> Path:
        """A folder for each step."""
        return self.path / "steps"

    @property
    def table(self) -> Path:
        """What layers took in the verifications."""
        return self.path / "measured.table.json"

    def step(self, number: int, key: str) -> Path:
        """The folder of a step; of one that was interrupted it is there already.

        Raises:
            InputError: it cannot be made.
        """
        folder = self.steps / f"{number:02d}-{slug(key)}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot be made: {error.strerror}", where=folder, remedy="check the folder") from error
        return folder

    def earlier(self) -> tuple[FitResult, Workload]:
        """Of a fit that is to go on: its record with absolute paths, and the workload as it left that.

        Raises:
            InputError: it is no such folder.
        """
        self.check_begun()
        result = read_record(self.mark, FitResult)
        models = tuple(self._moved(model, lambda path: str(self.path / path)) for model in result.models)
        return msgspec.structs.replace(result, models=models), load_workload(self.path / _APP)

    def adopt(self, fitted: FittedModel) -> FittedModel:
        """A new version of a model, put where the workload finds it."""
        path = self.path / "models" / f"{quote(fitted.name, safe=' ')}.onnx"  # a name may hold what no file's may
        path.parent.mkdir(exist_ok=True)
        with write_whole(path, force=True) as file:
            file.write(Path(fitted.path).read_bytes())
        return msgspec.structs.replace(fitted, path=str(path))

    def write_before(self, timetable: Timetable) -> None:
        """The plan of the workload as it was given."""
        write_record(self.path / PLAN_BEFORE, timetable, force=True)

    def write(self, result: FitResult, planned: Plan, app: Path) -> FitResult:
        """The workload as it stands with its plan, and the record; all of them whole.

        Returns:
            The record as it was written.
        """
        write_workload(self.path, planned.workload, app)
        write_record(self.path / PLAN_AFTER, planned.timetable, force=True)
        models = tuple(self._moved(model, self.name_of) for model in result.models)
        stored = msgspec.structs.replace(result, models=models)
        write_record(self.mark, stored, force=True)
        return stored

    def name_of(self, path: str | Path) -> str:
        """A path as files of the folder name it: relative where it lies in it."""
        path = Path(path)
        return path.relative_to(self.path).as_posix() if path.is_relative_to(self.path) else str(path)

    @staticmethod
    def _moved(model: FittedModel, to: Callable[[str], str]) -> FittedModel:
        return msgspec.structs.replace(
            model, original=to(model.original), float_path=to(model.float_path), path=to(model.path)
        )


def write_workload(folder: Path, workload: Workload, app: Path) -> Path:
    """Write a workload with what its functions are in; they may move together with what it names.

    Args:
        folder: gets ``app.toml`` and the functions' files.
        workload: with absolute paths.
        app: the file that it came from.

    Returns:
        Its path.
    """
    for module in _modules(workload, app.resolve().parent):
        if module.is_dir():
            shutil.copytree(module, folder / module.name, dirs_exist_ok=True)
        else:
            shutil.copyfile(module, folder / module.name)
    path = folder / _APP
    with write_whole(path, force=True) as file:
        file.write(to_toml(_relative(workload, folder)).encode())
    return path


def _relative(workload: Workload, folder: Path) -> Workload:
    """With paths relative to a folder."""

    def near(path: str) -> str:
        return Path(os.path.relpath(path, folder)).as_posix()

    models = tuple(msgspec.structs.replace(m, path=near(m.path)) for m in workload.models)
    streams = tuple(msgspec.structs.replace(s, source=near(s.source)) if s.is_file else s for s in workload.streams)
    outputs = tuple(msgspec.structs.replace(o, sink=near(o.sink)) if o.is_file else o for o in workload.outputs)
    table = workload.table
    return msgspec.structs.replace(
        workload,
        target=near(workload.target) if names_file(workload.target) else workload.target,
        table=table if table is None or address_scheme(table) else near(table),
        models=models,
        streams=streams,
        outputs=outputs,
    )


def slug(text: str) -> str:
    """Text as the name of a folder."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")[:60]


def located(workload: Workload, folder: Path) -> Workload:
    """A workload whose target is a name or an absolute path.

    Raises:
        InputError: no such target.
    """
    return msgspec.structs.replace(workload, target=absolute_target(workload.target, folder))


def _modules(workload: Workload, folder: Path) -> list[Path]:
    """Files and packages beside the app that its functions are in."""
    specs = [stream.source for stream in workload.streams] + [output.sink for output in workload.outputs]
    specs += [model.postprocess for model in workload.models if model.postprocess is not None]
    roots = dict.fromkeys(spec.partition(":")[0].partition(".")[0] for spec in specs if names_function(spec))
    places = [place for root in roots for place in (folder / f"{root}.py", folder / root)]
    return [place for place in places if place.is_file() or (place / "__init__.py").is_file()]
