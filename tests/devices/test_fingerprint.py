"""Fingerprints: what makes two tables comparable, and what does not."""

from __future__ import annotations

import msgspec

from framefit.core.target import TraceUnit, Variation, resolve_target
from framefit.devices.clock import RealClock, VirtualClock
from framefit.devices.npu.device import NpuDevice
from framefit.devices.ort import OrtDevice


def test_a_described_device_is_what_it_is_described_as() -> None:
    """Its costs count, in which time it runs too; its trace unit and what people read do not."""
    target = resolve_target("vpu")
    facts = NpuDevice(target, VirtualClock()).fingerprint()
    assert facts["target"] == "vpu"
    assert facts["clock"] == "virtual"
    same = msgspec.structs.replace(
        target, description="another text", checked="another", trace=TraceUnit(buffer_events=3)
    )
    assert NpuDevice(same, VirtualClock()).fingerprint() == facts
    slower = msgspec.structs.replace(target, variation=Variation(sigma_ratio=0.5))
    assert NpuDevice(slower, VirtualClock()).fingerprint()["description"] != facts["description"]
    assert NpuDevice(target, RealClock()).fingerprint()["clock"] == "real"


def test_this_machine_is_its_facts_runtime_and_threads() -> None:
    """What a difference would change the latencies of."""
    facts = OrtDevice().fingerprint()
    assert {"cpu", "simd", "onnxruntime", "kernel"} <= facts.keys()
    assert (facts["clock"], facts["threads"], facts["spinning"]) == ("real", 1, False)
    assert facts["providers"] == "CPUExecutionProvider"
    assert OrtDevice().fingerprint() == facts
