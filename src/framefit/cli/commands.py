"""Every command: its settings record, the function that does its work, and what shows the result.

A command's docstring is its help text. What the verb takes comes from its settings record; the functions are imported
when they are called, so that ``--help`` costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from framefit.boards.registry import BoardSettings
from framefit.cli.options import Command, add_command
from framefit.cli.screen import BoardScreen, Interrupt, Positions, Progress, Screen, show, show_json, show_line
from framefit.core.files import check_new
from framefit.core.settings import OverwriteFile, Settings, option, settings_of
from framefit.core.sparsity import SparsifyOptions
from framefit.core.tree_results import TreeifyOptions
from framefit.devices.settings import CyclesSettings
from framefit.errors import InputError
from framefit.fit.settings import ChooseSettings, FitOptions
from framefit.latency.settings import CalibrateSettings, EstimateSettings, MeasureSettings
from framefit.profiling.settings import InjectLossSettings
from framefit.trees.settings import RtlSettings
from framefit.workflows.settings import (
    BundleSettings,
    CheckSettings,
    DemoSettings,
    InitSettings,
    LogSettings,
    PlanSettings,
    ProfileSettings,
    PullSettings,
    PushSettings,
    ReportSettings,
    RunSettings,
    SchemaSettings,
    SimulateSettings,
    SoakSettings,
)

if TYPE_CHECKING:
    from framefit.report.description import Detail
    from framefit.workflows.record import RunResult


S = TypeVar("S", bound=Screen)
COMMANDS: dict[str, tuple[type[Settings] | None, type[Screen], Command[Any]]] = {}
"""Name -> the verb's settings, what the command line has beside them, and what does the work."""


def _command(verb: type[Settings] | None, screen: type[S]) -> Callable[[Command[S]], Command[S]]:
    def add(command: Command[S]) -> Command[S]:
        COMMANDS[command.__name__.replace("_", "-")] = (verb, screen, command)
        return command

    return add


def add_commands(app: typer.Typer) -> None:
    """Give the application all commands."""
    for name, (verb, screen, command) in COMMANDS.items():
        add_command(app, name, verb, screen, command)


@_command(DemoSettings, Screen)
def demo(given: dict[str, Any], screen: Screen) -> int:
    """Plan and run two built-in models: a detector in every frame, depth in the remaining time.

    Their weights are random: the timing is real, the outputs mean nothing.

    Example: framefit demo --seconds 20
    """
    from framefit.report.terminal import view
    from framefit.workflows.demo import demo
    from framefit.workflows.report import report_place

    with Interrupt() as interrupt, Progress(screen) as progress:
        plan, result = demo(**given, notify=progress, stop=interrupt, on_idle=progress.windows)
    if screen.json:
        show_json(result.metrics)
    else:
        show(
            "Two built-in networks with seeded random weights: the timing is real, their outputs mean nothing.\n"
            f"The workload is {plan.app}; change it and run it again with:\nframefit run {plan.app}\n",
            "The plan",
            view(plan.timetable, detail="brief"),
            "\nThe run",
        )
        _show_run(result, detail="brief")
        show(f"report:     {report_place(result.folder)} (open it in a browser)")
    return 130 if result.interrupted else 0


@_command(InitSettings, Screen)
def init(given: dict[str, Any], screen: Screen) -> None:
    """Write a first workload for your models: the smallest in every frame, the others in the remaining time.

    What the files leave open, such as sizes of images, options and states, is guessed, and the guesses are listed.

    Example: framefit init face.onnx depth.onnx --rate 25
    """
    from framefit.workflows.init import init

    with Progress(screen) as progress:
        first = init(**given, notify=progress)
    if screen.json:
        show_json(first)
        return
    others = f", {', '.join(first.background)} in the time that is left" if first.background else ""
    show(
        f"workload: {first.app}: {first.priority} in every frame{others}",
        *(f"guessed:  {guess}" for guess in first.guesses),
        f"next:     framefit plan {first.app}",
    )


