"""Other units for models that were kept from them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from framefit.core.workload import Workload
from framefit.devices.host import available_cores
from framefit.fit.situation import Situation
from framefit.fit.step import FreeStep, Way, step, with_entries


@step("units", cost="none", rank=2)
class Units(FreeStep):
    """Units that models were kept from; on this machine further cores where the workload names none."""

    def ways(self, situation: Situation, workload: Workload) -> Iterator[Way]:
        """Each: the device is opened again."""
        kept = [entry.name for entry in workload.models if entry.units is not None]
        if kept:
            freed = with_entries(workload, kept, lambda entry: msgspec.structs.replace(entry, units=None))
            yield Way(f"let {' and '.join(map(repr, kept))} use all units", freed, anew=True)
        cores = available_cores()
        if (
            not situation.described
            and workload.target == "cpu"
            and workload.cores is None
            and len(cores) > 1
            and not workload.units
        ):
            what = f"use cores {', '.join(map(str, cores))}"
            yield Way(what, msgspec.structs.replace(workload, cores=cores), anew=True)
