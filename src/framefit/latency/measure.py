"""``framefit measure``: the latency of each layer on a device, as a latency table.

This module decides what a campaign measures, in which order and for how long, from the first layer to the audit.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from framefit.core.conditions import Conditions
from framefit.core.files import check_new, read_record, write_record
from framefit.core.latency_table import (
    AuditedNetwork,
    LatencyTable,
    MachineCorrection,
    MeasuredNetwork,
    Unmeasured,
    check_fingerprint,
    read_table,
)
from framefit.core.model import Model, configuration
from framefit.core.model.builtin import load_model
from framefit.core.settings import Notify, silent, verb
from framefit.devices.conditions import Sensors
from framefit.devices.device import Device
from framefit.devices.host import flushed_denormals, pinned
from framefit.devices.npu.cycles import unit_named
from framefit.devices.ort import slowdown_by_weight_inputs
from framefit.errors import FramefitError, InputError
from framefit.latency.audit import (
    LEAST_NETWORKS,
    SPEED_RATIO,
    audit,
    audit_networks,
    audited_network,
    check_correction,
    check_launches,
    correction_path,
    stored_correction,
    too_great,
    with_audit,
)
from framefit.latency.campaign import LEAST_REPEATS, MOST_KEPT, MOST_REPEATS, NARROW, Campaign
from framefit.latency.estimate import Estimator, open_target
from framefit.latency.fusion import known_groups, measured_fusions, recorded
from framefit.latency.interpolation import ShapeChoice
from framefit.latency.rounds import Rounds, interval
from framefit.latency.settings import CalibrateSettings, MeasureSettings
from framefit.latency.subjects import GridSpec, Subject, distinct_layers, grid_models, layer_key
from framefit.latency.terms import layers_digest

__all__ = ["calibrate", "measure"]


_REFINE_SECONDS = 30.0  # by default: a third of the time for a table of a MobileNetV2
_AUDIT_SECONDS = 3.0  # of each audited network
_NAMED = 5  # layers in a warning
_FIRST_SHAPES = 6  # of a grid, before the uncertainty is estimated for the first time
_MORE_SHAPES = 0.25  # of the number that was measured, in each turn
_TRIED = 3  # launches of each model, to estimate the duration of a measurement
_OVERHEAD_RUNS = 60  # of auxiliary layers of two kinds
_WARM_UP = 4  # launches
_ATTEMPTS = 3  # at rounds that were slow
_FEW_SLOW, _MOST_SLOW = 0.2, 0.4  # of the rounds: fewer are not used anyway; more spoil the correction
_PAUSE_NS = 2_000_000_000
_MISMATCH = 0.03  # of a whole network: layers that add up to something else


class _TableBuilder:
    """Measures layers of models, of audited networks and of a grid on one unit; the device's clock counts from now.

    Attributes:
        grouped: the models that were added, with fused groups as layers.
        known: networks that were measured whole, by which the table is corrected.
        warnings: so far, besides those of the table.
    """

    def __init__(
        self,
        device: Device,
        unit: str,
        settings: MeasureSettings,
        earlier: LatencyTable | None,
        *,
        stop: Callable[[], bool] | None,
        notify: Notify,
        on_round: Callable[[int, int], None] | None,
        audited: bool = False,
    ) -> None:
        self._device, self._unit, self._settings, self._earlier = device, unit, settings, earlier
        self._audited = audited
        self._stop, self._notify, self._on_round = stop, notify, on_round
        self._as_lowered = device.capabilities.lowers and settings.fusions == "device"
        self._begun = device.clock.now_ns()
        self._models: list[Model] = []
        self.grouped: list[Model] = []
        self.known: tuple[AuditedNetwork, ...] = ()
        self._subjects: dict[str, Subject] = {}
        self.disturbed = ""
        self._failed: dict[str, Unmeasured] = {}
        known = None if earlier is None else earlier.fusions
        self._fusions = list(known or ())  # those of the first model that had a pair are used
        self.warnings: list[str] = []

    def add(self, model: Model) -> None:
        """Add a model's layers."""
        grouped, subjects, failed = self._layers(model)
        self._models.append(model)
        self.grouped.append(grouped)
        if model.weight_inputs and self._device.capabilities.lowers:
            self.warnings.append(_weight_inputs(model))
        self._subjects |= {subject.key: subject for subject in subjects if subject.key not in self._subjects}
        self._failed |= {str((layer.op, layer.configuration)): layer for layer in failed}

    def correct_by(self, stored: MachineCorrection) -> bool:
        """Correct the table by networks that were measured before; false: the device has changed since then."""
        applies, warning = check_correction(stored, self._device)
        self.warnings += [warning] * bool(warning)
        if applies and stored.audit is not None:
            self.known = stored.audit.networks
        return applies

    def audit(self, networks: Sequence[Model]) -> str:
        """Measure whole networks and their layers, if there is enough time; return why not, or "".

        On a resident unit each network has a campaign of its own, as a model that a user measures: what a layer's first
        launch finds in the caches depends on how much is launched before it.
        """
        settings = self._settings
        subjects = {subject.key for network in networks for subject in self._layers(network)[1]}
        reserved_s = 0.0  # for the models' own layers, should the audit take longer than expected
        if settings.max_seconds is not None and networks:
            needed = self._needed_seconds(networks, len(subjects | self._subjects.keys()))
            left = settings.max_seconds - (self._device.clock.now_ns() - self._begun) / 1e9
            if needed > left:
                reason = (
                    f"with {len(networks)} whole networks measuring would take about {needed:.0f} s, but "
                    f"{max(left, 0):.0f} s are left"
                )
                self.warnings.append(f"not audited: {reason}: raise --max-seconds, or lower --repeats")
                return reason
            reserved_s = self._needed_seconds((), len(self._subjects))
        known: list[AuditedNetwork] = []
        noises: list[str] = []
        for group in [[network] for network in networks] if self._as_lowered else [networks] * bool(networks):
            part = _TableBuilder(
                self._device,
                self._unit,
                msgspec.structs.replace(settings, max_seconds=None),
                None,
                stop=lambda: self._ended(reserved_s),
                notify=self._notify,
                on_round=self._on_round,
                audited=True,
            )
            for network in group:
                part.add(network)
            rows, noise = part.audited_rows()
            if self._ended(reserved_s):
                self.warnings.append("not audited: the campaign ended before all networks were measured")
                return ""
            known += rows
            noises += noise[:1]
            self.warnings += [text for text in part.warnings if text not in self.warnings]
            self.disturbed = self.disturbed or part.disturbed
        if noises:
            self.warnings.append(f"in {len(noises)} of {len(networks)} audited networks' campaigns: {noises[0]}")
        self.known += tuple(known)
        return ""

    def audited_rows(self) -> tuple[list[AuditedNetwork], list[str]]:
        """The models as networks that were measured whole, if all of their layers have entries; and what was noisy."""
        table = self.table([], None)
        rows: list[AuditedNetwork] = []
        if not table.entries:
            return rows, []
        estimator = Estimator(msgspec.structs.replace(table, networks=()), self._unit)
        taken = {network.digest: network.alone_ns for network in table.networks}
        for model in self.grouped:
            alone_ns = taken.get(layers_digest(model))
            if alone_ns is None:  # it does not run whole, as a warning says
                continue
            try:
                rows.append(audited_network(model, alone_ns, estimator))
            except InputError as error:
                self.warnings.append(f"{model.name}: {error.where or 'the table'}: {error.what}")
        return rows, [text for text in table.warnings if text not in self.warnings]

    def table(self, points: Sequence[Model], most: int | None) -> LatencyTable:
        """Measure everything: at most ``most`` one-layer models of a grid; ``None``: as many as there is time for."""
        settings = self._settings
        grid: dict[str, Subject] = {}
        for point in points:
            _, subjects, failed = self._layers(point)
            grid |= {subject.key: subject for subject in subjects if subject.key not in self._subjects}
            self._failed |= {str((layer.op, layer.configuration)): layer for layer in failed}
        if most is None and settings.max_seconds is None:
            most = len(grid)
        most = len(grid) if most is None else min(most, len(grid))
        adaptive = most < len(grid) or settings.max_seconds is not None
        choice = ShapeChoice(list(grid.values()))
        first = choice.take((), min(_FIRST_SHAPES, most)) if adaptive else list(grid.values())
        layers = [*self._subjects.values(), *first]
        self._notify(f"compiling {len(layers)} distinct layers")
        campaign = Campaign(
            self._device,
            self._unit,
            layers,
            resident=self._as_lowered,
            auxiliary=settings.auxiliary,
            repeats=settings.repeats,
            seed=settings.seed,
            earlier=self._earlier,
            failed=self._failed.values(),
        )
        own = self._whole_runs(campaign, list(zip(self._models, self.grouped, strict=True)))
        if self._earlier is not None:
            campaign.rounds.take_over(self._earlier.runs)
        self._notify(f"measuring {len(layers)} layers")
        complete = campaign.measure(stop=self._ended, on_round=self._on_round)
        if self._audited and complete:
            complete = self._repeat_slow(campaign)
        table = campaign.table(settings.overhead)
        if adaptive and complete:
            table, complete = self._grown(campaign, table, choice, len(first), most)
        if settings.repeats is None and complete:
            table = self._refined(campaign, table)
        if self.known and table.entries and not self.disturbed:
            rounds = campaign.rounds
            measured = [
                (network, rounds.median_ns(place)) for network, place in own if len(rounds.runs[place].samples_ns)
            ]
            table = with_audit(table, measured, self._unit, self.known)
        if table.entries and settings.fusions == "measured":
            self.warnings += _mismatches(table, self._unit, own, campaign.rounds)
        fusions = tuple(self._fusions) if settings.fusions == "measured" else None
        return msgspec.structs.replace(
            table,
            warnings=(*table.warnings, *self.warnings),
            fusions=fusions,
            networks=self._measured_networks(campaign.rounds, own),
        )

    def _measured_networks(self, rounds: Rounds, own: Sequence[tuple[Model, int]]) -> tuple[MeasuredNetwork, ...]:
        """The models that were launched whole, now or in the campaign that this one continues."""
        before = () if self._earlier is None else self._earlier.networks
        networks = {network.digest: network for network in before}
        if rounds.measured:
            medians = rounds.medians()
            for model, place in own:
                if len(rounds.runs[place].turns_ns):
                    in_turn_ns, in_turn_interval_ns = rounds.in_turn_ns(place)
                    network = MeasuredNetwork(
                        name=model.name,
                        digest=layers_digest(model),
                        unit=self._unit,
                        alone_ns=round(medians[0, place]),
                        alone_interval_ns=_whole(interval(medians[:, place])),
                        in_turn_ns=round(in_turn_ns),
                        in_turn_interval_ns=_whole(in_turn_interval_ns),
                    )
                    networks[network.digest] = network
        return tuple(networks.values())

    def _repeat_slow(self, campaign: Campaign) -> bool:
        """Wait and repeat slow rounds; say so where many remain. Return whether all launches have their samples."""
        clock, rounds = self._device.clock, campaign.rounds
        count = len(rounds.runs[-1].samples_ns)
        slow = len(rounds.slow_rounds)
        for attempt in range(_ATTEMPTS):
            if slow <= _FEW_SLOW * count:
                return True
            self.warnings.append(f"{slow} of {count} rounds were slow and were measured again")
            self._notify(f"{self.warnings[-1]}, after a pause")
            clock.sleep_until_ns(clock.now_ns() + _PAUSE_NS * 2**attempt)
            rounds.drop_slow()
            if not campaign.measure(stop=self._ended, on_round=self._on_round):
                return False
            slow = len(rounds.slow_rounds)
        if slow > _MOST_SLOW * count:
            self.disturbed = f"{slow} of {count} rounds were slow, after {_ATTEMPTS} attempts, too"
            self.warnings.append(
                f"not audited: {self.disturbed}: stop other programs (framefit doctor), and measure again"
            )
        return True

    def _layers(self, model: Model) -> tuple[Model, tuple[Subject, ...], tuple[Unmeasured, ...]]:
        """The model with fused groups as layers, each configuration once, and the layers that cannot run alone."""
        settings = self._settings
        if self._as_lowered:
            lowered = self._device.lowered(model)
            return (lowered, *distinct_layers(lowered, None, self._unit))
        if settings.fusions == "device":
            groups = [tuple(group) for group in self._device.fusions(model)]
        else:
            self._notify(f"finding the layers of {model.name}")
            pairs = measured_fusions(
                self._device,
                self._unit,
                model,
                known=self._fusions,
                repeats=LEAST_REPEATS if settings.repeats is None else settings.repeats,
                refine=settings.repeats is None,
                seed=settings.seed,
                stop=self._ended,
            )
            if undecided := sum(not pair.decided for pair in pairs):
                self.warnings.append(
                    f"{model.name}: noise hides whether {undecided} of {len(pairs)} pairs of layers run as one; the "
                    "likelier answer counts: allow more --repeats"
                )
            self._fusions += recorded(model, pairs)
            groups = list(known_groups(model, self._fusions))  # the same groups as those of the table's later readers
        grouped = model.grouped(groups)
        return (grouped, *distinct_layers(grouped, None, self._unit))

    def _whole_runs(self, campaign: Campaign, networks: Sequence[tuple[Model, Model]]) -> list[tuple[Model, int]]:
        """Networks as models of layers, and their indices among the campaign's runs."""
        places = []
        for network, grouped in networks:
            try:
                places.append((grouped, campaign.rounds.add("network", network)))
            except FramefitError as error:
                self.warnings.append(f"{network.name} is not launched whole: {error.what}")
        return places

    def _grown(
        self, campaign: Campaign, table: LatencyTable, choice: ShapeChoice, taken: int, most: int
    ) -> tuple[LatencyTable, bool]:
        """Measure more shapes of a grid in turns; also return whether the time sufficed for all of their samples."""
        settings = self._settings
        while taken < most:
            if self._ended():
                return table, False
            more = choice.take(table.entries, min(max(int(_MORE_SHAPES * taken), 1), most - taken))
            taken += len(more)
            if not more:
                break
            self._notify(f"measuring shapes {taken} of {most}")
            campaign.add(more)
            complete = campaign.measure(stop=self._ended, on_round=self._on_round)
            newer = campaign.table(settings.overhead)
            if not newer.entries:  # stopped before one round of the latest shapes
                return table, False
            table = newer
            if not complete:
                return table, False
        return table, True

    def _refined(self, campaign: Campaign, table: LatencyTable) -> LatencyTable:
        """Take more samples of layers whose intervals are wide."""
        settings = self._settings
        self._notify("repeating uncertain measurements")
        begun, seconds = self._begun, settings.max_seconds
        if seconds is None:  # whatever whole networks have taken before
            begun, seconds = self._device.clock.now_ns(), _AUDIT_SECONDS if self._audited else _REFINE_SECONDS
        left = campaign.refine(
            begun + round(seconds * 1e9),
            [_layers_of(grouped) for grouped in self.grouped],
            settings.overhead,
            most_repeats=MOST_REPEATS if settings.max_seconds is None else MOST_KEPT,
            stop=self._ended,
            on_round=self._on_round,
        )
        if left and not self._audited:  # nobody asked for these layers
            more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
            self.warnings.append(
                f"{len(left)} of {len(table.entries)} layers are known neither to {100 * NARROW:g} % nor precisely "
                f"enough for sums within 1 %: {', '.join(left[:_NAMED])}{more}: allow more time with --max-seconds, "
                "or more --repeats"
            )
        return campaign.table(settings.overhead)

    def _needed_seconds(self, networks: Sequence[Model], layers: int) -> float:
        """Estimate the duration of the measurement from a few launches of models and of audited networks.

        A layer is launched with an auxiliary layer, which is also launched alone; models and networks are launched
        whole, and their layers once more. One that does not run whole is not counted.
        """
        settings = self._settings
        rounds = Rounds(self._device, self._unit, settings.seed)
        parts = 0.0
        for model in (*self._models, *networks):
            with contextlib.suppress(FramefitError):
                run = rounds.runs[rounds.add("network", model)]
                parts += 2 * min(run.launch().duration_ns for _ in range(_TRIED))
        small = min(rounds.runs[0].launch().duration_ns for _ in range(_TRIED))
        parts += small * (2 * layers + _OVERHEAD_RUNS)
        return parts * ((LEAST_REPEATS if settings.repeats is None else settings.repeats) + _WARM_UP) / 1e9

    def _ended(self, reserved_s: float = 0.0) -> bool:
        """Whether the user has stopped it, or no time is left but what is reserved."""
        settings = self._settings
        seconds = (self._device.clock.now_ns() - self._begun) / 1e9 + reserved_s
        late = settings.max_seconds is not None and seconds >= settings.max_seconds
        return late or (self._stop is not None and self._stop())


