"""A search with a folder of its own: what it was asked for, what it has found so far, and what that cost.

``framefit sparsify``, ``treeify`` and ``fit`` are such campaigns. Each may be interrupted at any point: its settings
and everything that took long lie in its folder, so that ``--resume`` goes on where it stopped and ends where it would
have ended without the break.
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
from framefit.stats import wilson

__all__ = [
    "VALIDATION_LEARNT",
    "Campaign",
    "KeptRecords",
    "Ledger",
    "SearchFolder",
    "earlier_settings",
    "objects_of",
    "path_of",
    "validation_was_learnt",
]


S = TypeVar("S", bound=Record)
R = TypeVar("R", bound=Record)


class SearchFolder:
    """Where a verb keeps a search; a file with the verb's name tells it from other folders.

    Args:
        path: of the folder.
        verb: whose it is: "sparsify" keeps ``sparsify.json``.
    """

    def __init__(self, path: str | Path, verb: str) -> None:
        self.path, self.mark = Path(path), Path(path) / f"{verb}.json"
        self._verb = f"framefit {verb}"

    @classmethod
    def of(cls, verb: str, ending: str, model: Any, *, resume: str | Path | None, output: str | Path | None) -> Self:
        """The folder of a search of one model.

        Args:
            verb: whose it is.
            ending: of the default name, behind the model's.
            model: as the user gave it.
            resume: a folder of an earlier search.
            output: the folder that the user chose.

        Raises:
            InputError: ``resume`` is no folder of this verb.
        """
        if resume is not None:
            folder = cls(resume, verb)
            folder.check_begun()
            return folder
        name = Path(model).stem if isinstance(model, str | Path) else getattr(model, "name", "network")
        return cls(output or f"{str(name).replace(':', '-')}{ending}", verb)

    def check_begun(self) -> None:
        """Refuse a folder in which no search of this verb was begun.

        Raises:
            InputError: it is no such folder.
        """
        if not self.mark.is_file():
            raise InputError(
                f"is not a folder of {self._verb}", where=self.path, remedy=f"give the folder that {self._verb} wrote"
            )

    def check_free(self, *, force: bool) -> None:
        """Refuse to overwrite what is there, without ``force`` or of another kind.

        Raises:
            InputError: it may not be replaced.
        """
        check_folder(self.path.resolve(), self.mark.name, f"a folder of {self._verb}", force=force)

    def clear(self) -> None:
        """Make it anew, and empty.

        Raises:
            InputError: it cannot be made.
        """
        shutil.rmtree(self.path, ignore_errors=True)
        try:
            self.path.mkdir(parents=True)
        except OSError as error:
            raise InputError(f"cannot be made: {error.strerror}", where=self.path, remedy="choose another") from error


def earlier_settings(verb: str, kind: type[Record]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """What gives a verb's call the settings of the search that it resumes; see :func:`framefit.core.settings.verb`.

    Args:
        verb: whose folder ``resume`` names.
        kind: of the settings in it.
    """

    def read(given: Mapping[str, Any]) -> dict[str, Any]:
        if given.get("resume") is None:
            return {}
        folder = SearchFolder(given["resume"], verb)
        folder.check_begun()
        return asdict(read_record(folder.mark, kind))

    return read


def path_of(given: Any) -> str:
    """What was given as a path; objects are not stored."""
    return given if isinstance(given, str) else ""


def objects_of(model: Any, data: Any) -> tuple[Any, Any]:
    """The model and data that were given as objects; ``None`` for each that was given as a path.

    Raises:
        InputError: neither was given: a search that was given objects needs them again when it is resumed.
    """
    missing = [name for name, given in (("MODEL", model), ("--data", data)) if isinstance(given, str) and not given]
    if missing:
        raise InputError(f"{' and '.join(missing)} missing", remedy="a search of objects is resumed with these objects")
    model, data = (None if isinstance(given, str) else given for given in (model, data))
    return model, data


@dataclass
class Ledger:
    """Counts images forwarded, evaluations and seconds.

    Args:
        clock: seconds that only grow.
        images_forwarded: through the network, for whatever reason.
        evaluations: of the accuracy of an assignment.
        earlier_s: of runs that this one goes on from.
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
        """Seconds since it was made."""
        return self.clock() - self._start_s

    @property
    def seconds(self) -> float:
        """Since it was made, and of earlier runs."""
        return self.earlier_s + self.running_s

    def forwarded(self, images: int, *, evaluations: int = 0) -> None:
        """Note images that went through the network."""
        self.images_forwarded += images
        self.evaluations += evaluations

    def catch_up(self, earlier: Spent) -> None:
        """Be at least where a run before stood: what is looked up costs what it cost then, and nothing now."""
        self.images_forwarded = max(self.images_forwarded, earlier.images_forwarded)
        self.evaluations = max(self.evaluations, earlier.evaluations)
        self.earlier_s += max(earlier.seconds - self.seconds, 0.0)

    def spent(self) -> Spent:
        """As a record."""
        return Spent(
            images_forwarded=self.images_forwarded, seconds=round(self.seconds, 3), evaluations=self.evaluations
        )


class KeptRecords:
    """Records that took long to find, one file each: what is there is not found again.

    Args:
        folder: of the files; what they depend on beside their names must not change while it exists.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, key: str, kind: type[R], find: Callable[[], R]) -> R:
        """What was found before under this key, else what is found now."""
        path = self._folder / f"{key}.json"
        if path.exists():
            return read_record(path, kind)
        record = find()
        write_record(path, record)
        return record


class Campaign(Generic[S]):
    """A search in its folder.

    Args:
        place: its folder.
        settings: what was asked for.
        notify: receives what is being done.
        earlier_s: seconds of runs that this one goes on from.
    """

    def __init__(self, place: SearchFolder, settings: S, notify: Notify, *, earlier_s: float = 0.0) -> None:
        self.place, self.settings, self.notify = place, settings, notify
        self.folder, self.ledger = place.path, Ledger(earlier_s=earlier_s)

    def begin(self, *, keep: bool) -> None:
        """Write down what was asked for, once nothing more can be refused.

        Args:
            keep: what the folder holds: the search goes on. Otherwise it is emptied.
        """
        if not keep:
            self.place.clear()
        write_record(self.place.mark, self.settings, force=True)


VALIDATION_LEARNT = (
    "the model is no worse on the validation data than on the training data: it may have been trained on both, so it "
    "was fine-tuned on both, and accuracies on the validation data may be too high"
)
"""What a result says where :func:`validation_was_learnt`."""


def validation_was_learnt(validation_top1: float, right: int, count: int) -> bool:
    """Whether a network is no worse on the validation data than on its training data.

    Then it may have been trained on both, for the user's split is not ours: a fine-tuning on the training data
    alone would unlearn the others, and look worse than it is. (Where it merely has not learnt its training data by
    heart, a few epochs on both do not change that.)

    Args:
        validation_top1: its accuracy on the validation data, 0 to 1.
        right: training examples that it is right about.
        count: of the training examples that it was asked about.
    """
    return validation_top1 >= wilson(right, count)[0]