@_command(SchemaSettings, Screen)
def schema(given: dict[str, Any], screen: Screen) -> None:  # noqa: ARG001 - it is JSON in any case
    """Show the JSON Schema of app.toml, target.toml or boards.toml; editors complete and check these files with it.

    Example: framefit schema app -o app.schema.json
    """
    from framefit.workflows.init import schema

    text = schema(**given)
    if "output" not in given:
        typer.echo(text)


class CyclesScreen(Screen, kw_only=True):
    """Options of the command ``cycles`` beside those of the verb."""

    csv: Annotated[
        str | None,
        option("Write the layers to this file, a line each; it is overwritten.", metavar="PATH"),
    ] = None


@_command(CyclesSettings, CyclesScreen)
def cycles(given: dict[str, Any], screen: CyclesScreen) -> None:
    """Show what each layer of a model costs on a described target, and what limits it.

    Nothing is executed: the cycles come from the target's description.

    Example: framefit cycles face.onnx --target vpu --weight-sparsity 0.5 --csv layers.csv
    """
    from framefit.devices.npu.costs import cycles
    from framefit.report.terminal import view

    report = cycles(**given)
    if screen.csv is not None:
        from framefit.report.csv_files import write_cycles

        write_cycles(screen.csv, report, force=True)
    show_json(report) if screen.json else show(view(report))


class MeasureScreen(BoardScreen, kw_only=True):
    """Options of the command ``measure`` beside those of the verb."""

    no_audit: Annotated[bool, option("The same as --audit none.")] = False


@_command(MeasureSettings, MeasureScreen)
def measure(given: dict[str, Any], screen: MeasureScreen) -> int:
    """Measure what each layer of a model costs on a device, and write a latency table.

    Only the start and end of launches are used: it works on devices that report no time for single layers. Ctrl-C keeps
    what was measured (exit code 130), and --resume continues. A few whole networks are measured beside the layers: what
    they take beyond the sum of their layers corrects the estimates.

    Example: framefit measure face.onnx --target vpu -o board.table.json

    Example: framefit measure face.onnx --audit a.onnx --audit b.onnx --audit c.onnx

    Example: framefit measure --grid convolutions.toml --max-shapes 40 -o board.table.json
    """
    if screen.no_audit:
        if "audit" in given:
            raise InputError("--audit and --no-audit contradict each other", remedy="leave one of them out")
        given["audit"] = "none"
    from framefit.latency.measure import measure
    from framefit.report.terminal import view

    with Interrupt() as interrupt, Progress(screen) as progress:
        table = measure(**given, stop=interrupt, notify=progress, on_round=progress.rounds)
    show_json(table) if screen.json else show(view(table))
    return 130 if interrupt.asked else 0


@_command(CalibrateSettings, BoardScreen)
def calibrate(given: dict[str, Any], screen: Screen) -> int:
    """Measure how much longer whole networks take on a device than the sum of their layers, and store that.

    Do this once for each device, while it is quiet: later latency tables of the device are corrected with it, after a
    check of two short launches. A disturbed calibration is refused (exit code 1), and an earlier one stays in use.

    Example: framefit calibrate

    Example: framefit calibrate detector.onnx --target board.toml
    """
    from framefit.latency.measure import calibrate
    from framefit.report.terminal import view

    with Interrupt() as interrupt, Progress(screen) as progress:
        correction = calibrate(**given, stop=interrupt, notify=progress, on_round=progress.rounds)
    show_json(correction) if screen.json else show(view(correction))
    return 130 if interrupt.asked else 1 if correction.refused else 0


@_command(EstimateSettings, BoardScreen)
def estimate(given: dict[str, Any], screen: Screen) -> None:
    """Estimate how long a model takes on a device, from the device's latency table.

    Nothing is executed. A layer that is missing from the table is an error, unless --fallback is given.

    Example: framefit estimate face.onnx --table board.table.json
    """
    from framefit.latency.estimate import estimate
    from framefit.report.terminal import view

    estimated = estimate(**given)
    show_json(estimated) if screen.json else show(view(estimated))