def _weight_inputs(model: Model) -> str:
    """A warning about a file whose weights are inputs, too."""
    seen = f"{model.name}: {model.weight_inputs} weights are inputs of its graph, too, and are constants here"
    remedy = "export it with weights as constants (keep_initializers_as_inputs=False)"
    try:
        return f"{seen}: a plain session of that file is {slowdown_by_weight_inputs(model):.1f} times slower: {remedy}"
    except FramefitError as error:
        return f"{seen}; a plain session of that file cannot be timed ({error.what}): {remedy}"


def _whole(bounds: tuple[float, float]) -> tuple[int, int]:
    return math.floor(bounds[0]), math.ceil(bounds[1])


def _mismatches(table: LatencyTable, unit: str, wholes: Sequence[tuple[Model, int]], rounds: Rounds) -> list[str]:
    """Warnings about networks that take another time than their layers, by the fusions that were found, add up to."""
    warnings = []
    plain = Estimator(msgspec.structs.replace(table, correction=None), unit)
    for grouped, place in wholes:
        try:
            estimated = plain.estimate(grouped)
        except InputError:  # a layer that could not be measured, which the table says
            continue
        if not len(rounds.runs[place].samples_ns):
            continue
        whole_ns = rounds.median_ns(place)
        off_ns = abs(estimated.total_ns - whole_ns)
        if off_ns > max(_MISMATCH * whole_ns, estimated.interval_ns[1] - estimated.interval_ns[0]):
            warnings.append(
                f"{grouped.name}: its layers, with the fusions that were found, add up to "
                f"{estimated.total_ns / 1e6:.3f} ms, the whole network takes {whole_ns / 1e6:.3f} ms: some fusions are "
                "missing, or layers depend on each other; raise --repeats, or use --fusions device"
            )
    return warnings


