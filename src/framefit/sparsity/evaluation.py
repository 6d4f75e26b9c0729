"""What an assignment is worth: weights from the database, batch norm again, forwards. Needs the extra ``train``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from framefit.devices.host import cpuinfo
from framefit.sparsity.database import Database
from framefit.sparsity.problem import Assignment
from framefit.sparsity.solver import Ledger
from framefit.training.data import Examples
from framefit.training.evaluate import evaluate, reestimate
from framefit.training.extra import torch
from framefit.training.network import Network, load_state

__all__ = ["Evaluator", "quick"]


def quick() -> Any:
    """A context for forwards that are only compared with each other: bfloat16 where that is multiplied in hardware.

    They take less than half of the time there. Final figures are float32's.
    """
    amx = "amx_bf16" in cpuinfo(Path("/")).get("flags", "").split()
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=amx)


class Evaluator:
    """Accuracy of assignments on a subset of the validation data; costs only forwards, :func:`quick` ones.

    Args:
        network: gets the weights of each assignment, one after the other.
        database: where they come from.
        examples: of the validation data.
        calibration: inputs for the batch norm's statistics; float32, N x ...
        ledger: gets images and evaluations.
    """

    def __init__(
        self,
        network: Network,
        database: Database,
        examples: Examples,
        calibration: npt.NDArray[np.float32],
        ledger: Ledger,
    ) -> None:
        self._network, self._database, self._ledger = network, database, ledger
        self._examples, self._calibration = examples, calibration

    def __call__(self, assignment: Assignment) -> float:
        """Top-1, 0 to 1."""
        load_state(self._network, self._database.weights(assignment))
        images = len(self._examples)
        with quick():
            if self._network.norms:
                reestimate(self._network, self._calibration)
                images += len(self._calibration)
            found = evaluate(self._network, self._examples).top1
        self._ledger.forwarded(images, evaluations=1)
        return found
