"""Clocks, temperatures and power of this machine, as far as Linux has sensors for them.

``python -m framefit.devices.conditions FILE`` appends a line a second until its standard input ends. It is a
process of its own, so that reading slow sensors never delays a launch.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from framefit.core.conditions import Conditions
from framefit.core.files import to_json
from framefit.devices.host import CPU_FOLDER, ROOT, on_other_cores, read_text_or

__all__ = ["Sensors", "recorded_conditions"]

_REST_S = 1.0
_ELSEWHERE = re.compile(r"nvme|drivetemp|iwlwifi|acpitz|pch_|^BAT|PMIC|battery", re.IGNORECASE)
"""Sensors of other parts than processor and accelerators, or that report no temperature of their own."""
_BRAKE = re.compile(r"cpufreq|^Processor$|devfreq", re.IGNORECASE)
"""Cooling devices that lower a clock; fans do not."""
_FIRMWARE, _HELD_DOWN = "sys/devices/platform/soc/soc:firmware/get_throttled", 0xE
"""Of a Raspberry Pi; bits 1 to 3: clock capped, throttled, soft limit of the temperature."""


class Sensors:
    """The sensors of a machine.

    Power comes from the first of these that can be read: an INA3221 (its rail of the whole board, or all of its rails),
    RAPL (all packages; only root may read it), another power meter of hwmon.

    Args:
        root: folder of ``/sys``.
    """

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        hwmon = [(read_text_or(root, f"{_below(root, at)}/name"), at) for at in _sorted(root, "sys/class/hwmon/hwmon*")]
        self._temperatures = {**dict(self._zones()), **dict(self._hwmon_temperatures(hwmon))}
        self._clocks = dict(self._frequencies())
        self._rails = list(_board_rails(_rails(root, hwmon)))
        self._packages = [
            at
            for at in _sorted(root, "sys/class/powercap/intel-rapl:*")
            if at.name.count(":") == 1 and read_text_or(root, f"{_below(root, at)}/name").startswith("package")
        ]
        self._meters = [
            meter
            for name, at in hwmon
            if name != "ina3221" and not _ELSEWHERE.search(name)
            for meter in (_sorted(at, "power*_average") or _sorted(at, "power*_input"))
        ]
        self._counted: tuple[int, list[float]] | None = None
        self._brakes = [
            at / "cur_state"
            for at in _sorted(root, "sys/class/thermal/cooling_device*")
            if _BRAKE.search(read_text_or(root, f"{_below(root, at)}/type"))
        ]

    def read(self) -> Conditions:
        """What they say now; a sensor that fails is left out."""
        now_ns = time.perf_counter_ns()
        clocks = {name: value * scale for name, (at, scale) in self._clocks.items() if (value := _number(at))}
        celsius = {name: value / 1e3 for name, at in self._temperatures.items() if (value := _number(at)) is not None}
        power_w, power_of = self._power(now_ns)
        return Conditions(
            time_ns=now_ns,
            clocks_mhz=clocks,
            temperatures_c=celsius,
            power_w=power_w,
            power_of=power_of,
            throttled=self._throttled(),
        )

    def _throttled(self) -> bool | None:
        """Whether a brake of the kernel is on, or a Raspberry Pi's firmware says that it holds its clock down."""
        states = [state > 0 for at in self._brakes if (state := _number(at)) is not None]
        flags = read_text_or(self._root, _FIRMWARE)
        if re.fullmatch("(0x)?[0-9a-fA-F]+", flags):
            states.append(bool(int(flags, 16) & _HELD_DOWN))
        return any(states) if states else None

    def _zones(self) -> Iterator[tuple[str, Path]]:
        for at in _sorted(self._root, "sys/class/thermal/thermal_zone*"):
            name = read_text_or(self._root, f"{_below(self._root, at)}/type") or at.name
            if not _ELSEWHERE.search(name):
                yield name, at / "temp"

    def _hwmon_temperatures(self, hwmon: list[tuple[str, Path]]) -> Iterator[tuple[str, Path]]:
        for name, folder in hwmon:
            for at in _sorted(folder, "temp*_input"):
                label = read_text_or(folder, at.name.replace("_input", "_label"))
                full = f"{name} {label}".strip()
                if name and not _ELSEWHERE.search(full):
                    yield full, at

    def _frequencies(self) -> Iterator[tuple[str, tuple[Path, float]]]:
        for at in _sorted(self._root, f"{CPU_FOLDER}/cpu[0-9]*/cpufreq/scaling_cur_freq"):
            yield at.parts[-3].removeprefix("cpu"), (at, 1e-3)  # kHz
        for at in _sorted(self._root, "sys/class/devfreq/*/cur_freq"):
            yield at.parts[-2], (at, 1e-6)  # Hz

    def _power(self, now_ns: int) -> tuple[float | None, str]:
        """Watts, and where."""
        watts = [rail.watts() for rail in self._rails]
        if watts and None not in watts:
            return sum(one or 0.0 for one in watts), " + ".join(rail.name for rail in self._rails)
        joules = [_number(at / "energy_uj") for at in self._packages]
        if joules and None not in joules:
            counted = [(one or 0.0) / 1e6 for one in joules]
            before, self._counted = self._counted, (now_ns, counted)
            if before is None:
                return None, "RAPL"
            spent = 0.0
            for at, start, end in zip(self._packages, before[1], counted, strict=True):
                wraps = (_number(at / "max_energy_range_uj") or 0.0) / 1e6 if end < start else 0.0
                spent += end - start + wraps
            return spent / max((now_ns - before[0]) / 1e9, 1e-9), "RAPL"
        microwatts = [_number(at) for at in self._meters]
        if microwatts and None not in microwatts:
            return sum(one or 0.0 for one in microwatts) / 1e6, "hwmon"
        return None, ""


