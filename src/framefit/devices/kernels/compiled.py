"""Networks compiled for this machine's processor; code is kept on disk."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt

from framefit.core.files import write_whole
from framefit.devices.host import ROOT, cpuinfo
from framefit.devices.kernels.code import Constants, plan_of, source_of
from framefit.devices.kernels.network import Network, Vectors
from framefit.errors import InputError

Array = npt.NDArray[Any]
_VERSION = 2  # of the code that is kept
_NAME = "run"
_DIGEST = 32  # bytes


@functools.cache
def host() -> tuple[str, str]:
    """Name and features of this processor, as LLVM has them."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten()
    if "asimddp" in cpuinfo(ROOT).get("Features", "").split():  # LLVM does not list it
        features += ",+dotprod"
    return llvm.get_host_cpu_name(), features


def vectors_of(features: str) -> Vectors | None:
    """Vector registers of a processor with these features; ``None``: too narrow to pay."""
    known = set(features.split(","))
    if "+avx512f" in known and "+avx512vl" in known:
        return Vectors(lanes=16, tile=16, dot="x86.avx512.vpdpbusd.512" if "+avx512vnni" in known else "")
    if "+avx2" in known and "+fma" in known:
        return Vectors(lanes=8, tile=10, dot="x86.avx512.vpdpbusd.256" if "+avxvnni" in known else "")
    if "+neon" in known:
        dot = "aarch64.neon.sdot.v4i32.v16i8" if "+dotprod" in known else ""
        return Vectors(lanes=4, tile=16, dot=dot, signed=True)
    return None


class CompiledNetwork:
    """A network as a function of this process.

    Args:
        network: the network.
        cache: folder of compiled code.
        processor: name and features that the code may use; default: this processor's.
    """

    def __init__(self, network: Network, cache: Path | None = None, processor: tuple[str, str] | None = None) -> None:
        processor = processor or host()
        vectors = vectors_of(processor[1])
        assert vectors is not None
        constants = Constants()
        self.network = network
        plan = plan_of(network, vectors.lanes)
        text = source_of(network, vectors, plan, constants, _NAME)
        self._engine = _engine(text, processor, cache)
        self._function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(self._engine.get_function_address(_NAME))
        self._constants, self._plan = _aligned(constants.array()), plan

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array], flag: Array) -> BoundNetwork:
        """Attach contiguous arrays, and a number (int32) that ends a run if it is not 0."""
        buffer = _aligned(np.zeros(self._plan.bytes, np.uint8))
        for begin, end, zero in self._plan.zeros:
            buffer[begin:end] = zero
        arrays = (self._constants, buffer, flag, *inputs, *outputs)
        return BoundNetwork(self, self._function, arrays)


class BoundNetwork:
    """A network with its arrays; a call runs it and returns 0, or 1 if it was ended."""

    __slots__ = ("_arrays", "_function", "_network", "_pointer", "_pointers")

    def __init__(self, network: CompiledNetwork, function: Any, arrays: Sequence[Array]) -> None:
        self._network, self._function, self._arrays = network, function, arrays  # what the pointers point to
        self._pointers = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
        self._pointer = ctypes.addressof(self._pointers)

    def __call__(self) -> int:
        """Run it."""
        ended: int = self._function(self._pointer)
        return ended


def _aligned(array: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    raw = np.empty(len(array) + 64, np.uint8)
    start = -raw.ctypes.data % 64
    raw[start : start + len(array)] = array
    return raw[start : start + len(array)]


def _engine(text: str, processor: tuple[str, str], cache: Path | None) -> Any:
    """Compile code, or load it."""
    host()
    key = hashlib.sha256(repr((text, processor, llvm.llvm_version_info, _VERSION)).encode()).hexdigest()
    kept = None if cache is None else cache / f"{key}.o"
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=processor[0], features=processor[1], opt=3, jit=True
    )
    code = None if kept is None else _read(kept)
    if code is None:
        module = llvm.parse_assembly(text)
        module.verify()
        options = llvm.create_pipeline_tuning_options(speed_level=2)
        options.loop_unrolling = options.slp_vectorization = options.loop_vectorization = False
        passes = llvm.create_pass_builder(machine, options)
        passes.getModulePassManager().run(module, passes)
        code = machine.emit_object(module)
        if kept is not None:
            with contextlib.suppress(OSError, InputError):  # where it cannot be kept, it is compiled again
                kept.parent.mkdir(parents=True, exist_ok=True)
                with write_whole(kept, force=True) as file:
                    file.write(hashlib.sha256(code).digest() + code)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine


def _read(path: Path) -> bytes | None:
    """Code that was kept behind its digest: LLVM does not survive a damaged file."""
    with contextlib.suppress(OSError):
        data = path.read_bytes()
        if hashlib.sha256(data[_DIGEST:]).digest() == data[:_DIGEST]:
            return data[_DIGEST:]
    return None
