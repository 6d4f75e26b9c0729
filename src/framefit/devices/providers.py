"""Execution providers of ONNX Runtime: those that are built in, and those that installed packages add.

A package adds one as its vendor publishes it: a module ``onnxruntime_ep_NAME`` with ``get_library_path`` and
``get_ep_names`` or ``get_ep_name`` ("Plugin Execution Provider Library Packaging Guidance", onnxruntime.ai). It is
registered when a provider is asked for that is not built in, and tells which devices of this machine it runs on.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import logging
import pkgutil
from collections.abc import Sequence
from typing import Any

from framefit.core.run_record import FoundDevice
from framefit.errors import InputError

logger = logging.getLogger(__name__)
_PREFIX = "onnxruntime_ep_"
_NO_DEVICE = ("AzureExecutionProvider",)  # it runs elsewhere


def found_providers() -> tuple[FoundDevice, ...]:
    """The execution providers that run on a device of this machine; of an added one each of its devices."""
    import onnxruntime

    listed = [
        FoundDevice(name=name, description=f"ONNX Runtime {onnxruntime.__version__}")
        for name in onnxruntime.get_available_providers()
        if name not in _NO_DEVICE
    ]
    try:
        added = _added()
    except InputError as error:
        logger.warning("%s", error)
        return tuple(listed)
    for name, package in added.items():
        for number, device in enumerate(_devices(name)):
            kind = str(device.device.type).rpartition(".")[2]
            described = f"{device.device.vendor} {kind}, device_id = {number}, by {package}"
            listed.append(FoundDevice(name=name, description=described))
    return tuple(listed)


def require_provider(provider: str, where: str) -> None:
    """Refuse a provider that nothing here has, or that runs on no device of this machine.

    Args:
        provider: its name.
        where: that names it.

    Raises:
        InputError: so it is, or the package that adds it cannot be loaded.
    """
    import onnxruntime

    available = onnxruntime.get_available_providers()
    if provider in available:
        return
    added = _added()
    if provider in added:
        if not _devices(provider):
            raise InputError(
                f"{provider} of the package {added[provider]} finds no device of this machine that it runs on",
                where=where,
                remedy="install the device's driver, or choose another provider",
            )
        return
    known = [*available, *added]
    near = difflib.get_close_matches(provider, known, n=1)
    raise InputError(
        f"ONNX Runtime {onnxruntime.__version__} here has no provider {provider!r}"
        + (f"; did you mean {near[0]!r}?" if near else ""),
        where=where,
        remedy=f"choose from {', '.join(known)}, or install a package that adds it (onnxruntime-ep-...)",
    )


def started(source: bytes | str, options: Any, providers: Sequence[Any]) -> Any:
    """Start a session; a provider that fails is an error, not a printed line and a session without it.

    Args:
        source: ONNX file, as bytes or a path.
        options: of this session alone: providers that packages add are entered there.
        providers: in order, each a name or a name with options. ``device_id`` of an added one is the number of its
            device in :func:`found_providers`.
    """
    import onnxruntime

    builtin = onnxruntime.get_available_providers()
    pairs = [(one, {}) if isinstance(one, str) else one for one in providers]
    if all(name in builtin for name, _ in pairs):
        return onnxruntime.InferenceSession(source, options, providers=providers, enable_fallback=0)
    for name, given in pairs:  # names in the call would replace those in the options
        if name == "CPUExecutionProvider":
            continue  # it is always there, for what the others do not run
        if name in builtin:
            options.add_provider(name, given)
            continue
        devices, number = _devices(name), int(given.get("device_id", 0))
        if number >= len(devices):
            raise ValueError(f"{name} has {len(devices)} devices here, and device_id is {number}")
        options.add_provider_for_devices([devices[number]], {k: v for k, v in given.items() if k != "device_id"})
    return onnxruntime.InferenceSession(source, options, enable_fallback=0)


def _devices(provider: str) -> list[Any]:
    """Devices of this machine that an added provider runs on."""
    import onnxruntime

    return [device for device in onnxruntime.get_ep_devices() if device.ep_name == provider]


def _added() -> dict[str, str]:
    """Providers that installed packages add, and the packages; they are registered with the runtime.

    Raises:
        InputError: a package cannot be loaded.
    """
    import onnxruntime

    if not hasattr(onnxruntime, "register_execution_provider_library"):  # before 1.22
        return {}
    modules = sorted(one.name for one in pkgutil.iter_modules() if one.name.startswith(_PREFIX))
    return {name: module.replace("_", "-") for module in modules for name in _registered(module)}


@functools.cache
def _registered(module: str) -> tuple[str, ...]:
    """Providers of a package, registered once.

    Raises:
        InputError: it cannot be loaded.
    """
    import onnxruntime

    try:
        package = importlib.import_module(module)
        onnxruntime.register_execution_provider_library(module, str(package.get_library_path()))
        return tuple(package.get_ep_names() if hasattr(package, "get_ep_names") else [package.get_ep_name()])
    except Exception as error:  # a package's, or the runtime's
        name = module.replace("_", "-")
        raise InputError(
            f"the package {name} cannot be loaded: {str(error) or type(error).__name__}",
            remedy=f"pip install --upgrade {name}, or remove it",
        ) from error
