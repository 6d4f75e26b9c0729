"""Options of the verbs that join engines.

They are apart from the verbs so that the command line can list them without loading an engine.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from framefit.core.settings import InputShapes, OverwriteFile, Settings, option

__all__ = [
    "BundleSettings",
    "CheckSettings",
    "DemoSettings",
    "InitSettings",
    "LogSettings",
    "PlanSettings",
    "ProfileSettings",
    "PullSettings",
    "PushSettings",
    "ReportSettings",
    "RunSettings",
    "SchemaSettings",
    "SimulateSettings",
    "SoakSettings",
]


_Kernels = Annotated[
    Literal["auto", "never"] | None,
    option("Kernels that skip zeros: where they are faster, or never (default: as the workload says)."),
]


_Cache = Annotated[
    bool, option("Use measurements of earlier plans; otherwise everything is measured again.", "--cache/--no-cache")
]


class PlanSettings(Settings, kw_only=True):
    """Options of ``framefit plan``."""

    app: Annotated[
        str,
        option(
            "Workload to plan (default: app.toml of this folder).", argument=True, metavar="APP.toml", names="workload"
        ),
    ] = "app.toml"
    target: Annotated[
        str | None,
        option(
            "Target instead of the workload's: a built-in name, or path of a target.toml.",
            metavar="TARGET",
            names="target",
        ),
    ] = None
    cache: _Cache = True
    kernels: _Kernels = None
    sustained: Annotated[
        str | None,
        option(
            "Plan for launches that take as long as in the slowest minute of this framefit soak.",
            metavar="RUN",
            names="path",
        ),
    ] = None
    output: Annotated[
        str | None,
        option(
            "Write the plan to this file (.json), or folder; framefit run and simulate start from it.",
            "-o",
            "--output",
            metavar="PATH",
            names="new path",
        ),
    ] = None
    force: Annotated[bool, option("Overwrite existing files.")] = False


# What run, simulate and soak share, word for word.
_RunApp = Annotated[
    Any,
    option(
        "Workload to run, or a stored plan (default: app.toml of this folder).",
        argument=True,
        metavar="APP_OR_PLAN",
        python="a plan",
        names="workload or plan",
    ),
]
_RunFolder = Annotated[
    str | None,
    option(
        "Run folder (default: runs/APP-N, the first N that is free).", "-o", "--output", metavar="DIR", names="new path"
    ),
]
_ForceRun = Annotated[bool, option("Overwrite the run folder, and files that sinks write.")]
_Resume = Annotated[
    bool,
    option("Go on with a run that was cut off, for the windows that are left; APP_OR_PLAN is its run folder."),
]
_UpdatedTable = Annotated[
    str | None,
    option(
        "Write the times that layers took into this latency table, for the next plan; a table that exists is updated.",
        metavar="PATH",
    ),
]
_Faults = Annotated[
    tuple[str, ...], option("Fault to inject, such as raise:depth@2s (docs/faults.md).", metavar="FAULT")
]


class SimulateSettings(Settings, kw_only=True):
    """Options of ``framefit simulate``."""

    app: Annotated[
        Any,
        option(
            "Workload to simulate, or a stored plan (default: app.toml of this folder).",
            argument=True,
            metavar="APP_OR_PLAN",
            python="a plan",
            names="workload or plan",
        ),
    ] = "app.toml"
    target: Annotated[
        str | None,
        option(
            "Target instead of the workload's: a built-in name, or path of a target.toml.",
            metavar="TARGET",
            names="target",
        ),
    ] = None
    windows: Annotated[int | None, option("Number of windows to simulate (default: as --seconds says).", ge=1)] = None
    seconds: Annotated[
        float | None,
        option("Length of the simulation in seconds of the device's time (default: 10).", metavar="SECONDS", gt=0),
    ] = None
    outputs: Annotated[
        bool, option("Read frames, compute outputs and give them to the sinks; otherwise only time passes.")
    ] = False
    output: _RunFolder = None
    force: _ForceRun = False
    resume: _Resume = False
    seed: Annotated[
        int, option("Random seed for the variation of the device's durations and for synthetic frames.", ge=0)
    ] = 0
    update_table: _UpdatedTable = None
    inject: _Faults = ()


class RunSettings(Settings, kw_only=True):
    """Options of ``framefit run``."""

    app: _RunApp = "app.toml"
    target: Annotated[
        str | None,
        option(
            "Target instead of the workload's: a built-in name, or path of a target.toml. A described device is "
            "simulated in real time.",
            metavar="TARGET",
            names="target",
        ),
    ] = None
    windows: Annotated[int | None, option("Number of windows to run (default: as --seconds says).", ge=1)] = None
    seconds: Annotated[
        float | None,
        option("Length of the run in seconds (default: 10); streams that end, end the run.", metavar="SECONDS", gt=0),
    ] = None
    cache: _Cache = True
    kernels: _Kernels = None
    output: _RunFolder = None
    force: _ForceRun = False
    resume: _Resume = False
    seed: Annotated[int, option("Random seed for synthetic frames.", ge=0)] = 0
    update_table: _UpdatedTable = None
    inject: _Faults = ()
    metrics: Annotated[
        str | None,
        option(
            "Address at which Prometheus can read counts and response times of frames during the run, "
            "such as 9464 or 0.0.0.0:9464.",
            metavar="[HOST:]PORT",
        ),
    ] = None


class SoakSettings(Settings, kw_only=True):
    """Options of ``framefit soak``."""

    app: _RunApp = "app.toml"
    minutes: Annotated[
        float, option("Length of the run; small devices need 10 to 30 minutes to get warm.", metavar="MINUTES", gt=0)
    ] = 30.0
    target: Annotated[
        str | None,
        option("Target instead of the workload's: cpu, or path of a target.toml.", metavar="TARGET", names="target"),
    ] = None
    cache: _Cache = True
    output: _RunFolder = None
    force: _ForceRun = False
    seed: Annotated[int, option("Random seed for synthetic frames.", ge=0)] = 0


class ProfileSettings(Settings, kw_only=True):
    """Options of ``framefit profile``."""

    trace: Annotated[
        Any,
        option(
            "Run folder, trace.npz, STPv2 stream, ONNX Runtime profile or Chrome JSON; with --follow also - for the "
            "standard input.",
            argument=True,
            metavar="TRACE",
            python="a trace",
            names="path",
        ),
    ]
    program: Annotated[
        Any,
        option(
            "Executed program, program.json (default: the one beside the trace).",
            metavar="PATH",
            python="a program",
            names="path",
        ),
    ] = None
    method: Annotated[
        Literal["align", "rule"],
        option("How lost events are put back: by all that is known of durations, or at fixed offsets."),
    ] = "align"
    table: Annotated[
        Any,
        option(
            "Latency table to expect durations from (default: the program's own durations).",
            metavar="PATH",
            python="a table",
            names="path",
        ),
    ] = None
    update_table: Annotated[
        str | None,
        option(
            "Write the times that layers took into this latency table, merged with --table, or with the table of "
            "the run's plan.",
            metavar="PATH",
        ),
    ] = None
    audit: Annotated[bool, option("Mask further events of this trace, repair them, and show how well that went.")] = (
        False
    )
    confidence: Annotated[float, option("Confidence of all intervals, between 0 and 1.", gt=0, lt=1)] = 0.9
    output: Annotated[
        str | None,
        option(
            "Profile folder (default: RUN/profile, or profiles/TRACE-N).",
            "-o",
            "--output",
            metavar="DIR",
            names="new path",
        ),
    ] = None
    force: Annotated[bool, option("Overwrite an existing folder.")] = False
    seed: Annotated[int, option("Random seed for the events that --audit masks.", ge=0)] = 0


class ReportSettings(Settings, kw_only=True):
    """Options of ``framefit report``."""

    inputs: Annotated[
        tuple[str, ...],
        option(
            "Folders of runs, plans, profiles, fits, searches or circuits, latency tables, and what --json printed.",
            argument=True,
            metavar="RUN_OR_RESULT...",
            names="path",
        ),
    ] = ()
    output: Annotated[
        str | None,
        option(
            "Page to write (default: report.html in the folder of the first input).",
            "-o",
            "--output",
            metavar="PATH",
            names="new path",
        ),
    ] = None
    force: Annotated[bool, option("Overwrite an existing page.")] = False


class InitSettings(Settings, kw_only=True):
    """Options of ``framefit init``."""

    models: Annotated[
        tuple[str, ...],
        option("ONNX files of your models.", argument=True, metavar="MODEL.onnx...", many=True, names="model"),
    ]
    output: Annotated[
        str,
        option("Workload to write; its schema comes beside it.", "-o", "--output", metavar="PATH", names="new path"),
    ] = "app.toml"
    target: Annotated[str, option("A built-in target, or path of a target.toml.", metavar="TARGET", names="target")] = (
        "cpu"
    )
    rate_hz: Annotated[float, option("Frames a second.", "--rate", metavar="HZ", gt=0)] = 30.0
    shapes: InputShapes = {}
    force: OverwriteFile = False


class SchemaSettings(Settings, kw_only=True):
    """Options of ``framefit schema``."""

    kind: Annotated[
        Literal["app", "target", "boards"],
        option("Kind of file: an app.toml, a target.toml or a boards.toml.", argument=True),
    ] = "app"
    output: Annotated[
        str | None, option("Write it to this file.", "-o", "--output", metavar="PATH", names="new path")
    ] = None
    force: OverwriteFile = False


class DemoSettings(Settings, kw_only=True):
    """Options of ``framefit demo``."""

    output: Annotated[str, option("Folder for the models and app.toml.", "-o", "--output", metavar="DIR")] = (
        "framefit-demo"
    )
    seconds: Annotated[float, option("Length of the run in seconds.", metavar="SECONDS", gt=0)] = 8.0
    seed: Annotated[int, option("Random seed for weights and frames.", ge=0)] = 0


_StoreUrl = Annotated[
    str | None,
    option("Folder or URL of the store (default: the environment's FRAMEFIT_STORE).", metavar="URL"),
]
_FileKind = Annotated[
    Literal["table", "plan", "run", "fit", "sparsity", "profile", "model", "file"] | None,
    option("Only files of this kind."),
]
_OfModel = Annotated[
    str | None,
    option(
        "Only what is about this model: its file's bytes, or figures under its name.",
        metavar="MODEL.onnx",
        names="path",
    ),
]
_OfTarget = Annotated[
    str | None,
    option("Only what was measured on this device: a target's name or file.", metavar="TARGET", names="target"),
]
_OfBoard = Annotated[
    str | None, option("Only what was pushed under this board's name (framefit push --board).", metavar="NAME")
]


class PushSettings(Settings, kw_only=True):
    """Options of ``framefit push``."""

    files: Annotated[
        tuple[str, ...],
        option(
            "Latency tables, plans, models or other files.", argument=True, metavar="FILE...", many=True, names="path"
        ),
    ]
    store: _StoreUrl = None
    models: Annotated[
        tuple[str, ...], option("Models that these files are about.", metavar="MODEL.onnx", names="path")
    ] = ()
    parents: Annotated[tuple[str, ...], option("Hashes of stored files that they were made of.", metavar="SHA256")] = ()
    command: Annotated[str, option("What made them, for the log.", metavar="TEXT")] = ""
    commit: Annotated[
        str | None,
        option("Commit that they belong to (default: of the git repository here, if it is one).", metavar="TEXT"),
    ] = None
    board: Annotated[str, option("Name of the board that they are of, for framefit log --board.", metavar="NAME")] = ""


class LogSettings(Settings, kw_only=True):
    """Options of ``framefit log``."""

    store: Annotated[
        str | None,
        option(
            "Folder or URL of the store (default: the environment's FRAMEFIT_STORE).", argument=True, metavar="STORE"
        ),
    ] = None
    words: Annotated[
        tuple[str, ...], option("Only files of this name, or whose hash begins so.", "--name", metavar="NAME")
    ] = ()
    kind: _FileKind = None
    model: _OfModel = None
    target: _OfTarget = None
    board: _OfBoard = None


class PullSettings(Settings, kw_only=True):
    """Options of ``framefit pull``."""

    words: Annotated[
        tuple[str, ...],
        option("Names of files, or beginnings of their hashes (default: all).", argument=True, metavar="NAME..."),
    ] = ()
    store: _StoreUrl = None
    kind: _FileKind = None
    model: _OfModel = None
    target: _OfTarget = None
    board: _OfBoard = None
    output: Annotated[str, option("Folder that the files go to.", "-o", "--output", metavar="DIR")] = "."
    merge: Annotated[
        str | None,
        option(
            "Write the latency tables among them into this one, too; entries that differ are listed.",
            metavar="TABLE.json",
            names="new path",
        ),
    ] = None
    force: Annotated[bool, option("Overwrite existing files.")] = False


class BundleSettings(Settings, kw_only=True):
    """Options of ``framefit bundle``."""

    app: Annotated[
        str,
        option(
            "Workload, or a stored plan (default: app.toml of this folder).",
            argument=True,
            metavar="APP_OR_PLAN",
            names="workload or plan",
        ),
    ] = "app.toml"
    output: Annotated[
        str, option("Folder to write, named NAME.bundle.", "-o", "--output", metavar="DIR", names="new path")
    ]
    target: Annotated[
        str | None,
        option("Target instead of the workload's: cpu, or path of a target.toml.", metavar="TARGET", names="target"),
    ] = None
    docker: Annotated[bool, option("Put a Dockerfile into it.")] = False
    force: Annotated[bool, option("Overwrite an existing bundle.")] = False


class CheckSettings(Settings, kw_only=True):
    """Options of ``framefit check``."""

    app: Annotated[
        str,
        option("Workload (default: app.toml of this folder).", argument=True, metavar="APP.toml", names="workload"),
    ] = "app.toml"
    against: Annotated[
        str,
        option(
            "The earlier version: a workload, or a plan, run or bundle made of it.",
            metavar="APP_OR_PLAN",
            names="workload or plan",
        ),
    ]
    target: Annotated[
        str | None,
        option("Target instead of the workloads': a built-in name, or path of a target.toml.", names="target"),
    ] = None
    most: Annotated[float, option("Ratio of latencies above which a model is slower.", gt=1)] = 1.05
    seconds: Annotated[float, option("Time for each model.", metavar="SECONDS", gt=0)] = 5.0