def _layers_of(grouped: Model) -> Counter[str]:
    """How often a model has each layer."""
    return Counter(
        layer_key(layer.op, configuration(nodes)) for layer, nodes in zip(grouped.layers, grouped.nodes, strict=True)
    )


Network = str | Path | Model


@verb(MeasureSettings, "model")
def measure(
    settings: MeasureSettings,
    *,
    stop: Callable[[], bool] | None = None,
    notify: Notify = silent,
    on_round: Callable[[int, int], None] | None = None,
) -> LatencyTable:
    """Measure the distinct layers of models, or of a grid, where only start and end are seen.

    Where ``max_seconds`` leaves no time for the audit, the table gets a warning. For how the overhead of a launch
    is separated from its layer see :mod:`framefit.latency.campaign`.

    Args:
        settings: options of the measurement.
        stop: called between launches; if it returns true, the campaign ends with what was measured.
        notify: receives messages on the progress.
        on_round: receives the number of rounds done and the number in all.

    Raises:
        InputError: a file, name or key cannot be used, or the table to resume is of another device.
        DeviceError: no layer can be measured.

    Example:
        >>> import framefit
        >>> table = framefit.measure("detector", target="vpu", repeats=20)
        >>> table.overhead.intercept_ns > 90_000
        True
    """
    output, grid, seed = settings.output, settings.grid, settings.seed
    earlier_file = _existing(output, force=settings.force, resume=settings.resume)
    models = _models(settings.model, settings.shapes, settings.constants)
    points: list[Model] = []
    if grid is not None:
        points = list(grid_models(grid if isinstance(grid, GridSpec) else read_record(grid, GridSpec), seed))
    if not models and not points:
        raise InputError("nothing to measure", remedy="name a model, or --grid SPEC.toml")
    if settings.max_shapes is not None and not points:
        raise InputError(
            "max_shapes chooses from a grid, but no grid is given", remedy="name one with --grid SPEC.toml"
        )
    named = settings.audit if settings.audit is not None else "auto" if models else "none"
    builtin = named in ("auto", ["auto"], ("auto",))
    networks = _networks(named, seed)
    device = open_target(settings.target)
    chosen = unit_named(device.target, settings.unit).name
    earlier = None if earlier_file is None else read_table(earlier_file)
    if earlier is not None and earlier_file is not None:
        check_fingerprint(earlier, device.fingerprint(), earlier_file, "measure into another file")
    stored = stored_correction(device, chosen) if builtin else None
    sensors = Sensors() if device.capabilities.runs_on_host else None
    before = None if sensors is None else sensors.read()
    with _quiet(device):
        builder = _TableBuilder(device, chosen, settings, earlier, stop=stop, notify=notify, on_round=on_round)
        for model in models:
            builder.add(model)
        if stored is not None and builder.correct_by(stored):
            networks = []
        builder.audit(networks)
        if builtin and networks and builder.known and not device.capabilities.simulated:
            _calibrated(device, chosen, builder, stored)
        table = builder.table(points, settings.max_shapes)
    if sensors is not None and before is not None:
        table = _in_conditions(table, before, sensors.read())
    if output is not None:
        write_record(output, table, force=settings.force or settings.resume)
    return table