class TableSettings(Settings, kw_only=True):
    """Options of ``framefit table``: in Python, ``table``, ``compare_tables`` and ``merge_tables``."""

    files: Annotated[
        tuple[str, ...],
        option("Latency table; with --merge, further ones may follow.", argument=True, metavar="FILE", names="path"),
    ]
    against: Annotated[str | None, option("Compare the table with this one.", metavar="OTHER", names="path")] = None
    merge: Annotated[
        tuple[str, ...],
        option("Add the entries of this table, and of those that follow.", metavar="OTHER...", names="path"),
    ] = ()
    any_fingerprint: Annotated[bool, option("Merge tables although they are of different devices.")] = False
    output: Annotated[
        str | None,
        option("Write the merged table to this file (JSON).", "-o", "--output", metavar="PATH", names="new path"),
    ] = None
    force: OverwriteFile = False


@_command(TableSettings, Screen)
def table(given: dict[str, Any], screen: Screen) -> None:
    """Show a latency table, compare it with another one, or merge several.

    Example: framefit table board.table.json --against yesterday.table.json
    """
    settings = settings_of(TableSettings, given)
    file, *others = settings.files
    if settings.merge and settings.against is not None:
        raise InputError("give either --against or --merge", remedy="leave one of them out")
    if bool(settings.merge) != (settings.output is not None):
        raise InputError("--merge and -o belong together", remedy="give both or neither")
    if others and not settings.merge:
        raise InputError(f"one table at a time, or --merge; got {others[0]} too", remedy="leave out what follows FILE")
    from framefit.core.latency_table import compare_tables, merge_tables, table
    from framefit.report.terminal import view

    if settings.against is not None:
        compared = compare_tables(file, settings.against)
        show_json(compared) if screen.json else show(view(compared))
        return
    if settings.output is not None:
        paths, any_device = [file, *settings.merge, *others], settings.any_fingerprint
        entries = merge_tables(paths, settings.output, any_fingerprint=any_device, force=settings.force)
    else:
        entries = table(file)
    show_json(entries) if screen.json else show(view(entries))


@_command(FitOptions, BoardScreen)
def fit(given: dict[str, Any], screen: Screen) -> int:
    """Make a workload fit: plan, take the cheapest step that helps, plan again, until a simulation or run proves it.

    The steps, the cheapest first, are: other cuts and other units; int8, sparsity and decision trees, within --max-drop
    on unseen data; fewer frames. Your files stay as they are: the result is DIR/app.toml, ready for framefit run.
    Without --apply the steps are only proposed. Ctrl-C keeps what was done (exit code 130), and --resume continues.
    Exit code 1: the workload does not fit (yet).

    Example: framefit fit app.toml --data tags=tags.npz --max-drop 0.01 --apply -o fitted
    """
    from framefit.fit.loop import fit
    from framefit.report.terminal import view

    with Progress(screen) as progress:
        fitted = fit(**given, notify=progress, on_step=progress)
    show_json(fitted.result) if screen.json else show(view(fitted.result, folder=fitted.folder))
    return 130 if fitted.result.interrupted else 0 if fitted.result.fits else 1


@_command(ChooseSettings, BoardScreen)
def choose(given: dict[str, Any], screen: BoardScreen) -> int:
    """Compare targets: on which of them, and at which rates, a workload fits.

    The workload is planned on each target at each rate. Each row shows the verdict, the load and the worst slack, and
    where the workload does not fit, the first change that would help. With --fit, framefit fit is applied in these
    rows, and they show its steps and what they cost in accuracy and frames; steps that change a model need --data. With
    -o the folder gets a page, and the same command goes on after Ctrl-C (exit code 130). Names of your boards may be
    among the targets: what concerns a board is planned there. Exit code 1: it fits nowhere.

    Example: framefit choose app.toml --targets vpu,edge-8,micro-npu --rates 15,30,60 -o choice

    Example: framefit choose app.toml --targets vpu,edge-8 --fit --data doors=doors.npz --prices prices.toml -o choice
    """
    from framefit.cli.boards import choosers
    from framefit.fit.choose import choose
    from framefit.report.terminal import view

    with Progress(screen) as progress:
        chosen = choose(**given, boards=choosers(given.get("targets", ()), screen), notify=progress)
    page = "" if chosen.folder is None else f"\npage: {chosen.folder}/report.html (open it in a browser)"
    show_json(chosen.choice) if screen.json else show(view(chosen.choice), page)
    return 130 if chosen.choice.interrupted else 0 if chosen.choice.front else 1


