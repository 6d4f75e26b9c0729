"""A verb that another machine has asked for: ``python -m framefit.cli.forwarded JOB`` in the process of a job.

What was received names a verb of a fixed list and its options, which the verb's settings record decodes. Functions that
a workload names are not imported: nothing that is received is executed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from framefit.boards.jobs import end_with_parent, job_command
from framefit.cli.app import ended
from framefit.cli.commands import COMMANDS
from framefit.cli.inputs import check_inputs
from framefit.cli.options import show_reason
from framefit.cli.screen import logged
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


def main() -> None:
    """Do the verb of a job's folder."""
    end_with_parent()
    refuse_functions("nothing that a board receives is executed there")
    job = job_command(Path(sys.argv[1]))
    ended(lambda: sys.exit(perform(job.verb, job.given, job.screen)))


if __name__ == "__main__":
    main()
