"""What a changed model loses against the original on examples that neither was made with, and how sure that is."""

from __future__ import annotations

import math
from typing import Literal

from framefit.core.files import Record

__all__ = ["Acceptance", "Unseen"]


Measure = Literal["top1", "classes", "boxes", "outputs"]
Unseen = Literal["validation", "test", "part of test", "frames"]
_MEASURED: dict[Measure, str] = {
    "top1": "top-1",
    "classes": "agreement of classes",
    "boxes": "agreement of boxes",
    "outputs": "agreement of outputs",
}
_UNITS: dict[Unseen, tuple[str, str]] = {
    "validation": ("validation example", "validation examples"),
    "test": ("test example", "test examples"),
    "part of test": ("test example", "test examples"),
    "frames": ("frame", "frames"),
}


class Acceptance(Record, kw_only=True):
    """A changed model beside the original, on the same examples.

    Attributes:
        data: "validation": examples that the user gave for choices, or that the network was not trained on; "test";
            "part of test": where the network has seen the validation data, a third of the test data is for choices, and
            the rest for the final test; "frames": of the user's stream, without labels.
        measure: "top1": part of the examples whose class is right. Without labels the original is right: "classes":
            part of the frames with its likeliest class; "boxes": F1 of boxes after the model's own postprocessing;
            "outputs": variance of the original's outputs over the sum of it and the squared error.
        examples: number of examples.
        before: mean score of the original, 0 to 1; without labels 1.
        after: mean score of the changed model.
        interval: 90 % interval of the loss, before less after, from the differences by example.
        max_drop: the loss that is allowed.
    """

    data: Unseen
    measure: Measure = "top1"
    examples: int
    before: float
    after: float
    interval: tuple[float, float]
    max_drop: float

    @property
    def drop(self) -> float:
        """Mean loss; negative: a gain."""
        return self.before - self.after

    @property
    def kept(self) -> bool:
        """Whether the mean loss is allowed: what the promise is about."""
        return self.drop <= self.max_drop + 1e-9

    @property
    def refuted(self) -> bool:
        """Whether more is lost than is allowed, and these examples are enough to tell that anything is lost."""
        return not self.kept and self.interval[0] > 0

    @property
    def deciding(self) -> int | None:
        """Examples that would decide whether the allowed loss is exceeded; ``None``: no number of them, for it is met.

        The interval's half width falls with the root of their number.
        """
        distance = abs(self.max_drop - self.drop)
        half = (self.interval[1] - self.interval[0]) / 2
        return math.ceil(self.examples * (half / distance) ** 2) if distance > 1e-9 else None

    @property
    def text(self) -> str:
        """The figures as a part of a sentence."""
        low, high = self.interval
        one, many = _UNITS[self.data]
        return (
            f"{_MEASURED[self.measure]} {100 * self.before:.2f} -> {100 * self.after:.2f} %, "
            f"{100 * self.drop:.2f} points lost ({100 * low:.2f} to {100 * high:.2f} with 90 %) on "
            f"{self.examples:,} {one if self.examples == 1 else many}, {100 * self.max_drop:g} allowed"
        )