class PlanScreen(BoardScreen, kw_only=True):
    """Options of the command ``plan`` beside those of the verb."""

    explain: Annotated[
        bool, option("Show every window as a picture, and why each model has its place in the plan.")
    ] = False
    page: Annotated[
        str | None, option("Write the plan as an HTML page to this file, for any browser.", metavar="PATH")
    ] = None


@_command(PlanSettings, PlanScreen)
def plan(given: dict[str, Any], screen: PlanScreen) -> int:
    """Plan a workload: show whether and how its models fit into every window.

    The models are measured on this machine, or their cycles are computed from the described target, or their layers are
    looked up in the workload's latency table (table = "board.table.json") where it was measured on this device: then
    nothing is measured. A model that is longer than the time that is left in a window is cut into segments, which are
    checked to give the same outputs (with a table, only when they are run). Exit code 1: the models do not fit; the
    binding constraint and a change that would help are named.

    Example: framefit plan app.toml -o timetable.json

    Example: framefit plan app.toml --explain --page plan.html
    """
    page = None if screen.page is None else Path(screen.page)
    check_new(page, force=bool(given.get("force")))
    if screen.json and screen.explain:
        raise InputError(
            "--json prints only the plan, without --explain", remedy="leave one of them out; --page goes with both"
        )
    from framefit.planning.explain import explain
    from framefit.planning.graphs import graphs_of
    from framefit.report.html import write_plan_page
    from framefit.report.sections.plan import PlanContent
    from framefit.report.terminal import view
    from framefit.workflows.plan import plan

    with Progress(screen) as progress:
        planned = plan(**given, notify=progress)
    timetable, workload = planned.timetable, planned.workload
    graphs = () if page is None else graphs_of(planned)
    content = PlanContent(timetable, workload, explain(timetable, workload), graphs)
    if page is not None:
        write_plan_page(page, content, title=planned.app.name, force=bool(given.get("force")))
    if screen.json:
        show_json(planned.identified.timetable)
    else:
        show(view(content, detail="full" if screen.explain else "normal"))
        if page is not None:
            show("", f"page: {page} (open it in a browser)")
    return 0 if timetable.feasible else 1


_MaxMissRatio = Annotated[
    float, option("Part of the frames that may be late or dropped; above it the exit code is 1.", ge=0, le=1)
]


class SimulateScreen(Screen, kw_only=True):
    """Options of the command ``simulate`` beside those of the verb."""

    max_miss_ratio: _MaxMissRatio = 0.01


class RunScreen(BoardScreen, kw_only=True):
    """Options of the command ``run`` beside those of the verb."""

    max_miss_ratio: _MaxMissRatio = 0.01


@_command(RunSettings, RunScreen)
def run(given: dict[str, Any], screen: RunScreen) -> int:
    """Plan a workload, run its models in every window, and show what happened.

    Ctrl-C ends the run and saves it (exit code 130). Exit code 1: too many frames were missed, or a model ended
    degraded.

    Example: framefit run app.toml --seconds 30 -o runs/first
    """
    from framefit.workflows.run import run

    return _play(run, given, screen)


@_command(SimulateSettings, SimulateScreen)
def simulate(given: dict[str, Any], screen: SimulateScreen) -> int:
    """Simulate a workload on a described device: would its models meet their deadlines on that board?

    The dispatcher is the one of framefit run, in virtual time; the plan is made from the target's description. Ctrl-C
    ends the simulation and saves it (exit code 130). Exit code 1: too many frames were missed, or a model ended
    degraded.

    --inject shows what faults would do: raise:depth@2s, hang:npu1@100w, slow:face*1.4@5s, nan:depth@10w..20w,
    stall:camera@3s..4s, burst:camera*5@3s, end:camera@9s, shape:camera@3s (docs/faults.md).

    Example: framefit simulate app.toml --target vpu --windows 100000
    """
    from framefit.workflows.run import simulate

    return _play(simulate, given, screen)


