"""Sensors of boards, by copies of what their kernels show under /sys."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from framefit.core.conditions import Conditions
from framefit.core.journal import read_lines
from framefit.devices.conditions import Sensors, recorded_conditions


def _tree(root: Path, files: dict[str, str]) -> Sensors:
    for name, text in files.items():
        path = root / "sys" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return Sensors(root)


_CLOCK = "devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq"
_ORIN = {
    _CLOCK.format(0): "1510400",
    _CLOCK.format(5): "729600",
    "class/devfreq/17000000.gpu/cur_freq": "624750000",
    "class/thermal/thermal_zone0/type": "cpu-thermal",
    "class/thermal/thermal_zone0/temp": "51312",
    "class/thermal/thermal_zone1/type": "gpu-thermal",
    "class/thermal/thermal_zone1/temp": "49875",
    "class/hwmon/hwmon1/name": "ina3221",
    "class/hwmon/hwmon1/in1_label": "VDD_IN",
    "class/hwmon/hwmon1/in1_input": "5000",
    "class/hwmon/hwmon1/curr1_input": "1200",
    "class/hwmon/hwmon1/in2_label": "VDD_CPU_GPU_CV",
    "class/hwmon/hwmon1/in2_input": "5000",
    "class/hwmon/hwmon1/curr2_input": "300",
    "class/hwmon/hwmon1/in7_label": "sum of shunt voltages",
    "class/hwmon/hwmon1/in7_input": "6",
}


def test_a_jetson_tells_all(tmp_path: Path) -> None:
    """An Orin Nano: clocks of cores and GPU, zones, and the rail that feeds the board."""
    says = _tree(tmp_path, _ORIN).read()
    assert says.clocks_mhz == pytest.approx({"0": 1510.4, "5": 729.6, "17000000.gpu": 624.75})
    assert says.temperatures_c == {"cpu-thermal": 51.312, "gpu-thermal": 49.875}
    assert (says.power_w, says.power_of) == (pytest.approx(6.0), "VDD_IN")


def test_rails_without_a_common_one_are_added(tmp_path: Path) -> None:
    """An AGX Orin: no rail feeds all others."""
    files = dict(_ORIN) | {"class/hwmon/hwmon1/in1_label": "VDD_GPU_SOC", "class/hwmon/hwmon1/in2_label": "VDD_CPU_CV"}
    says = _tree(tmp_path, files).read()
    assert (says.power_w, says.power_of) == (pytest.approx(7.5), "VDD_GPU_SOC + VDD_CPU_CV")


def test_an_older_jetson_has_other_files(tmp_path: Path) -> None:
    """A Nano with a kernel of NVIDIA before 5.0; its PMIC reports no temperature of its own."""
    board = "bus/i2c/drivers/ina3221x/6-0040/iio:device0"
    files = {
        f"{board}/rail_name_0": "POM_5V_IN",
        f"{board}/in_power0_input": "2540",
        f"{board}/rail_name_1": "POM_5V_GPU",
        f"{board}/in_power1_input": "123",
        "class/thermal/thermal_zone4/type": "PMIC-Die",
        "class/thermal/thermal_zone4/temp": "100000",
    }
    says = _tree(tmp_path, files).read()
    assert (says.power_w, says.power_of) == (pytest.approx(2.54), "POM_5V_IN")
    assert not says.temperatures_c


def test_a_pi_does_not_know_its_power(tmp_path: Path) -> None:
    """A Pi 5: one zone, one clock for all cores, and a voltage alarm, which is no power."""
    files = {
        _CLOCK.format(number): "2400000" for number in range(4)
    } | {
        "class/thermal/thermal_zone0/type": "cpu-thermal",
        "class/thermal/thermal_zone0/temp": "63250",
        "class/hwmon/hwmon0/name": "cpu_thermal",
        "class/hwmon/hwmon0/temp1_input": "63250",
        "class/hwmon/hwmon3/name": "rpi_volt",
        "class/hwmon/hwmon3/in0_lcrit_alarm": "0",
    }  # fmt: skip
    says = _tree(tmp_path, files).read()
    assert set(says.clocks_mhz.values()) == {2400.0}
    assert says.temperatures_c == {"cpu-thermal": 63.25, "cpu_thermal": 63.25}
    assert (says.power_w, says.power_of) == (None, "")


@pytest.mark.parametrize(
    ("files", "throttled"),
    [
        ({}, None),
        ({"class/thermal/cooling_device0/type": "pwm-fan", "class/thermal/cooling_device0/cur_state": "3"}, None),
        ({"class/thermal/cooling_device1/type": "Processor", "class/thermal/cooling_device1/cur_state": "0"}, False),
        ({"class/thermal/cooling_device1/type": "cpufreq-cpu0", "class/thermal/cooling_device1/cur_state": "2"}, True),
        ({"devices/platform/soc/soc:firmware/get_throttled": "50000"}, False),  # since it was started, but not now
        ({"devices/platform/soc/soc:firmware/get_throttled": "50005"}, True),
        ({"devices/platform/soc/soc:firmware/get_throttled": "?"}, None),
    ],
)
def test_brakes_are_seen(files: dict[str, str], throttled: bool | None, tmp_path: Path) -> None:
    """The kernel's cooling devices that lower a clock, and what a Raspberry Pi's firmware says."""
    assert _tree(tmp_path, files).read().throttled is throttled


def test_counters_of_energy_wrap(tmp_path: Path) -> None:
    """An x86 host: power is what RAPL counted since the line before, also where the counter began anew."""
    package = "class/powercap/intel-rapl:0"
    files = {
        f"{package}/name": "package-0",
        f"{package}/energy_uj": "999000000",
        f"{package}/max_energy_range_uj": "1000000000",
        "class/powercap/intel-rapl:0:0/name": "core",
        "class/powercap/intel-rapl:0:0/energy_uj": "1",
        "class/hwmon/hwmon2/name": "coretemp",
        "class/hwmon/hwmon2/temp1_label": "Package id 0",
        "class/hwmon/hwmon2/temp1_input": "71000",
        "class/hwmon/hwmon5/name": "nvme",
        "class/hwmon/hwmon5/temp1_input": "90000",
    }
    sensors = _tree(tmp_path, files)
    first = sensors.read()
    (tmp_path / "sys" / package / "energy_uj").write_text("4000000\n")
    second = sensors.read()
    assert (first.power_w, first.power_of) == (None, "RAPL")
    assert second.power_w == pytest.approx(5.0 / ((second.time_ns - first.time_ns) / 1e9))
    assert first.temperatures_c == {"coretemp Package id 0": 71.0}


def test_a_sensor_that_fails_is_left_out(tmp_path: Path) -> None:
    """Zones of parts that are off give errors, and rails may go to sleep."""
    sensors = _tree(tmp_path, _ORIN)
    (tmp_path / "sys/class/thermal/thermal_zone1/temp").write_text("")
    (tmp_path / "sys/class/hwmon/hwmon1/curr1_input").unlink()
    says = sensors.read()
    assert says.temperatures_c == {"cpu-thermal": 51.312}
    assert says.power_w is None


def test_lines_are_written_by_another_process(tmp_path: Path) -> None:
    """It ends with the block."""
    file = tmp_path / "conditions.jsonl"
    with recorded_conditions(file):
        while not file.is_file() or not file.read_bytes().endswith(b"\n"):
            pass
    assert len(read_lines(file, Conditions)) >= 1


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    """Also where that is killed, which closes the pipe."""
    file = tmp_path / "conditions.jsonl"
    command = [sys.executable, "-m", "framefit.devices.conditions", str(file)]
    assert subprocess.run(command, stdin=subprocess.DEVNULL, timeout=30, check=True).returncode == 0
    assert len(read_lines(file, Conditions)) == 1