def _in_conditions(table: LatencyTable, before: Conditions, after: Conditions) -> LatencyTable:
    """A table with what sensors said, and a warning where the device was slowed down."""
    slowed = [when for when, one in (("began", before), ("ended", after)) if one.throttled]
    warnings = table.warnings
    if slowed:
        text = f"the device was throttled when the measurement {' and when it '.join(slowed)}"
        warnings = (*warnings, f"{text}: give it time to cool down, check its power supply, and measure again")
    return msgspec.structs.replace(table, conditions=(before, after), warnings=warnings)


@verb(CalibrateSettings, "networks")
def calibrate(
    settings: CalibrateSettings,
    *,
    stop: Callable[[], bool] | None = None,
    notify: Notify = silent,
    on_round: Callable[[int, int], None] | None = None,
) -> MachineCorrection:
    """Measure whole networks and their layers, and store how to correct sums of layers on this device.

    The correction is stored under the device's fingerprint. :func:`measure` uses it, after two launches that tell
    whether the device is still as it was. It is refused, and an earlier one stays in use, where the campaign was
    disturbed.

    Args:
        settings: options of the calibration.
        stop: called between launches; if it returns true, nothing is stored.
        notify: receives messages on the progress.
        on_round: receives the number of rounds done and the number in all.

    Raises:
        InputError: a file, name or key cannot be used.
        DeviceError: no layer can be measured.

    Example:
        >>> framefit.calibrate().audit.left_out_error_ratio  # doctest: +SKIP
        0.021
    """
    networks = _networks([*settings.networks, "auto"], settings.seed)
    device = open_target(settings.target)
    unit = unit_named(device.target, settings.unit).name
    measuring = MeasureSettings(repeats=settings.repeats, max_seconds=settings.max_seconds, seed=settings.seed)
    stored = stored_correction(device, unit)
    with _quiet(device):
        builder = _TableBuilder(device, unit, measuring, None, stop=stop, notify=notify, on_round=on_round)
        if reason := builder.audit(networks):
            raise InputError(reason, remedy="raise --max-seconds, or lower --repeats")
        return _calibrated(device, unit, builder, None if settings.force else stored)


