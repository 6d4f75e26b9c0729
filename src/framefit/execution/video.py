"""Frames of video files, decoded ahead on a thread of their own; how FFmpeg opens files, cameras and addresses."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from framefit.core.workload import with_environment, without_password
from framefit.devices.device import Array
from framefit.devices.host import available_cores, without_priority
from framefit.errors import FramefitError, InputError, needs_extra

VIDEO_SUFFIXES = (".mp4", ".m4v", ".mkv", ".mov", ".avi", ".webm", ".mpg")
_AHEAD_BYTES = 1 << 26  # of decoded frames
_LEAST_AHEAD, _MOST_AHEAD = 4, 64
_POLL_S = 0.2
_TIMEOUT_S = 5.0  # of a live source
_Ready = queue.Queue["Array | FramefitError | None"]


class DecodedVideo:
    """The images of a video file in order, height x width x 3, RGB, uint8: an iterator.

    A thread decodes some ahead. It stays off the core on which the images are asked for, where that thread is kept on
    one, and has no real-time priority: a decoder would hold up what has.

    Args:
        path: of the file.
        where: for messages.

    Raises:
        InputError: the file is missing, or no video.
        MissingExtraError: without the extra ``video``.
    """

    def __init__(self, path: str | Path, where: str) -> None:
        height, width, channels = video_shape(path, where)
        ahead = int(np.clip(_AHEAD_BYTES // (height * width * channels), _LEAST_AHEAD, _MOST_AHEAD))
        self._ready: _Ready = queue.Queue(ahead)
        self._stop, self._cores, self._over = threading.Event(), frozenset[int](), False
        self._thread = threading.Thread(
            target=_decode, args=(path, where, self._ready, self._stop), name="framefit-video", daemon=True
        )
        self._thread.start()

    def __iter__(self) -> DecodedVideo:
        return self

    def __next__(self) -> Array:
        self._leave_cores()
        frame = None if self._over else self._ready.get()
        if frame is None or isinstance(frame, FramefitError):
            self._over = True
        if isinstance(frame, FramefitError):
            raise frame
        if frame is None:
            raise StopIteration
        return frame

    def __del__(self) -> None:
        stop = getattr(self, "_stop", None)  # where it could not be opened there is none
        if stop is not None:
            stop.set()

    def _leave_cores(self) -> None:
        """Keep the decoder on other cores than the calling thread's, where that is kept on some of them."""
        if not hasattr(os, "sched_getaffinity"):
            return
        mine = frozenset(os.sched_getaffinity(0))
        others = set(available_cores()) - mine
        if mine != self._cores and others and self._thread.native_id is not None:
            with contextlib.suppress(OSError):  # it has ended
                os.sched_setaffinity(self._thread.native_id, others)
        self._cores = mine


def video_shape(path: str | Path, where: str) -> tuple[int, int, int]:
    """Height, width and 3, as the file's header says.

    Raises:
        InputError: the file is missing, or no video.
        MissingExtraError: without the extra ``video``.
    """
    with opened_media(path, where) as (_, video):
        height, width = video.codec_context.height, video.codec_context.width
    if not height or not width:
        shown = without_password(str(path))
        raise InputError(f"{shown} does not say the size of its images", where=where, remedy="convert it, or set shape")
    return height, width, 3


@contextlib.contextmanager
def opened_media(path: str | Path, where: str, *, kind: str = "video") -> Iterator[tuple[Any, Any]]:
    """The container, and its first stream of video or audio, for a single thread."""
    with needs_extra("av", "video"):
        import av
    (source, options), shown = _form(with_environment(str(path))), without_password(str(path))
    try:
        container = av.open(source, **options)
    except FileNotFoundError:
        raise InputError(f"no such file {shown}", where=where, remedy="check the path") from None
    except (av.error.FFmpegError, OSError, ValueError) as error:
        raise _unreadable(path, where, error) from error
    with container:
        streams = getattr(container.streams, kind)
        if not streams:
            what, remedy = ("video", "images") if kind == "video" else ("sound", "sound, or leave block out")
            raise InputError(f"{shown} has no {what}", where=where, remedy=f"give one with {remedy}")
        streams[0].codec_context.thread_count = 1  # threads of the decoder could be on the beat's core
        yield container, streams[0]


def _decode(path: str | Path, where: str, ready: _Ready, stop: threading.Event) -> None:
    """Put the file's images into a queue, and at the end ``None``, or an error; ends when it is told to."""
    without_priority()

    def put(item: Array | FramefitError | None) -> None:
        while not stop.is_set():
            with contextlib.suppress(queue.Full):
                ready.put(item, timeout=_POLL_S)
                return

    try:
        with opened_media(path, where) as (container, video):
            for image in images(container, video, path, where):
                if stop.is_set():
                    return
                put(image)
    except FramefitError as error:
        put(error)
    except Exception as error:  # noqa: BLE001 - or who waits for an image would wait for ever
        put(_unreadable(path, where, error))
    else:
        put(None)


def images(container: Any, video: Any, path: str | Path, where: str) -> Iterator[Array]:
    """All images, in the size that the header says."""
    import av

    size = {"height": video.codec_context.height, "width": video.codec_context.width}
    try:
        for frame in container.decode(video):
            yield frame.to_ndarray(format="rgb24", **size)
    except av.error.FFmpegError as error:
        raise _unreadable(path, where, error) from error


def _form(source: str) -> tuple[str, dict[str, Any]]:
    """How FFmpeg opens a source: a camera or microphone by its driver, an address with as little delay as it can."""
    if source.startswith("/dev/"):
        return source, {"format": "v4l2"}
    if source.startswith("alsa://"):
        return source.removeprefix("alsa://"), {"format": "alsa"}
    if "://" in source:
        options = {"fflags": "nobuffer", "flags": "low_delay", "rtsp_transport": "tcp"}
        return source, {"options": options, "timeout": _TIMEOUT_S}
    return source, {}


def _unreadable(path: str | Path, where: str, error: Exception) -> InputError:
    shown = without_password(str(path))
    reason = next(iter(str(error).splitlines()), "").replace(with_environment(str(path)), shown)
    reason = reason or type(error).__name__
    _, live = _form(str(path))
    convert = f"convert it: ffmpeg -i {Path(path).name} -c:v libx264 new.mp4"
    return InputError(
        f"{shown} cannot be read: {reason}" if live else f"{shown} cannot be read as a video: {reason}",
        where=where,
        remedy="check that it is there and sends something, or set shape to plan without it" if live else convert,
    )
