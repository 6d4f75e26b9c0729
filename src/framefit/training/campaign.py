"""A search in a folder: its settings, its results so far, and their costs.

``framefit sparsify``, ``treeify`` and ``fit`` are such campaigns. Each may be interrupted at any point: its settings
and everything that took long are stored in its folder, so that ``--resume`` continues where it stopped and ends with
the result of an uninterrupted search.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from msgspec.structs import asdict

from framefit.core.files import Record, check_folder, read_record, write_record
from framefit.core.settings import Notify
from framefit.core.sparsity import Spent
from framefit.errors import InputError

__all__ = [
    "Campaign",
    "KeptRecords",
    "Ledger",
    "SearchFolder",
    "earlier_settings",
    "objects_of",
    "path_of",
]


S = TypeVar("S", bound=Record)
R = TypeVar("R", bound=Record)


class SearchFolder:
    """The folder of a search, which a file with the verb's name marks.

    Args:
        path: of the folder.
        verb: name of the verb: "sparsify" stores ``sparsify.json``.
    """

    def __init__(self, path: str | Path, verb: str) -> None:
        self.path, self.mark = Path(path), Path(path) / f"{verb}.json"
        self._verb = f"framefit {verb}"

    @classmethod
    def of(cls, verb: str, ending: str, model: Any, *, resume: str | Path | None, output: str | Path | None) -> Self:
        """Choose the folder of a search for one model.

        Args:
            verb: name of the verb.
            ending: end of the default name, behind the model's.
            model: as the user gave it.
            resume: a folder of an earlier search.
            output: the folder that the user chose.

        Raises:
            InputError: ``resume`` is not a folder of this verb.
        """
        if resume is not None:
            folder = cls(resume, verb)
            folder.check_begun()
            return folder
        name = Path(model).stem if isinstance(model, str | Path) else getattr(model, "name", "network")
        return cls(output or f"{str(name).replace(':', '-')}{ending}", verb)

    def check_begun(self) -> None:
        """Refuse a folder in which no search of this verb has begun.

        Raises:
            InputError: it is not such a folder.
        """
        if not self.mark.is_file():
            raise InputError(
                f"is not a folder of {self._verb}", where=self.path, remedy=f"give the folder that {self._verb} wrote"
            )

    def check_free(self, *, force: bool) -> None:
        """Refuse to overwrite files without ``force``, or files of another kind.

        Raises:
            InputError: the folder must not be replaced.
        """
        check_folder(self.path.resolve(), self.mark.name, f"a folder of {self._verb}", force=force)

    def clear(self) -> None:
        """Make the folder anew, and empty.

        Raises:
            InputError: it cannot be made.
        """
        shutil.rmtree(self.path, ignore_errors=True)
        try:
            self.path.mkdir(parents=True)
        except OSError as error:
            raise InputError(f"cannot be made: {error.strerror}", where=self.path, remedy="choose another") from error


def earlier_settings(verb: str, kind: type[Record]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Make the function that reads the settings of the search that ``resume`` names.

    Args:
        verb: name of the verb of the folder; for the use see :func:`framefit.core.settings.verb`.
        kind: type of its settings.
    """

    def read(given: Mapping[str, Any]) -> dict[str, Any]:
        if given.get("resume") is None:
            return {}
        folder = SearchFolder(given["resume"], verb)
        folder.check_begun()
        return asdict(read_record(folder.mark, kind))

    return read


def path_of(given: Any) -> str:
    """Return a path as text; an object is not stored, so "" for it."""
    return given if isinstance(given, str) else ""


def objects_of(model: Any, data: Any) -> tuple[Any, Any]:
    """Return the model and data that were given as objects; ``None`` for each that was given as a path.

    Raises:
        InputError: neither was given: a search with objects needs them again when it is resumed.
    """
    missing = [name for name, given in (("MODEL", model), ("--data", data)) if isinstance(given, str) and not given]
    if missing:
        raise InputError(f"{' and '.join(missing)} missing", remedy="give the same objects to resume their search")
    model, data = (None if isinstance(given, str) else given for given in (model, data))
    return model, data


@dataclass
class Ledger:
    """Counts images forwarded, evaluations and seconds.

    Args:
        clock: gives seconds, which only increase.
        images_forwarded: number of images that went through the network.
        evaluations: number of evaluations of an assignment.
        earlier_s: seconds of the runs before a resumption.
    """

    clock: Callable[[], float] = time.monotonic
    images_forwarded: int = 0
    evaluations: int = 0
    earlier_s: float = 0.0
    _start_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._start_s = self.clock()

    @property
    def running_s(self) -> float:
        """Seconds since the ledger was made."""
        return self.clock() - self._start_s

    @property
    def seconds(self) -> float:
        """Seconds since the ledger was made, and of earlier runs."""
        return self.earlier_s + self.running_s

    def forwarded(self, images: int, *, evaluations: int = 0) -> None:
        """Count images that went through the network."""
        self.images_forwarded += images
        self.evaluations += evaluations

    def catch_up(self, earlier: Spent) -> None:
        """Raise the counts to at least those of an earlier run: looked-up results count as they did then."""
        self.images_forwarded = max(self.images_forwarded, earlier.images_forwarded)
        self.evaluations = max(self.evaluations, earlier.evaluations)
        self.earlier_s += max(earlier.seconds - self.seconds, 0.0)

    def spent(self) -> Spent:
        """Convert to a record."""
        return Spent(
            images_forwarded=self.images_forwarded, seconds=round(self.seconds, 3), evaluations=self.evaluations
        )


class KeptRecords:
    """Records that took long to compute, one file each; stored ones are not computed again.

    Args:
        folder: of the files; whatever they depend on beside their names must not change while it exists.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, key: str, kind: type[R], find: Callable[[], R]) -> R:
        """Return the record that is stored under this key, or compute and store it."""
        record = self.stored(key, kind)
        if record is None:
            record = find()
            self.store(key, record)
        return record

    def stored(self, key: str, kind: type[R]) -> R | None:
        """Return the record that is stored under this key; ``None``: there is none."""
        path = self._folder / f"{key}.json"
        return read_record(path, kind) if path.exists() else None

    def store(self, key: str, record: Record) -> None:
        """Store a record under a key."""
        write_record(self._folder / f"{key}.json", record)


class Campaign(Generic[S]):
    """A search in its folder.

    Args:
        place: the folder.
        settings: the user's options.
        notify: receives messages on the progress.
        earlier_s: seconds of the runs before a resumption.
    """

    def __init__(self, place: SearchFolder, settings: S, notify: Notify, *, earlier_s: float = 0.0) -> None:
        self.place, self.settings, self.notify = place, settings, notify
        self.folder, self.ledger = place.path, Ledger(earlier_s=earlier_s)

    def begin(self, *, keep: bool) -> None:
        """Write the settings, once nothing more can be refused.

        Args:
            keep: whether the contents of the folder are kept, to continue the search; otherwise it is emptied.
        """
        if not keep:
            self.place.clear()
        write_record(self.place.mark, self.settings, force=True)
