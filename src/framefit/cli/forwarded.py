"""A verb that another machine has asked for: ``python -m framefit.cli.forwarded JOB`` in the process of a job.

What was received names a verb of a fixed list and its options, which the verb's settings record decodes. Functions that
a workload names are not imported: nothing that is received is executed.
"""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from framefit.boards.jobs import end_with_parent, job_command
from framefit.cli.app import ended
from framefit.cli.commands import COMMANDS
from framefit.cli.inputs import check_inputs
from framefit.cli.options import show_reason
from framefit.cli.screen import logged
from framefit.core.files import cache_folder
from framefit.core.functions import refuse_functions
from framefit.core.settings import options, settings_of
from framefit.errors import FramefitError


def perform(name: str, given: dict[str, Any], screen_given: dict[str, Any]) -> int:
    """Do a verb with options as another machine's command line gave them, and give its exit code.

    Raises:
        FramefitError: as the verb does.
    """
    verb, screen, command = COMMANDS[name]
    screen_settings = settings_of(screen, screen_given | {"on": None, "log_file": None})
    try:
        check_inputs({} if verb is None else options(verb), given)
        if verb is not None and "resume" not in given:
            settings_of(verb, given)
        with logged(screen_settings):
            return command(given, screen_settings) or 0
    except FramefitError as error:
        if screen_given.get("json"):
            show_reason(error)
        raise


_CHANGES = frozenset(
    {
        "os.mkdir",
        "os.rename",
        "os.remove",
        "os.rmdir",
        "os.link",
        "os.symlink",
        "os.truncate",
        "os.chmod",
        "shutil.rmtree",
    }
)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def keep_inside(*folders: Path) -> None:
    """From now on this process changes files below these folders only, whatever path an option or a record names.

    Devices, settings of the kernel, and Python's own caches of compiled code are excepted.

    Args:
        folders: they exist.
    """
    roots = tuple(f"{os.path.realpath(folder)}/" for folder in (*folders, Path("/dev"), Path("/proc"), Path("/sys")))

    def check(event: str, arguments: tuple[Any, ...]) -> None:
        opens = event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES
        if not opens and event not in _CHANGES:
            return
        for path in arguments[: 1 if opens else 2]:
            if isinstance(path, str | bytes | os.PathLike):
                text = Path(os.fsdecode(path))
                place = text.resolve() if opens else text.parent.resolve() / text.name
                if not f"{place}/".startswith(roots) and "__pycache__" not in place.parts:
                    raise PermissionError(errno.EACCES, "a job on a board writes into its own folder only", str(text))

    sys.addaudithook(check)


def main() -> None:
    """Do the verb of a job's folder."""
    ended(lambda: sys.exit(_perform_job(Path(sys.argv[1]))))


def _perform_job(folder: Path) -> int:
    end_with_parent()
    refuse_functions("nothing that a board receives is executed there")
    cache_folder().mkdir(parents=True, exist_ok=True)
    keep_inside(folder, cache_folder(), Path(tempfile.gettempdir()))
    job = job_command(folder)
    return perform(job.verb, job.given, job.screen)


if __name__ == "__main__":
    main()