@_command(SoakSettings, BoardScreen)
def soak(given: dict[str, Any], screen: BoardScreen) -> int:
    """Run a workload until the device is warm, to see whether launches get slower; with temperature, clock and power.

    Clock, temperature and power are read from this machine's sensors every minute; without a sensor they are unknown.
    The first minute is the reference, so begin with a cool device. framefit plan --sustained RUN then plans with the
    durations of the slowest minute. Ctrl-C ends the run and keeps its results (exit code 130).

    Example: framefit soak app.toml --minutes 30 -o runs/warm
    """
    from framefit.report.terminal import view
    from framefit.workflows.report import write_report
    from framefit.workflows.run import soak

    with Interrupt() as interrupt, Progress(screen) as progress:
        result = soak(**given, notify=progress, stop=interrupt, on_idle=progress.windows)
        progress("writing the page")
        page = write_report(result.folder, force=True)
    if screen.json:
        show_json(result)
    else:
        show(view(result), f"\npage: {page} (open it in a browser)\nnext: framefit plan --sustained {result.folder}")
    return 130 if interrupt.asked else 0


def _play(verb: Callable[..., RunResult], given: dict[str, Any], screen: RunScreen | SimulateScreen) -> int:
    """Run or simulate until Ctrl-C, show the result, and give the exit code that it means."""
    from framefit.workflows.report import write_views

    with Interrupt() as interrupt, Progress(screen) as progress:
        result = verb(**given, notify=progress, stop=interrupt, on_idle=progress.windows)
        progress("profiling the trace")
        write_views(result.folder, result.profile)
    if screen.json:
        show_json(result.metrics)
    else:
        _show_run(result)
    if result.interrupted:
        return 130
    degraded = any(model.degraded for model in result.metrics.models)
    return 1 if degraded or result.metrics.miss_ratio > screen.max_miss_ratio else 0


def _show_run(result: RunResult, *, detail: Detail = "normal") -> None:
    """Figures, a picture, and where the files are."""
    from framefit.report.terminal import view
    from framefit.workflows.report import run_content

    show(
        view(run_content(result), detail=detail),
        "",
        f"run folder: {result.folder}\n"
        f"trace:      {result.folder / 'trace.pftrace'} (open it at https://ui.perfetto.dev)\n"
        f"picture:    {result.folder / 'run.svg'}",
    )


class ProfileScreen(BoardScreen, kw_only=True):
    """Options of the command ``profile`` beside those of the verb."""

    follow: Annotated[bool, option("Read a raw stream while it arrives, until its end or Ctrl-C.")] = False


@_command(ProfileSettings, ProfileScreen)
def profile(given: dict[str, Any], screen: ProfileScreen) -> int:
    """Show what happened in a run, from a trace that lost events.

    Lost START and END events are inferred, each with an interval, and are never shown as measured.

    Example: framefit profile runs/first

    Example: framefit profile trace.npz --program program.json --audit

    Example: cat /dev/trace0 | framefit profile - --program program.json --follow
    """
    if screen.follow:
        return _follow(given, screen)
    from framefit.report.terminal import view
    from framefit.workflows.profile import profile, run_profile_folder, write_numbered_profile

    trace = Path(given["trace"])
    with Progress(screen) as progress:
        profiled = profile(**({"output": run_profile_folder(trace)} | given), notify=progress)
        if profiled.folder is None:
            progress("writing the profile")
            profiled = write_numbered_profile(trace, profiled)
    if screen.json:
        show_json(profiled.profile)
        return 0
    folder = profiled.folder
    assert folder is not None
    show(
        view(profiled.profile),
        f"profile:  {folder}\n"
        f"timeline: {folder / 'timeline.html'} (open it in a browser)\n"
        f"trace:    {folder / 'trace.pftrace'} (open it at https://ui.perfetto.dev)",
    )
    return 0