class _Rail:
    """A rail of an INA3221: files whose product is its power.

    Args:
        name: its label.
        files: of voltage and current, or of power.
        scale: from their product to watts.
    """

    def __init__(self, name: str, files: tuple[Path, ...], scale: float) -> None:
        self.name, self._files, self._scale = name, files, scale

    def watts(self) -> float | None:
        """What flows now; ``None``: it cannot be read."""
        product = self._scale
        for at in self._files:
            value = _number(at)
            if value is None:
                return None
            product *= value
        return product


def _rails(root: Path, hwmon: list[tuple[str, Path]]) -> Iterator[_Rail]:
    """Of hwmon, or of the driver in NVIDIA's kernels before 5.0."""
    for name, folder in hwmon:
        for at in _sorted(folder, "in*_label") if name == "ina3221" else ():
            number = at.name.removeprefix("in").removesuffix("_label")
            volts, amperes = folder / f"in{number}_input", folder / f"curr{number}_input"
            if volts.is_file() and amperes.is_file():
                yield _Rail(read_text_or(folder, at.name), (volts, amperes), 1e-6)  # mV x mA
    for at in _sorted(root, "sys/bus/i2c/drivers/ina3221x/*/iio:device*/rail_name_*"):
        number = at.name.rpartition("_")[2]
        yield _Rail(read_text_or(at.parent, at.name), (at.parent / f"in_power{number}_input",), 1e-3)  # mW


def _board_rails(rails: Iterator[_Rail]) -> list[_Rail]:
    """The rail that feeds the others, where there is one."""
    every = [rail for rail in rails if rail.name not in ("", "NC", "sum of shunt voltages")]
    return [rail for rail in every if rail.name.endswith("_IN")] or every


def _sorted(folder: Path, pattern: str) -> list[Path]:
    return sorted(folder.glob(pattern))


def _below(root: Path, path: Path) -> str:
    return str(path.relative_to(root))


def _number(path: Path) -> float | None:
    try:
        return float(path.read_text())
    except (OSError, ValueError):  # of a sensor that sleeps, or is for root alone
        return None


@contextlib.contextmanager
def recorded_conditions(file: Path) -> Iterator[None]:
    """Append a line a second to a file, from another process on other cores, for a while.

    Args:
        file: lines of :class:`Conditions`.
    """
    command = [sys.executable, "-m", __name__, str(file)]
    with on_other_cores():
        process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)  # noqa: S603 - no Ctrl-C there
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            process.communicate(timeout=5 * _REST_S)


def main(file: str) -> None:
    """Append lines until the standard input ends, as it does when the process ends that began this one."""
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        os.nice(10)
    sensors = Sensors()
    with Path(file).open("a", buffering=1) as lines:
        while True:
            lines.write(to_json(sensors.read(), indent=None).strip() + "\n")
            if select.select([sys.stdin], [], [], _REST_S)[0]:
                return


if __name__ == "__main__":
    main(sys.argv[1])
