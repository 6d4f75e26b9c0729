"""The same with OpenSSH's own server on this machine: an installed one, or Debian's package, unpacked."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from loopback import SOURCE, Place, write_program
from test_jobs import children, measures, measuring, until

from docs.documents import ROOT, Walkthrough
from framefit.core.latency_table import LatencyTable
from workloads import write_models

SSH = shutil.which("ssh")
pytestmark = pytest.mark.skipif(
    SSH is None or os.geteuid() != 0 or shutil.which("unshare") is None,
    reason="a server of one's own needs ssh, root and mount namespaces",
)


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """sshd, and the folder of its libraries."""
    if Path("/usr/sbin/sshd").exists():
        return "/usr/sbin/sshd", ""
    folder = tmp_path_factory.mktemp("sshd")
    packages = ("openssh-server", "libwrap0")
    try:
        subprocess.run(["apt-get", "download", *packages], cwd=folder, capture_output=True, check=True, timeout=30)
        for package in folder.glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, folder], capture_output=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"no sshd here, and Debian's package cannot be had: {error}")
    libraries = {str(path.parent) for path in folder.rglob("libwrap.so.0")}
    return str(folder / "usr/sbin/sshd"), ":".join(libraries)


class Server:
    """An ssh server that lets one key in, on the loopback address, in a mount namespace of its own."""

    def __init__(self, folder: Path, program: tuple[str, str]) -> None:
        self._folder, self._program = folder, program
        folder.mkdir()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        (folder / "sshd_config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nPidFile none\nStrictModes no\n"
            f"AuthorizedKeysFile {folder}/user.pub\nPasswordAuthentication no\nPermitRootLogin yes\n"
            "Subsystem sftp internal-sftp\n"
        )
        (folder / "passwd").write_text(
            Path("/etc/passwd").read_text() + "sshd:x:64000:65534::/run/sshd:/usr/sbin/nologin\n"
        )
        self.process: subprocess.Popen[bytes]
        self.start()

    def start(self) -> None:
        """Start it."""
        folder, (program, libraries) = self._folder, self._program
        script = (
            f"mount --bind {folder}/passwd /etc/passwd && mount -t tmpfs none /run && mkdir /run/sshd && "
            f"exec {program} -D -e -f {folder}/sshd_config"
        )
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                ["unshare", "-m", "sh", "-c", script],
                env={**os.environ, "LD_LIBRARY_PATH": libraries},
                stderr=log,
            )
        until(self._answers, "the server does not start", 10)

    def _answers(self) -> bool:
        if self.process.poll() is not None:
            pytest.skip(f"no server can be started here: {(self._folder / 'log').read_text()[-300:]}")
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        """Kill it with all of its connections; what they have started is not killed."""
        if self.process.poll() is not None:
            return
        for process in (self.process.pid, *children(self.process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def server(place: Place, tmp_path: Path, program: tuple[str, str]) -> Iterator[Server]:
    """The server behind the Host ``lab``; the user's ssh configuration knows key and host."""
    running = Server(tmp_path / "sshd", program)
    folder = tmp_path / "sshd"
    (folder / "known").write_text(f"[127.0.0.1]:{running.port} {(folder / 'host.pub').read_text()}")
    (folder / "config").write_text(
        f"Host lab\n HostName 127.0.0.1\n Port {running.port}\n User root\n IdentityFile {folder}/user\n"
        f" IdentitiesOnly yes\n UserKnownHostsFile {folder}/known\n GlobalKnownHostsFile /dev/null\n"
    )
    write_program(tmp_path / "bin" / "ssh", f'#!/bin/sh\nexec {SSH} -F {folder}/config "$@"\n')
    python = write_program(
        tmp_path / "python",
        f"""\
        #!/bin/sh
        export PYTHONPATH={SOURCE} FRAMEFIT_CACHE={place.board.parent}
        exec {sys.executable} "$@"
        """,
    )
    (tmp_path / "config" / "boards.toml").write_text(
        f'schema_version = 1\n[[boards]]\nname = "lab"\naddress = "lab"\npython = "{python}"\n'
    )
    yield running
    running.kill()


def listening(processes: list[int]) -> set[str]:
    """Addresses that any of these processes listens on."""
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    places = {f"socket:[{row[9]}]": row[1] for row in rows if row[3] == "0A"}
    descriptors = [entry for process in processes for entry in Path(f"/proc/{process}/fd").iterdir()]
    return {places[link] for entry in descriptors if (link := str(entry.readlink())) in places}