def _follow(given: dict[str, Any], screen: ProfileScreen) -> int:
    """Show where the device is while packets come, and what they were at the end."""
    if not given.keys() <= {"trace", "program", "confidence", "force", "seed"}:
        raise InputError("--follow goes with --program, --confidence and --json only", remedy="leave the others out")
    if "program" not in given:
        raise InputError("--program missing: a stream does not say what is executed", remedy="name it with --program")
    settings = settings_of(ProfileSettings, given)
    from framefit.profiling.streaming import follow
    from framefit.report.terminal import view

    with Interrupt() as interrupt, Positions(json=screen.json) as positions:
        profile = follow(
            settings.trace, settings.program, confidence=settings.confidence, stop=interrupt, on_position=positions
        )
    if screen.json:
        show_line(profile)
    else:
        show(view(profile))
    return 130 if interrupt.asked else 0


@_command(ReportSettings, BoardScreen)
def report(given: dict[str, Any], screen: Screen) -> None:
    """Write one page about runs, plans, measurements and searches, to read, print or send.

    The kind of an input is recognised by its content. Several of a kind are compared. The page is a single file that
    needs no network.

    Example: framefit report runs/first

    Example: framefit report runs/before runs/after -o report.html
    """
    from framefit.core.run_record import ReportPage
    from framefit.workflows.report import write_report

    with Progress(screen) as progress:
        page = write_report(**given, notify=progress)
    show_json(ReportPage(page=str(page))) if screen.json else show(f"report: {page} (open it in a browser)")


@_command(InjectLossSettings, Screen)
def inject_loss(given: dict[str, Any], screen: Screen) -> None:
    """Remove packets from a trace, to see what a profile recovers from the rest.

    The same seed removes the same packets. With --repeat, events are lost at several rates and in bursts of several
    lengths, the remaining packets are profiled and compared with the whole trace, and the smallest trace buffer that
    would have lost nothing is computed. The folder then holds loss_study.json, a curve of errors, and a page.

    Example: framefit inject-loss runs/first --rate 0.1 --burst 20 --seed 1 -o thin.npz

    Example: framefit inject-loss runs/first --repeat 20 --drain-rate 2e6 -o losses
    """
    if "output" not in given:
        what = "the folder of the study" if "repeat" in given else "the file for the remaining trace"
        raise InputError("-o missing", remedy=f"name {what} with -o")
    from framefit.core.loss_study import InjectedLoss
    from framefit.report.terminal import view
    from framefit.workflows.inject import StudiedLosses, inject_loss

    with Progress(screen) as progress:
        injected = inject_loss(**given, notify=progress)
    if isinstance(injected, StudiedLosses):
        page = f"\nstudy: {injected.folder}/report.html (open it in a browser)"
        show_json(injected.study) if screen.json else show(view(injected.study), page)
        return
    result = InjectedLoss(lost=injected.lost, events=len(injected.kept), trace=str(given["output"]))
    show_json(result) if screen.json else show(f"{result.lost} of {result.events} events lost: {result.trace}")


@_command(BundleSettings, BoardScreen)
def bundle(given: dict[str, Any], screen: BoardScreen) -> None:
    """Put a plan, its segments and tests into a folder that framefit-runtime runs on a device.

    Example: framefit bundle app.toml -o doors.bundle
    """
    from framefit.workflows.bundle import bundle

    with Progress(screen) as progress:
        made = bundle(**given, notify=progress)
    if screen.json:
        show_json(made)
        return
    names = ", ".join(model.name for model in made.models)
    show(f"{given['output']}: {names}\ncheck it there: framefit-runtime check {given['output']}")


@_command(CheckSettings, Screen)
def check(given: dict[str, Any], screen: Screen) -> int:
    """Check whether models got slower, by launching them in turn with an earlier version; made for build servers.

    Exit code 1: a model is slower by more than --most, and the whole 99 % interval says so. Exit code 4: the check is
    undecided, because the interval still reaches to both sides of --most after the given time.

    Example: framefit check app.toml --against ../main/app.toml --most 1.05
    """
    from framefit.report.terminal import view
    from framefit.workflows.check import check

    with Progress(screen) as progress:
        result = check(**given, notify=progress)
    show_json(result) if screen.json else show(view(result))
    return {"pass": 0, "fail": 1, "cannot tell": 4}[result.decision]


