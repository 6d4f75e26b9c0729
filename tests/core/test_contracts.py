"""Keys of result files that other programs read: none may be renamed without a new ``schema_version``."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from msgspec import inspect

from framefit.core.check import CheckResult
from framefit.core.choice import Choice
from framefit.core.files import Result
from framefit.core.fit_results import FitResult
from framefit.core.latency_table import LatencyTable
from framefit.core.profile import Profile
from framefit.core.run_record import CycleReport, LatencyEstimate, Metrics, TargetList
from framefit.core.sparsity import SparsityResult
from framefit.core.stored import StoredFile
from framefit.core.timetable import Timetable
from framefit.core.tree_results import TreeifyResult

KEYS: dict[type[msgspec.Struct], dict[str, str]] = {
    TargetList: {"": "schema_version targets", "targets": "name kind units description"},
    LatencyTable: {
        "": "schema_version target fingerprint overhead correction entries",
        "overhead": "input_ns_per_byte output_ns_per_byte intercept_ns condition_number",
        "entries": "op configuration unit latency_ns interval_ns samples_ns source",
    },
    Timetable: {
        "": "schema_version verdict feasible proof worst_slack_ns hyperperiod_windows window_ns priority_ns "
        "residual_ns guard_ns units windows models memory_bytes bound gap_ratio binding_constraint reasons fixes",
        "windows": "index length_ns priority residual_ns slots",
        "windows.priority": "unit start_ns end_ns model",
        "windows.slots": "unit start_ns duration_ns model segment frame",
        "models": "name role level reasons asked_hz served_hz duration_ns segments result_age_windows",
        "models.segments": "index unit fill_layer first_layer last_layer output_layers duration_ns boundary_bytes "
        "tensors",
        "fixes": "change effect verified",
    },
    Metrics: {
        "": "schema_version verdict windows models residual_utilisation_ratio guard_loss_ratio packing_loss_ratio "
        "floor_release_to_start_ns estimate_exceeded_ratio dispatch_ns peak_memory_bytes rung_switches streams misses",
        "models": "name role releases completed missed dropped throughput_hz fluid_bound_hz packing_bound_hz "
        "release_to_start_ns release_to_finish_ns miss_ratio_upper result_age_windows_max "
        "segmentation_overhead_ratio max_relative_difference",
        "models.release_to_start_ns": "p50 p90 p99 p999 max count",
        "streams": "name received dropped",
        "misses": "window model cause detail",
    },
    Profile: {
        "": "schema_version method events inferences totals_by_kind utilisation_by_unit totals_by_layer "
        "totals_by_group violations diagnosis calibrated warnings",
        "events": "received expected lost spurious duplicated out_of_order",
        "totals_by_kind": "count duration_ns interval_ns inferred_ratio",
        "violations": "operation expected_ns actual_ns interval_ns",
    },
    CycleReport: {
        "": "schema_version target source total_cycles total_ns layers",
        "layers": "name op macs cycles bound bytes_read bytes_written utilisation_ratio weight_sparsity_ratio "
        "activation_sparsity_ratio",
    },
    LatencyEstimate: {
        "": "schema_version total_ns interval_ns plain_sum_ns coverage_ratio layers",
        "layers": "name op latency_ns interval_ns source",
    },
    SparsityResult: {
        "": "schema_version model target dense configurations chosen deployed reasons ledger",
        "dense": "top1 top5 cycles parameters",
        "configurations": "solver top1_before_finetune top1 top5 parameters zeros sparsity_ratio cycles cycles_ratio "
        "difference_top1 layers",
        "configurations.layers": "name sparsity_ratio activation_sparsity_ratio cycles",
        "ledger": "images_forwarded seconds evaluations",
    },
    TreeifyResult: {
        "": "schema_version model original candidates chosen",
        "original": "top1 latency_ns",
        "candidates": "first_layer last_layer bound_top1 top1 latency_ns lut6",
        "chosen": "groups top1 latency_ns lut6 bytes",
        "chosen.groups": "first_layer last_layer depth trees kind",
    },
    FitResult: {
        "": "schema_version fits verdict before after steps front verified",
        "before": "load_ratio models",
        "before.models": "name asked_hz served_hz",
        "steps": "name cost outcome predicted gained accuracy",
        "steps.accuracy": "before after interval images on",
        "front": "steps frames_lost_ratio accuracy_lost load_ratio",
        "verified": "by windows missed",
    },
    Choice: {
        "": "schema_version cells",
        "cells": "target rate_hz verdict worst_slack_ns load_ratio remedy accuracy_lost price",
    },
    CheckResult: {"": "schema_version decision models", "models": "name ratio interval difference_ns floor_ns"},
    StoredFile: {"": "schema_version kind object fingerprint models parents command version time"},
}


def structs(kind: inspect.Type) -> Iterator[inspect.StructType]:
    """The records in a field: itself, items, values or one of several."""
    if isinstance(kind, inspect.StructType):
        yield kind
    elif isinstance(kind, inspect.UnionType):
        for each in kind.types:
            yield from structs(each)
    elif isinstance(kind, inspect.ListType | inspect.VarTupleType):
        yield from structs(kind.item_type)
    elif isinstance(kind, inspect.DictType):
        yield from structs(kind.value_type)


@pytest.mark.parametrize("record", list(KEYS))
def test_a_file_has_the_keys_that_others_rely_on(record: type[msgspec.Struct]) -> None:
    """At their places, whether they hold something or null."""
    for place, keys in KEYS[record].items():
        at = next(structs(inspect.type_info(record)))
        for name in place.split(".") if place else ():
            at = next(structs(next(field.type for field in at.fields if field.encode_name == name)))
        assert set(keys.split()) <= {field.encode_name for field in at.fields}, place
        assert not at.cls.__struct_config__.omit_defaults, place


def test_version_is_part_of_every_result() -> None:
    """A reader can tell what it reads."""
    for record in KEYS:
        assert "schema_version" in record.__struct_fields__
        assert issubclass(record, Result) or record is StoredFile
