"""Put this version of Framefit on a board: a wheel of the files here, and an environment of its own there.

The wheel is made of the installed package itself, so it needs neither the sources' repository nor a build backend, and
the board has byte for byte what the host has. Further packages come by the board's own ``pip``, or are sent as wheels.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import shlex
import zipfile
from importlib import metadata
from pathlib import Path

import framefit
from framefit.boards.agent import package_files, version
from framefit.boards.client import Ssh, environment_folder, plain
from framefit.boards.frames import FILE_LIMIT, Channel, LostConnectionError
from framefit.core.boards import Board
from framefit.core.settings import Notify, silent
from framefit.errors import DeviceError, InputError

_INSTALL_S = 1800.0
_SAYS = b"framefit-install: "
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same files give the same wheel
_SCRIPT = r"""
import os, shutil, subprocess, sys, tempfile
def say(text):
    os.write(1, b"framefit-install: " + " ".join(text.split())[-600:].encode("utf-8", "replace") + b"\n")
def fail(text):
    say("failed " + text)
    sys.exit(0)
def call(*command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        fail(done.stdout.decode("utf-8", "replace"))
if sys.version_info < (3, 11):
    fail("its Python is %d.%d, and Framefit needs 3.11" % sys.version_info[:2])
if sys.maxsize < 2 ** 32:
    fail("its system has 32 bits, and Framefit needs 64")
place = os.path.join(os.path.expanduser("~"), sys.argv[1])
folder = tempfile.mkdtemp(prefix="framefit-")
try:
    source, wheels = sys.stdin.buffer, []
    while True:
        line = source.readline().split()
        if line[:1] == [b"end"]:
            break
        if len(line) != 2:
            fail("the connection ended before all files were there")
        wheels.append(os.path.join(folder, os.path.basename(line[0].decode())))
        left = int(line[1])
        with open(wheels[-1], "wb") as file:
            while left:
                data = source.read(min(left, 1 << 20))
                if not data:
                    fail("the connection ended before all files were there")
                file.write(data)
                left -= len(data)
    shutil.rmtree(place, ignore_errors=True)
    say("making an environment in " + place)
    call(sys.executable, "-m", "venv", place)
    say("installing Framefit and what it needs")
    python = os.path.join(place, "bin", "python")
    alone = ["--no-index", "--find-links", folder] if len(wheels) > 1 else []
    call(python, "-m", "pip", "install", "--no-input", "--disable-pip-version-check", *alone, wheels[0])
    say("done")
except OSError as error:
    fail(str(error))
finally:
    shutil.rmtree(folder, ignore_errors=True)
"""
"""What is executed on a board to install: Framefit's own code, as this file has it."""


def wheel() -> tuple[str, bytes]:
    """Name and bytes of a wheel of the package as it is installed here.

    Raises:
        InputError: the package is here without its metadata.
    """
    try:
        installed = metadata.distribution("framefit")
    except metadata.PackageNotFoundError:
        raise InputError("Framefit is not installed here", remedy="install it with pip, and try again") from None
    info = f"framefit-{installed.version}.dist-info"
    root = Path(framefit.__file__).parent
    files = {f"framefit/{path.relative_to(root).as_posix()}": path.read_bytes() for path in package_files(root)}
    for name in ("METADATA", "entry_points.txt"):
        text = installed.read_text(name)
        if text:
            files[f"{info}/{name}"] = text.encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: framefit\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    rows = [f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in files.items()]
    files[f"{info}/RECORD"] = "".join([*rows, f"{info}/RECORD,,\n"]).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            member = zipfile.ZipInfo(name, _EPOCH)
            member.external_attr = 0o644 << 16
            archive.writestr(member, data, zipfile.ZIP_DEFLATED)
    return f"framefit-{installed.version}-py3-none-any.whl", buffer.getvalue()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def install(board: Board, *, wheels: Path | None = None, notify: Notify = silent) -> None:
    """Install this version on a board, in an environment of its own.

    Args:
        board: which one; its ``python`` is not used.
        wheels: folder of further wheels, for a board without a network.
        notify: hears what is being done.

    Raises:
        InputError: the wheels cannot be used.
        DeviceError: the board cannot be reached, or the installation fails there.
    """
    name, data = wheel()
    further = [] if wheels is None else sorted(wheels.glob("*.whl"))
    if wheels is not None and not further:
        raise InputError("holds no wheels (*.whl)", where=wheels, remedy="pip download -d DIR for the board's platform")
    ssh = Ssh(board, f"exec python3 -c {shlex.quote(_SCRIPT)} {shlex.quote(environment_folder())}")
    assert ssh.process.stdin is not None
    assert ssh.process.stdout is not None
    channel = Channel(ssh.process.stdout.fileno(), ssh.process.stdin.fileno())
    last = ""
    try:
        notify(f"sending Framefit {version()} to {board.name} ({len(data) / 1e6:.1f} MB)")
        channel.write(f"{name} {len(data)}\n".encode() + data, within_s=_INSTALL_S)
        for path in further:
            if any(letter.isspace() for letter in path.name) or path.stat().st_size > FILE_LIMIT:
                raise InputError("not a wheel", where=path, remedy="remove it")
            content = path.read_bytes()
            notify(f"sending {path.name}")
            channel.write(f"{path.name} {len(content)}\n".encode() + content, within_s=_INSTALL_S)
        channel.write(b"end\n")
        while last != "done":
            channel.pass_over(_SAYS, within_s=_INSTALL_S)
            last = plain(channel.pass_over(b"\n", within_s=60).decode(errors="replace"))
            if last.startswith("failed "):
                raise DeviceError(
                    last.removeprefix("failed "),
                    where=f"board {board.name}",
                    remedy="correct that there (python3-venv and pip must be installed), or send packages with "
                    "--wheels DIR, or name an environment that has Framefit with --python",
                )
            notify(last)
    except LostConnectionError as error:
        raise ssh.error(error) from error
    finally:
        with contextlib.suppress(OSError):
            ssh.close()