@contextlib.contextmanager
def _quiet(device: Device) -> Iterator[None]:
    """Where this thread executes launches: on the device's core, with denormals as zero."""
    with contextlib.ExitStack() as stack:
        if device.capabilities.runs_on_host:
            stack.enter_context(pinned(device.host_core))
            stack.enter_context(flushed_denormals())
        yield


def _calibrated(
    device: Device, unit: str, builder: _TableBuilder, earlier: MachineCorrection | None
) -> MachineCorrection:
    """Store the correction by networks that were measured, or refuse it, so that an ``earlier`` one stays."""
    reasons = [warning for warning in builder.warnings if warning.startswith("not audited")]
    result = None
    try:
        result = audit(builder.known) if not reasons else None
    except InputError as error:
        reasons.append(f"not audited: {error.what}")
    if result is not None and (refused := too_great(result)):
        reasons.append(refused)
    launches_ns = check_launches(device, unit)
    if earlier is not None:
        ratio = launches_ns["reference"] / earlier.launches_ns["reference"]
        if max(ratio, 1 / ratio) - 1 > SPEED_RATIO:
            reasons.append(
                f"the reference launch takes {ratio:.2f} times as long as during the calibration of {earlier.date}: "
                "stop other programs (framefit doctor), or calibrate all the same with --force"
            )
    correction = MachineCorrection(
        target=device.target.name,
        unit=unit,
        fingerprint=device.fingerprint(),
        date=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        launches_ns=launches_ns,
        audit=result,
        refused=tuple(reasons),
        earlier="" if earlier is None else earlier.date,
        warnings=tuple(builder.warnings),
    )
    if not reasons:
        write_record(correction_path(device, unit), correction, force=True)
    return correction


