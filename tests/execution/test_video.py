"""Video files and live sources of frames; files and what is sent are made by PyAV."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from framefit import InputError, simulate
from framefit.core.model import TensorInfo
from framefit.core.workload import StreamEntry
from framefit.devices.device import Array
from framefit.devices.host import available_cores, pinned
from framefit.errors import MissingExtraError
from framefit.execution.streams import EndOfStream, check_stream, frame_shape, open_stream
from framefit.execution.video import DecodedVideo
from workloads import write_app, write_models

av = pytest.importorskip("av")
RAW = TensorInfo(name="image", dtype="uint8", shape=None)


def write_video(path: Path, count: int, height: int = 32, width: int = 48) -> Path:
    """Images of one grey each, a little brighter from one to the next."""
    with av.open(str(path), "w") as container:
        video = container.add_stream("mpeg4", rate=30)
        video.width, video.height, video.pix_fmt, video.bit_rate = width, height, "yuv420p", 2_000_000
        for number in range(count):
            image = np.full((height, width, 3), 20 + 8 * (number % 25), np.uint8)
            container.mux(video.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(video.encode())
    return path


def entry(path: Path) -> StreamEntry:
    """A stream called "camera"."""
    return StreamEntry(name="camera", source=str(path))


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".avi"])
def test_images_come_in_order(tmp_path: Path, suffix: str) -> None:
    """All of them, as RGB, as the greys that were written; then the stream has ended."""
    camera = entry(write_video(tmp_path / f"a{suffix}", 20))
    assert frame_shape(camera) == (32, 48, 3)
    stream = open_stream(camera, 0)
    assert stream.length is None
    frames = [stream.read(number, RAW) for number in range(20)]
    assert {(frame.shape, frame.dtype.name) for frame in frames} == {((32, 48, 3), "uint8")}
    np.testing.assert_allclose([frame.mean() for frame in frames], 20 + 8 * np.arange(20), atol=4)
    assert not stream.has(20)
    assert stream.length == 20
    with pytest.raises(EndOfStream):
        stream.read(20, RAW)
    np.testing.assert_array_equal(stream.read(10, RAW), frames[10])


def test_what_is_no_video_is_named(tmp_path: Path) -> None:
    """Missing, damaged, or sound only; a file that was cut off gives what can be read of it."""
    with pytest.raises(InputError, match=r"no such file .*none\.mp4"):
        open_stream(entry(tmp_path / "none.mp4"), 0)
    (tmp_path / "text.mp4").write_text("no video at all")
    with pytest.raises(InputError, match="cannot be read as a video") as caught:
        check_stream(entry(tmp_path / "text.mp4"), [(RAW, None)], folder=tmp_path)
    assert "ffmpeg -i text.mp4" in str(caught.value.remedy)
    whole = write_video(tmp_path / "a.mkv", 60).read_bytes()
    (tmp_path / "cut.mkv").write_bytes(whole[: len(whole) // 2])
    stream, count = open_stream(entry(tmp_path / "cut.mkv"), 0), 0
    while stream.has(count):
        count += 1
    assert 5 < count < 60


def test_without_the_extra_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what to install."""
    path = write_video(tmp_path / "a.mp4", 3)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingExtraError) as caught:
        open_stream(entry(path), 0)
    assert "framefit[video]" in str(caught.value.remedy)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system does not keep threads on cores")
def test_the_decoder_stays_off_the_beat_s_core_and_ends(tmp_path: Path) -> None:
    """It has the other cores while images are asked for on one; a stream that is let go leaves no thread."""
    cores = available_cores()
    if len(cores) < 2:
        pytest.skip("there is one core only")
    video = DecodedVideo(write_video(tmp_path / "a.mp4", 400), "stream 'camera'")
    (decoder,) = (thread for thread in threading.enumerate() if thread.name == "framefit-video")
    with pinned(cores[-1]):
        next(video)
        assert decoder.native_id is not None
        assert cores[-1] not in os.sched_getaffinity(decoder.native_id)
    del video
    gc.collect()
    decoder.join(5)
    assert not decoder.is_alive()


def test_no_more_is_decoded_than_is_kept_ready(tmp_path: Path) -> None:
    """A long file does not fill the memory."""
    video = DecodedVideo(write_video(tmp_path / "a.mp4", 200), "stream 'camera'")
    for _ in range(100):
        if video._ready.full():
            break
        time.sleep(0.05)
    assert video._ready.qsize() == 64
    assert sum(1 for _ in video) == 200


def test_a_workload_reads_a_video(tmp_path: Path) -> None:
    """The run ends with the file; each window had its next image, prepared, as the outputs show."""
    write_video(tmp_path / "street.mp4", 25)
    app = write_app(
        write_models(tmp_path),
        background=(),
        stream='source = "street.mp4"',
        model="preprocess = { scale = 0.01 }",
        more='[[outputs]]\nmodel = "small"\nsink = "out.npz"\n',
        target="micro-npu",
    )
    result = simulate(app, windows=100, outputs=True, output=tmp_path / "run")
    (model,) = result.metrics.models
    assert (model.releases, model.completed, model.missed) == (25, 25, 0)
    with np.load(tmp_path / "out.npz") as outputs:
        several = [outputs[name].reshape(25, -1) for name in outputs.files if outputs[name].ndim > 1]
        assert several
        assert all(len(np.unique(rows.round(5), axis=0)) == 25 for rows in several)


def test_a_decoder_that_fails_ends_the_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it raises becomes an error of the stream: nobody waits for ever."""

    def broken(*_: object) -> Iterator[Array]:
        yield np.zeros((32, 48, 3), np.uint8)
        raise RuntimeError("out of order")

    monkeypatch.setattr("framefit.execution.video.images", broken)
    stream = open_stream(entry(write_video(tmp_path / "a.mp4", 3)), 0)
    assert stream.read(0, RAW).shape == (32, 48, 3)
    with pytest.raises(InputError, match="cannot be read as a video: out of order"):
        stream.has(1)