def test_keys_and_hosts_are_the_users_own(place: Place, server: Server, tmp_path: Path) -> None:
    """A verb is done; an unknown host and an unknown key are one message, and nothing waits for an answer."""
    ended = place("doctor", "--on", "lab", "--json")
    assert ended.returncode == 0, ended.stderr
    known = tmp_path / "sshd" / "known"
    row = known.read_text()
    known.write_text("")
    ended = place("doctor", "--on", "lab")
    assert ended.returncode == 3
    assert "host key is not known" in ended.stderr
    known.write_text(row)
    (tmp_path / "sshd" / "user.pub").write_text("")
    ended = place("doctor", "--on", "lab")
    assert ended.returncode == 3
    assert "ssh-copy-id" in ended.stderr
    server.kill()
    ended = place("doctor", "--on", "lab")
    assert ended.returncode == 3
    assert "no ssh server answers" in ended.stderr


def test_a_store_behind_ssh(place: Place, server: Server, tmp_path: Path) -> None:
    """Tables are pushed there and pulled from there with the user's key; a colleague's is found by its device."""
    pytest.importorskip("paramiko", reason="fsspec reads ssh:// with paramiko")
    home, store = tmp_path / "home", tmp_path / "store"
    (home / ".ssh").mkdir(parents=True)
    shutil.copy(tmp_path / "sshd" / "user", home / ".ssh" / "id_ed25519")
    url = f"ssh://root@127.0.0.1:{server.port}{store}"
    facts = {"target": "pi5", "cpu": "A76"}
    for number in range(3):
        table = LatencyTable(target="pi5", fingerprint={**facts, "cpu": f"A7{number + 4}"})
        (place.here / f"{number}.table.json").write_bytes(msgspec.json.encode(table))
    command = [sys.executable, "-c", "from framefit.cli.app import main; main()"]

    def framefit(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "HOME": str(home), "FRAMEFIT_STORE": url}
        return subprocess.run(
            [*command, *arguments], cwd=place.here, env=environment, capture_output=True, text=True, check=False
        )

    pushed = framefit("push", *(f"{number}.table.json" for number in range(3)))
    assert pushed.returncode == 0, pushed.stderr
    listed = framefit("log", "--json")
    assert [file["name"] for file in json.loads(listed.stdout)["files"]] == [
        f"{number}.table.json" for number in range(3)
    ]
    assert framefit("pull", "1.table.json", "-o", "back").returncode == 0
    assert (place.here / "back" / "1.table.json").read_bytes() == (place.here / "1.table.json").read_bytes()
    assert not list((store / "temporary").iterdir())
    program = f"from framefit.core.store import table_at; print(table_at({url!r}, {facts!r}))"
    environment = {**os.environ, "HOME": str(home)}
    found = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert "the latest 2.table.json of" in found.stdout, found.stderr


@pytest.mark.slow
def test_a_server_that_is_started_anew_ends_no_job(place: Place, server: Server, tmp_path: Path) -> None:
    """The job goes on meanwhile, the client connects again; nothing listens on a port beside the server."""
    host, job = measuring(place, write_models(tmp_path / "models"), "t.table.json")
    until(lambda: measures(place, job), "it does not measure")
    assert len(listening([server.process.pid])) == 1
    assert listening([host.pid, *children(host.pid), *place.left()]) == set()
    server.kill()
    time.sleep(0.5)
    assert len(place.left(job)) == 2
    server.start()
    time.sleep(2)
    host.send_signal(signal.SIGINT)
    _, messages = host.communicate(timeout=60)
    assert host.returncode == 130, messages
    assert "again" in messages
    assert (place.here / "t.table.json").exists()
    assert not place.left()


class _Reader(Walkthrough):
    """One whose board has an environment with Framefit already."""

    python = ""

    def _run(self, words: list[str]) -> str:
        return super()._run([*words, "--python", self.python] if words[1:3] == ["board", "add"] else words)


def test_the_tutorial_can_be_followed(
    place: Place, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its first block to its last, over a real connection."""
    config = tmp_path / "sshd" / "config"
    config.write_text(config.read_text().replace("Host lab", "Host pi5.local"))
    (tmp_path / "config" / "boards.toml").unlink()
    monkeypatch.chdir(place.here)
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    reader = _Reader(place.here, {"__name__": "__main__"})
    reader.python = str(tmp_path / "python")
    reader.follow(ROOT / "docs" / "tutorials" / "board.md")
    assert not place.left()
