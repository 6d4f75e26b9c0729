"""Hosts and boards that are this machine: users with folders of their own, and programs in place of others."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"


@dataclass
class Place:
    """A user's folders, and framefit on the command line there.

    Attributes:
        here: the current folder.
        environment: of everything that is started.
        board: Framefit's folder on the board.
    """

    here: Path
    environment: dict[str, str]
    board: Path
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start framefit."""
        process = subprocess.Popen(
            [sys.executable, "-c", "from framefit.cli.app import main; main()", *arguments],
            cwd=self.here,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def __call__(self, *arguments: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Do a command of framefit."""
        process = self.start(*arguments)
        output, messages = process.communicate(timeout=timeout_s)
        return subprocess.CompletedProcess(arguments, process.returncode, output, messages)


def write_program(path: Path, text: str) -> Path:
    """An executable script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    path.chmod(0o755)
    return path
