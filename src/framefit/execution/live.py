"""Sources that are not asked for their frames: cameras, microphones, addresses, and what other packages bring.

Each is watched on a thread of its own, off the beat's cores, and hands a frame over as soon as it is there.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import numpy as np

from framefit.core.functions import error_text, load_plugin
from framefit.core.workload import StreamEntry, Workload, address_scheme, with_environment, without_password
from framefit.devices.device import Array
from framefit.devices.host import keep_off
from framefit.errors import FramefitError, InputError, UnsupportedError
from framefit.execution.video import images, opened_media, video_shape

__all__ = ["LiveSource", "live_frames", "sample_rate"]

SOURCE_GROUP = "framefit.sources"
"""Entry points of packages that bring sources: ``scheme = "module:frames"``, called with the address; yields arrays."""
_FFMPEG = frozenset({None, "rtsp", "rtsps", "rtmp", "http", "https", "srt", "udp", "tcp", "alsa"})  # None: /dev/video
_LAYOUTS = {1: "mono", 2: "stereo"}
_AGAIN_S = 1.0  # until a source is opened again

logger = logging.getLogger(__name__)
Frames = Callable[[], "contextlib.AbstractContextManager[Iterable[Array]]"]


class LiveSource:
    """A source that is watched on a thread of its own; each frame is handed over at once.

    Where it ends or fails it is opened again every second, until :meth:`stop`: windows without a frame are counted,
    and a camera that is plugged in again goes on.

    Args:
        frames: opens it.
        where: for messages.
        give: gets each frame.
        but: cores that are left alone.
    """

    def __init__(self, frames: Frames, where: str, give: Callable[[Array], None], *, but: Collection[int]) -> None:
        self._frames, self._where, self._give, self._but = frames, where, give, frozenset(but)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="framefit-live", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching, at the latest with the next frame; the thread ends by itself."""
        self._stopped.set()

    def _watch(self) -> None:
        keep_off(self._but)
        reason = ""
        while not self._stopped.is_set():
            before = reason
            try:
                with self._frames() as frames:
                    for frame in frames:
                        if self._stopped.is_set():
                            return
                        self._give(frame)
                reason = "it has ended"
            except Exception as error:  # noqa: BLE001 - whatever a decoder or a package raises, the run goes on
                reason = error.what if isinstance(error, FramefitError) else error_text(error)
            if reason != before:
                logger.warning("%s: %s; it is opened again every second", self._where, reason)
            self._stopped.wait(_AGAIN_S)


def live_frames(entry: StreamEntry, where: str, *, sample_hz: int | None = None) -> Frames:
    """What opens a live stream.

    Images are height x width x 3, RGB, uint8. Sound is channels x samples, float32 between -1 and 1, resampled.

    Args:
        entry: of the workload.
        where: for messages.
        sample_hz: of sound; see :func:`sample_rate`.

    Raises:
        InputError: a package that brings the source cannot be imported.
        UnsupportedError: no package brings it.
    """
    source, scheme = entry.source, address_scheme(entry.source)
    if scheme not in _FFMPEG:
        return _plugin_frames(source, where)
    if entry.block is None:
        return lambda: _video(source, where)
    assert sample_hz is not None
    channels, block = live_shape(entry, where)
    return lambda: _sound(source, where, channels, block, entry.hop or block, sample_hz)


def live_shape(entry: StreamEntry, where: str) -> tuple[int, ...]:
    """Shape of one frame; a camera is opened where it does not stand in the workload.

    Raises:
        InputError: it cannot be opened, or does not say it.
    """
    if entry.block is not None:
        shape = entry.shape or (1, entry.block)
        if len(shape) != 2 or shape[0] not in _LAYOUTS or shape[1] != entry.block:
            raise InputError(
                f"shape is {list(shape)}, and frames of sound are channels x samples: [1, {entry.block}]",
                where=where,
                remedy="leave shape out for one channel",
            )
        return shape
    if entry.shape is not None:
        return entry.shape
    if address_scheme(entry.source) not in _FFMPEG:
        raise InputError(
            f"{without_password(entry.source)} does not say the size of its frames", where=where, remedy="set shape"
        )
    return video_shape(entry.source, where)


def sample_rate(entry: StreamEntry, workload: Workload) -> int | None:
    """Samples a second of a live sound: as many as its rate and ``hop`` say; ``None`` for other streams.

    Raises:
        InputError: that is no whole number.
    """
    if not entry.live or entry.block is None:
        return None
    rate_hz = workload.rates_hz.get(entry.name)
    if rate_hz is None:
        raise InputError(
            "sound comes at a rate, and a sporadic model reads it",
            where=f"stream {entry.name!r}",
            remedy="leave block out",
        )
    samples = rate_hz * (entry.hop or entry.block)
    if abs(samples - round(samples)) > 1e-6 * samples:
        raise InputError(
            f"{rate_hz:g} Hz times {entry.hop or entry.block} samples are {samples:g} samples a second",
            where=f"stream {entry.name!r}",
            remedy="choose rate_hz and hop so that it is the model's sample rate: 100 Hz and 160 for 16 kHz",
        )
    return round(samples)


def _plugin_frames(source: str, where: str) -> Frames:
    scheme = address_scheme(source)
    assert scheme is not None
    make = load_plugin(SOURCE_GROUP, scheme, where)
    if make is None:
        raise UnsupportedError(
            f"source = {without_password(source)!r} is not supported",
            where=where,
            remedy=f'install a package with an entry point {scheme!r} in {SOURCE_GROUP}, or use a "module:function"',
        )

    @contextlib.contextmanager
    def frames() -> Iterator[Iterable[Array]]:
        made: Any = make(with_environment(source))
        try:
            yield made
        finally:
            if hasattr(made, "close"):
                made.close()

    return frames


@contextlib.contextmanager
def _video(source: str, where: str) -> Iterator[Iterator[Array]]:
    with opened_media(source, where) as (container, video):
        yield images(container, video, source, where)


@contextlib.contextmanager
def _sound(source: str, where: str, channels: int, block: int, hop: int, sample_hz: int) -> Iterator[Iterator[Array]]:
    import av

    with opened_media(source, where, kind="audio") as (container, audio):
        resampler = av.AudioResampler(format="fltp", rate=sample_hz)
        parts = (part.to_ndarray() for frame in container.decode(audio) for part in resampler.resample(frame))
        yield overlapping((_mixed(part, channels, where) for part in parts), block, hop)


def _mixed(sound: Array, channels: int, where: str) -> Array:
    """In so many channels: the mean of all, or one several times."""
    if len(sound) == channels:
        return sound
    if channels == 1:
        mean: Array = sound.mean(axis=0, keepdims=True)
        return mean
    if len(sound) == 1:
        return sound.repeat(channels, axis=0)
    raise InputError(f"it has {len(sound)} channels, and shape {channels}", where=where, remedy="set shape for one")


def overlapping(parts: Iterable[Array], block: int, hop: int) -> Iterator[Array]:
    """Blocks of sound out of parts of any length: channels x samples; each begins ``hop`` samples after the last."""
    waiting: Array | None = None
    skip = 0  # of the samples that are next, where hop is more than a block
    for part in parts:
        waiting = part if waiting is None else np.concatenate([waiting, part], axis=1)
        while True:
            dropped = min(skip, waiting.shape[1])
            waiting, skip = waiting[:, dropped:], skip - dropped
            if skip or waiting.shape[1] < block:
                break
            yield np.ascontiguousarray(waiting[:, :block])
            skip = hop
