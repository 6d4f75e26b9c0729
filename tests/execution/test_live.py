"""Sources that are not asked for their frames; what is sent is made by PyAV."""

from __future__ import annotations

import contextlib
import itertools
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefit import InputError, run, simulate
from framefit.core.workload import StreamEntry, with_environment
from framefit.devices.device import Array
from framefit.errors import UnsupportedError
from framefit.execution.live import LiveSource, live_frames, live_shape, overlapping
from framefit.execution.streams import check_stream, frame_shape
from workloads import write_app, write_models

pytest.importorskip("av")


def entry(source: str, **keys: Any) -> StreamEntry:
    """A stream called "live"."""
    return StreamEntry(name="live", source=source, **keys)


def first(source: StreamEntry, count: int, **options: Any) -> list[Array]:
    """So many frames, as a live source hands them over."""
    came: list[Array] = []
    enough = threading.Event()

    def give(frame: Array) -> None:
        came.append(frame)
        if len(came) == count:
            enough.set()

    live = LiveSource(live_frames(source, "stream 'live'", **options), "stream 'live'", give, but=())
    live.start()
    assert enough.wait(60)
    live.stop()
    live._thread.join(20)
    assert not live._thread.is_alive()
    return came[:count]


_SENDER = """
import sys, time
import av, numpy as np
with av.open(sys.argv[1], "w", format="mpegts") as container:
    video = container.add_stream("mpeg2video", rate=30)
    video.width, video.height, video.pix_fmt, video.gop_size, video.max_b_frames = 48, 32, "yuv420p", 5, 0
    for number in range(10_000):
        image = np.full((32, 48, 3), 8 * number % 256, np.uint8)
        container.mux(video.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        time.sleep(1 / 30)
"""


@contextlib.contextmanager
def sent_by(program: str) -> Iterator[str]:
    """The address to which a program sends in a process of its own."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        url = f"udp://127.0.0.1:{free.getsockname()[1]}"
    with subprocess.Popen([sys.executable, "-c", program, f"{url}?pkt_size=1316"]) as sender:
        yield url
        sender.kill()


@pytest.fixture
def address() -> Iterator[str]:
    """Where another process sends images, thirty a second."""
    with sent_by(_SENDER) as url:
        yield url


def test_a_live_source_hands_over_what_comes(address: str) -> None:
    """Images come one by one, without being asked for, until it is told to stop; the thread ends."""
    came = first(entry(address), 20)
    assert {image.shape for image in came} == {(32, 48, 3)}
    assert len({int(image.mean()) for image in came}) > 10


def test_a_live_source_that_fails_is_opened_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What ends, or is not there yet, is tried again; each reason is logged once."""
    monkeypatch.setattr("framefit.execution.live._AGAIN_S", 0.01)
    tries, came = list[int](), threading.Event()

    @contextlib.contextmanager
    def frames() -> Iterator[list[Array]]:
        tries.append(0)
        if len(tries) < 5:
            raise OSError("no such device")
        yield [np.zeros(1)]

    live = LiveSource(frames, "stream 'live'", lambda _: came.set(), but=())
    with caplog.at_level(logging.WARNING, "framefit.execution.live"):
        live.start()
        assert came.wait(30)
        while len(tries) < 8:
            time.sleep(0.01)
        live.stop()
        live._thread.join(10)
    assert [record.message.count("no such device") for record in caplog.records] == [1, 0]
    assert "it has ended; it is opened again every second" in caplog.text


def test_a_camera_that_is_not_there_is_named() -> None:
    """To plan without its shape it has to be opened; the remedy is not to convert it."""
    missing = entry("tcp://me:secret@127.0.0.1:9")
    with pytest.raises(InputError, match=r"tcp://me@127\.0\.0\.1:9 cannot be read") as caught:
        frame_shape(missing)
    assert "set shape" in str(caught.value.remedy)
    assert "secret" not in str(caught.value)


def test_a_password_may_be_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is taken when the source is opened, and stands in no message; without it the name is told."""
    missing = entry("tcp://me:${CAMERA_PASSWORD}@127.0.0.1:9")
    with pytest.raises(InputError, match=r"tcp://me@127\.0\.0\.1:9 names \$\{CAMERA_PASSWORD\}"):
        frame_shape(missing)
    monkeypatch.setenv("CAMERA_PASSWORD", "secret")
    import av

    opened: list[str] = []

    def refuse(source: str, **_: object) -> None:
        opened.append(source)
        raise OSError(f"{source}: connection refused")

    monkeypatch.setattr(av, "open", refuse)
    with pytest.raises(InputError, match=r"tcp://me@127\.0\.0\.1:9 cannot be read") as caught:
        frame_shape(missing)
    assert opened == ["tcp://me:secret@127.0.0.1:9"]
    assert "secret" not in str(caught.value)
    assert with_environment("notes/${HOME}.npz") == "notes/${HOME}.npz"  # a file


def test_live_sources_have_no_virtual_time(tmp_path: Path) -> None:
    """They are planned for by their shape, and simulated without frames; with outputs they are refused."""
    app = write_app(
        write_models(tmp_path),
        background=(),
        stream='source = "rtsp://camera.local/1"\nshape = [32, 48, 3]',
        model="preprocess = { scale = 0.01 }",
        target="micro-npu",
    )
    assert simulate(app, windows=20, output=tmp_path / "run").metrics.windows == 20
    with pytest.raises(UnsupportedError, match="is a live source, and a simulation"):
        simulate(app, windows=20, outputs=True, output=tmp_path / "other")


@pytest.mark.timed
def test_a_run_takes_the_images_of_a_live_source(tmp_path: Path, address: str) -> None:
    """Windows before the first image are empty; from then on images are done in time."""
    app = write_app(
        write_models(tmp_path),
        background=(),
        stream=f'source = "{address}"\nshape = [32, 48, 3]',
        model="preprocess = { scale = 0.01 }",
        rate_hz=30,
    )
    result = run(app, seconds=5, output=tmp_path / "run")
    (model,) = result.metrics.models
    (stream,) = result.metrics.streams
    assert model.completed > 30
    assert model.missed == 0
    assert stream.empty_windows + model.completed >= result.metrics.windows - 3
    assert stream.waited_ns is not None
    assert stream.waited_ns.count >= model.completed
    assert 0 < stream.waited_ns.p50 < 200_000_000


_SPEAKER = """
import sys, time
import av, numpy as np
with av.open(sys.argv[1], "w", format="mpegts") as container:
    sound = container.add_stream("mp2", rate=48_000, layout="stereo")
    for number in range(10_000):
        times = (np.arange(4_800) + 4_800 * number) / 48_000
        samples = np.tile(0.5 * np.sin(2 * np.pi * 440 * times), (2, 1))
        frame = av.AudioFrame.from_ndarray((samples * 32767).astype(np.int16).T.reshape(1, -1), "s16", "stereo")
        frame.sample_rate = 48_000
        container.mux(sound.encode(frame))
        time.sleep(0.1)
