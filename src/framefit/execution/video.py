"""Frames of video files and cameras, decoded on a thread of their own.

Files are decoded ahead, and wait to be asked. What is live is not asked: each frame is handed over as soon as it is
there (:class:`LiveVideo`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from framefit.devices.device import Array
from framefit.devices.host import available_cores
from framefit.errors import FramefitError, InputError, needs_extra

__all__ = ["LiveVideo"]


VIDEO_SUFFIXES = (".mp4", ".m4v", ".mkv", ".mov", ".avi", ".webm", ".mpg")
_AHEAD_BYTES = 1 << 26  # of decoded frames
_LEAST_AHEAD, _MOST_AHEAD = 4, 64
_POLL_S = 0.2
_AGAIN_S = 1.0  # until a live source is opened again
_TIMEOUT_S = 5.0  # of a live source
_Ready = queue.Queue["Array | FramefitError | None"]

logger = logging.getLogger(__name__)


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


class LiveVideo:
    """A camera or an address that is watched on a thread of its own; each image is handed over at once.

    Where it ends or fails it is opened again every second, until :meth:`stop`: windows without an image are counted,
    and a camera that is plugged in again goes on.

    Args:
        source: a V4L2 device, or an address that FFmpeg opens.
        where: for messages.
        give: gets each image, height x width x 3, RGB, uint8.
        but: cores that are left alone.
    """

    def __init__(self, source: str, where: str, give: Callable[[Array], None], *, but: Collection[int]) -> None:
        self._source, self._where, self._give, self._but = source, where, give, frozenset(but)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="framefit-camera", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching, at the latest with the next image; the thread ends by itself."""
        self._stopped.set()

    def _watch(self) -> None:
        _without_priority()
        others = set(available_cores()) - self._but
        if others and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, others)
        reason = ""
        while not self._stopped.is_set():
            before = reason
            try:
                with _opened(self._source, self._where) as (container, video):
                    for image in _images(container, video, self._source, self._where):
                        if self._stopped.is_set():
                            return
                        self._give(image)
                reason = "it has ended"
            except Exception as error:  # noqa: BLE001 - whatever a decoder raises, the run goes on
                reason = error.what if isinstance(error, FramefitError) else repr(error)
            if reason != before:
                logger.warning("%s: %s; it is opened again every second", self._where, reason)
            self._stopped.wait(_AGAIN_S)


def video_shape(path: str | Path, where: str) -> tuple[int, int, int]:
    """Height, width and 3, as the file's header says.

    Raises:
        InputError: the file is missing, or no video.
        MissingExtraError: without the extra ``video``.
    """
    with _opened(path, where) as (_, video):
        height, width = video.codec_context.height, video.codec_context.width
    if not height or not width:
        raise InputError(f"{path} does not say the size of its images", where=where, remedy="convert it, or set shape")
    return height, width, 3


@contextlib.contextmanager
def _opened(path: str | Path, where: str) -> Iterator[tuple[Any, Any]]:
    """The file's container and its first video, for a single thread."""
    with needs_extra("av", "video"):
        import av
    try:
        container = av.open(str(path), **_form(str(path)))
    except FileNotFoundError:
        raise InputError(f"no such file {path}", where=where, remedy="check the path") from None
    except (av.error.FFmpegError, OSError, ValueError) as error:
        raise _unreadable(path, where, error) from error
    with container:
        if not container.streams.video:
            raise InputError(f"{path} has no video", where=where, remedy="give a file with images")
        video = container.streams.video[0]
        video.codec_context.thread_count = 1  # threads of the decoder could be on the beat's core
        yield container, video


def _decode(path: str | Path, where: str, ready: _Ready, stop: threading.Event) -> None:
    """Put the file's images into a queue, and at the end ``None``, or an error; ends when it is told to."""
    _without_priority()

    def put(item: Array | FramefitError | None) -> None:
        while not stop.is_set():
            with contextlib.suppress(queue.Full):
                ready.put(item, timeout=_POLL_S)
                return

    try:
        with _opened(path, where) as (container, video):
            for image in _images(container, video, path, where):
                if stop.is_set():
                    return
                put(image)
    except FramefitError as error:
        put(error)
    except Exception as error:  # noqa: BLE001 - or who waits for an image would wait for ever
        put(_unreadable(path, where, error))
    else:
        put(None)


def _without_priority() -> None:
    """Give up a real-time priority that this thread has from the one that made it."""
    if hasattr(os, "SCHED_OTHER"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _images(container: Any, video: Any, path: str | Path, where: str) -> Iterator[Array]:
    """All images, in the size that the header says."""
    import av

    size = {"height": video.codec_context.height, "width": video.codec_context.width}
    try:
        for frame in container.decode(video):
            yield frame.to_ndarray(format="rgb24", **size)
    except av.error.FFmpegError as error:
        raise _unreadable(path, where, error) from error


def _form(source: str) -> dict[str, Any]:
    """How FFmpeg opens a source: a camera by its driver, an address with as little delay as it can."""
    if source.startswith("/dev/"):
        return {"format": "v4l2"}
    if "://" in source:
        return {"options": {"fflags": "nobuffer", "flags": "low_delay", "rtsp_transport": "tcp"}, "timeout": _TIMEOUT_S}
    return {}


def _unreadable(path: str | Path, where: str, error: Exception) -> InputError:
    reason = next(iter(str(error).splitlines()), "") or type(error).__name__
    live = bool(_form(str(path)))
    convert = f"convert it: ffmpeg -i {Path(path).name} -c:v libx264 new.mp4"
    return InputError(
        f"{path} cannot be read as a video: {reason}",
        where=where,
        remedy="check that it is there and sends images, or set shape to plan without it" if live else convert,
    )
