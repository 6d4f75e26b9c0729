"""Boards that are this machine: by a fake ``ssh`` that executes the command here, or by a real one to a server here."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from loopback import SOURCE, Place, write_program


@pytest.fixture
def place(tmp_path: Path, trials: Path) -> Iterator[Place]:
    """A host whose ssh executes commands here, with another home folder and cache; the board ``lab`` is added."""
    home = tmp_path / "board"
    here = tmp_path / "here"
    here.mkdir()
    for cache in (home / "cache", tmp_path / "cache"):
        cache.mkdir(parents=True)
        (cache / "trials").symlink_to(trials)
    (home / "environment").write_text("")
    write_program(
        tmp_path / "bin" / "ssh",
        f"""\
        #!/bin/sh
        # the last argument is the command; what the board's shell prints at its start is in the file bashrc
        for command; do :; done
        echo "$@" >> {tmp_path}/ssh.log
        [ -f {tmp_path}/refuses ] && {{ cat {tmp_path}/refuses >&2; exit 255; }}
        export HOME={home} FRAMEFIT_CACHE={home}/cache
        . {home}/environment
        cd {home}
        [ -f {home}/bashrc ] && . {home}/bashrc
        exec sh -c "$command"
        """,
    )
    environment = {
        **os.environ,
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(SOURCE),
        "FRAMEFIT_CONFIG": str(tmp_path / "config"),
        "FRAMEFIT_CACHE": str(tmp_path / "cache"),
        "COLUMNS": "120",
    }
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "boards.toml").write_text(
        f'schema_version = 1\n[[boards]]\nname = "lab"\naddress = "ssh://me@lab"\npython = "{sys.executable}"\n'
    )
    user = Place(here, environment, home / "cache" / "board")
    yield user
    user.end()