@_command(PushSettings, Screen)
def push(given: dict[str, Any], screen: Screen) -> None:
    """Add files to a store that a team shares: a folder, or a URL of ssh or an object store.

    Each file is stored under its hash and never changed. A record says what the file is, which device and models it
    belongs to, and which command made it. There are no locks: any number of machines may push at the same time.

    Example: framefit push pi5.table.json --store ssh://build/shared/framefit --command "framefit measure --on pi5"
    """
    from framefit.workflows.store import push

    with Progress(screen) as progress:
        pushed = push(**given, notify=progress)
    if screen.json:
        show_json(pushed)
    else:
        show(*(f"{file.object[:12]}  {file.kind:7}  {file.name}" for file in pushed.files))


@_command(PullSettings, Screen)
def pull(given: dict[str, Any], screen: Screen) -> None:
    """Fetch files from a store, and check their hashes; merge latency tables of one device.

    Example: framefit pull pi5.table.json --store ssh://build/shared/framefit -o tables

    Example: framefit pull --kind table --target board.toml --merge board.table.json -o tables
    """
    from framefit.workflows.store import pull

    with Progress(screen) as progress:
        pulled = pull(**given, notify=progress)
    if screen.json:
        show_json(pulled.log)
        return
    show(*map(str, pulled.paths))
    if pulled.table is not None:
        show("", *pulled.remarks, f"table: {pulled.table}")


class LogScreen(Screen, kw_only=True):
    """Options of the command ``log`` beside those of the verb."""

    page: Annotated[
        str | None,
        option("Write it as an HTML page to this file, with charts of the model.", metavar="PATH", names="new path"),
    ] = None
    force: OverwriteFile = False


@_command(LogSettings, LogScreen)
def log(given: dict[str, Any], screen: LogScreen) -> int:
    """List what a store holds, the latest last.

    With --model, its figures in these files are listed by commit: latency, response times, missed frames and accuracy.
    A figure that is worse than the one before on the same device, by more than both 90 % intervals, is marked, and the
    exit code is 1 where the latest one is.

    Example: framefit log ssh://build/shared/framefit --kind table --target board.toml

    Example: framefit log ssh://build/shared/framefit --model doors.onnx --page doors.html
    """
    from framefit.report.description import Subject
    from framefit.report.html import write_report_page
    from framefit.report.terminal import view
    from framefit.workflows.store import log

    listed = log(**given)
    if screen.page is not None:
        write_report_page(screen.page, [Subject("store", listed.store, listed)], force=screen.force)
    if screen.json:
        show_json(listed)
    else:
        show(view(listed), *(() if screen.page is None else ("", f"page: {screen.page} (open it in a browser)")))
    return 1 if listed.worse else 0


@_command(SparsifyOptions, Screen)
def sparsify(given: dict[str, Any], screen: Screen) -> int:
    """Find zeros that a target rewards, fine-tune the best model, and decide whether it may be deployed.

    Ctrl-C keeps what was found (exit code 130), and --resume continues. Exit code 1: the cycles are out of reach, or
    the model misses its thresholds.

    Example: framefit sparsify net.onnx --data data.npz --target vpu --cycles 0.5
    """
    from framefit.report.terminal import view
    from framefit.workflows.search import sparsify

    with Progress(screen) as progress:
        search = sparsify(**given, notify=progress)
    show_json(search.result) if screen.json else show(view(search.result), f"\nresult: {search.folder}")
    return 130 if search.result.interrupted else 0 if search.result.satisfied else 1


@_command(TreeifyOptions, Screen)
def treeify(given: dict[str, Any], screen: Screen) -> int:
    """Replace groups of layers by decision trees, fine-tune the hybrid, and show what was tried.

    Ctrl-C keeps what was found (exit code 130), and --resume continues. Exit code 1: no group is worth replacing.

    Example: framefit treeify mlp.onnx --data digits.npz --first 1 --layers 2 -o hybrid
    """
    from framefit.report.terminal import view
    from framefit.workflows.search import treeify

    with Progress(screen) as progress:
        search = treeify(**given, notify=progress)
    show_json(search.result) if screen.json else show(view(search.result), f"\nresult: {search.folder}")
    return 0 if search.result.chosen is not None else 1


