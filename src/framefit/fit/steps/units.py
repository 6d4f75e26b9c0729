"""Other units for models that were kept from them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from framefit.core.workload import Workload
from framefit.devices.host import available_cores
from framefit.errors import FramefitError
from framefit.fit.situation import Situation, is_better
from framefit.fit.step import Offer, Step, step, with_entries


@step("units", cost="none", rank=1)
class Units(Step):
    """Units that models were kept from; on this machine further cores where the workload names none."""

    def propose(self, situation: Situation) -> list[Offer]:
        """Each that planning anew shows to be better: the device is opened again."""
        offers = []
        for what, workload in self._ways(situation):
            try:
                after = Situation.of(self.context.app, workload, situation.margin_ratio, self.context.notify)
            except FramefitError:
                continue  # a model does not run there: no step
            if is_better(situation.standing, after.standing):
                offers.append(self.replanned(what, workload, after.standing, situation))
        return offers

    @staticmethod
    def _ways(situation: Situation) -> Iterator[tuple[str, Workload]]:
        workload = situation.workload
        kept = [entry.name for entry in workload.models if entry.units is not None]
        if kept:
            freed = with_entries(workload, kept, lambda entry: msgspec.structs.replace(entry, units=None))
            yield f"let {' and '.join(map(repr, kept))} use all units", freed
        cores = available_cores()
        if (
            not situation.described
            and workload.target == "cpu"
            and workload.cores is None
            and len(cores) > 1
            and not workload.units
        ):
            yield f"use cores {', '.join(map(str, cores))}", msgspec.structs.replace(workload, cores=cores)