def _existing(output: str | Path | None, *, force: bool, resume: bool) -> Path | None:
    """The file to continue; refuses to overwrite a file, or to resume a missing one."""
    if resume and output is None:
        raise InputError("nothing to resume, since no output is named", remedy="name the table with -o")
    if output is None or not Path(output).exists():
        return None
    check_new(output, force=force or resume, resumable=True)
    return Path(output) if resume else None


def _networks(audit: Network | Sequence[Network], seed: int) -> list[Model]:
    """The networks to audit: those that the user named, and built-in ones if asked for."""
    names = [audit] if isinstance(audit, str | Path | Model) else list(audit)
    if "none" in names:
        if len(names) > 1:
            raise InputError("audit has 'none' beside networks", remedy="leave out either of them")
        return []
    networks = [name if isinstance(name, Model) else load_model(name, None, None) for name in names if name != "auto"]
    if "auto" in names:
        return [*networks, *audit_networks(seed)]
    if len(networks) < LEAST_NETWORKS:
        raise InputError(
            f"an audit needs at least {LEAST_NETWORKS} networks, {len(networks)} are named",
            remedy="name more, add the built-in ones (auto), or leave the audit out (none)",
        )
    return networks


def _models(
    model: str | Path | Model | Sequence[str | Path | Model] | None,
    shapes: Mapping[str, tuple[int, ...]] | None,
    constants: Mapping[str, Any] | None,
) -> list[Model]:
    if model is None:
        return []
    several = [model] if isinstance(model, str | Path | Model) else model
    return [one if isinstance(one, Model) else load_model(one, shapes, constants) for one in several]
