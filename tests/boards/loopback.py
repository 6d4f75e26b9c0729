"""Hosts and boards that are this machine: users with folders of their own, and programs in place of others."""

from __future__ import annotations

import contextlib
import os
import signal
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

    def end(self) -> None:
        """End everything that was started, here and on the board."""
        for process in self.processes:
            process.kill()
            process.communicate()
        for pid in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def left(self, job: str = "") -> list[int]:
        """Processes of the board's jobs, or of one, the first before its children."""
        folder, pids = str(self.board / "jobs" / job).encode(), []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                ended = (entry / "stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
                if folder in (entry / "cmdline").read_bytes() and not ended:
                    pids.append(int(entry.name))
        return sorted(pids)

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