"""


@pytest.fixture
def speaker() -> Iterator[str]:
    """Where another process sends a tone of 440 Hz, in stereo, 48,000 samples a second."""
    with sent_by(_SPEAKER) as url:
        yield url


def test_sound_comes_in_blocks(speaker: str) -> None:
    """At the model's sample rate and in its channels; blocks overlap, and none is left out."""
    blocks = first(entry(speaker, block=512, hop=160), 100, sample_hz=16_000)
    assert {(block.shape, block.dtype.name) for block in blocks} == {((1, 512), "float32")}
    for before, after in itertools.pairwise(blocks):
        np.testing.assert_array_equal(before[:, 160:], after[:, :-160])
    tone = np.concatenate([block[0, :160] for block in blocks[20:]])
    peak = np.argmax(np.abs(np.fft.rfft(tone))) * 16_000 / len(tone)
    assert abs(peak - 440) < 5
    assert 0.4 < np.abs(tone).max() < 0.6


@given(
    lengths=st.lists(st.integers(0, 40), max_size=12),
    block=st.integers(1, 30),
    hop=st.integers(1, 50),
)
def test_blocks_out_of_parts_of_any_length(lengths: list[int], block: int, hop: int) -> None:
    """They are those of the whole sound."""
    whole = np.arange(2 * sum(lengths)).reshape(2, -1)
    parts = np.split(whole, np.cumsum(lengths)[:-1], axis=1) if lengths else []
    expected = [whole[:, at : at + block] for at in range(0, whole.shape[1] - block + 1, hop)]
    blocks = list(overlapping(parts, block, hop))
    assert len(blocks) == len(expected)
    for one, other in zip(blocks, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_sound_has_a_shape_without_being_opened() -> None:
    """One channel, or two where the workload says so; more are refused."""
    assert frame_shape(entry("alsa://default", block=160)) == (1, 160)
    assert frame_shape(entry("alsa://default", block=160, shape=(2, 160))) == (2, 160)
    for shape in ((160,), (3, 160), (1, 161)):
        with pytest.raises(InputError, match=r"frames of sound are channels x samples: \[1, 160\]"):
            live_shape(entry("alsa://default", block=160, shape=shape), "stream 'live'")


def test_the_sample_rate_is_a_whole_number(tmp_path: Path) -> None:
    """It is the rate times the hop."""
    app = write_app(
        write_models(tmp_path), stream='source = "alsa://default"\nblock = 160', target="micro-npu", rate_hz=33.333
    )
    with pytest.raises(InputError, match=r"33\.333 Hz times 160 samples are 5333\.28 samples a second"):
        simulate(app, windows=1, output=tmp_path / "run")


def test_a_microphone_needs_blocks() -> None:
    """And what is no sound has none."""
    with pytest.raises(ValueError, match="block, the samples of a frame, is missing"):
        entry("alsa://default")
    with pytest.raises(ValueError, match="block and hop go with a source of sound"):
        entry("frames.npz", block=160)


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[str], object]], None]:
    """Registers what makes frames, as an installed package would."""

    def as_package(scheme: str, made: Callable[[str], object]) -> None:
        def entry_points(*, group: str, name: str) -> list[SimpleNamespace]:
            matches = (group, name) == ("framefit.sources", scheme)
            return [SimpleNamespace(load=lambda: made)] if matches else []

        monkeypatch.setattr(metadata, "entry_points", entry_points)

    return as_package


def test_another_package_brings_frames(register: Callable[[str, Callable[[str], object]], None]) -> None:
    """It is called with the address; what it yields is handed over as it comes, and it is closed."""
    closed = threading.Event()

    def frames(address: str) -> Iterator[Array]:
        try:
            while True:
                yield np.full((2, 3), len(address), np.float32)
        finally:
            closed.set()

    register("lidar", frames)
    source = entry("lidar://front", shape=(2, 3))
    check_stream(source, [], folder=Path())
    assert {frame.sum() for frame in first(source, 5)} == {6.0 * len("lidar://front")}
    assert closed.wait(5)


def test_sources_that_no_package_brings() -> None:
    """They are refused with the name of the entry point that is missing; without a shape nothing can be planned."""
    with pytest.raises(UnsupportedError, match="lidar://front' is not supported") as refused:
        check_stream(entry("lidar://front", shape=(2, 3)), [], folder=Path())
    assert "an entry point 'lidar' in framefit.sources" in str(refused.value)
    with pytest.raises(InputError, match="does not say the size of its frames"):
        frame_shape(entry("lidar://front"))