@_command(RtlSettings, Screen)
def rtl(given: dict[str, Any], screen: Screen) -> None:
    """Write trees as Verilog with a test bench, check them against the model, and count the resources that they need.

    Example: framefit rtl digits.trees.json --layer 128x128 --layer 128x64 -o hardware
    """
    from framefit.report.terminal import view
    from framefit.trees.rtl import rtl

    with Progress(screen) as progress:
        built = rtl(**given, notify=progress)
    show_json(built.report) if screen.json else show(view(built.report), f"\nresult: {built.folder}")


class TargetsSettings(Settings, kw_only=True):
    """Options of ``framefit targets``: in Python, ``targets`` and ``resolve_target``."""

    name: Annotated[
        str | None,
        option(
            "Built-in target, path of a target.toml, or a backend with its device (default: all are listed); fit: a "
            "new one from a table.",
            argument=True,
            metavar="NAME",
        ),
    ] = None
    table: Annotated[
        str | None,
        option("With fit: latency table of the device to describe.", argument=True, metavar="TABLE", names="path"),
    ] = None
    output: Annotated[
        str | None,
        option(
            "Write a copy of the target's file to this path, as a start for your own; or the fitted one.",
            *("-o", "--output"),
            metavar="PATH",
            names="new path",
        ),
    ] = None
    force: OverwriteFile = False


@_command(TargetsSettings, Screen)
def targets(given: dict[str, Any], screen: Screen) -> None:
    """List the built-in targets and what installed backends find here, show one, or describe a device by a table.

    Example: framefit targets vpu -o mine.toml

    Example: framefit targets fit board.table.json -o board.toml
    """
    settings = settings_of(TargetsSettings, given)
    if settings.name is None and settings.output is not None:
        raise InputError("-o copies the file of a target, but no target is named", remedy="give NAME, too")
    if (settings.name == "fit") != (settings.table is not None):
        raise InputError("a table belongs to fit, and fit to a table", remedy="framefit targets fit TABLE -o PATH")
    from framefit.core.target import describe_target, resolve_target

    if settings.name not in (None, "fit"):
        resolve_target(settings.name)  # a wrong name is answered at once
    from framefit.report.terminal import view

    if settings.name is None:
        from framefit.devices.registry import targets

        listed = targets()
        show_json(listed) if screen.json else show(view(listed))
        return
    if settings.table is not None:
        if settings.output is None:
            raise InputError("no file is named for the fitted target", remedy="name it with -o PATH")
        from framefit.latency.target_fit import fit_target

        fit_target(settings.table, settings.output, force=settings.force)
        fitted, notes = describe_target(settings.output)
        show_json(fitted) if screen.json else show(view(fitted, notes=notes))
        return
    target, notes = describe_target(settings.name, output=settings.output, force=settings.force)
    show_json(target) if screen.json else show(view(target, notes=notes))


@_command(None, BoardScreen)
def doctor(given: dict[str, Any], screen: Screen) -> None:  # noqa: ARG001 - it has no options
    """Show what this machine permits, and how to make its timing steadier.

    Example: framefit doctor

    Example: framefit doctor --on pi5
    """
    from framefit.devices.diagnosis import doctor
    from framefit.report.terminal import view

    report = doctor()
    show_json(report) if screen.json else show(view(report))


@_command(BoardSettings, Screen)
def board(given: dict[str, Any], screen: Screen) -> int:
    """Manage your own boards, which --on names, and the jobs that run there.

    A board is reached with your ssh and the keys that you have set up. The same version of Framefit is installed there
    in an environment of its own. A job survives a lost connection: attach follows it to its end and fetches its files
    (docs/boards.md).

    Example: framefit board add pi5 ssh://pi@pi5.local

    Example: framefit board attach pi5 measure-0123456789ab
    """
    from framefit.cli.boards import board

    return board(given, screen)
