"""``framefit profile TRACE --program PROGRAM``."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from framefit.cli.screen import Interrupt, Progress, show, show_json

if TYPE_CHECKING:
    from rich.live import Live

    from framefit.core.files import Record
    from framefit.profiling.streaming import Whereabouts

__all__ = ["profile"]


class Method(StrEnum):
    """How lost events are put back."""

    ALIGN = "align"
    RULE = "rule"


def profile(
    trace: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE",
            help="A run folder, trace.npz, STPv2 stream, ONNX Runtime profile or Chrome JSON; - with --follow: stdin.",
        ),
    ],
    program: Annotated[
        Path | None, typer.Option("--program", help="program.json that was executed (default: as beside the trace).")
    ] = None,
    method: Annotated[
        Method, typer.Option("--method", help="By all that is known of durations, or at fixed offsets.")
    ] = Method.ALIGN,
    table: Annotated[
        Path | None, typer.Option("--table", help="Latency table to expect (default: the program's durations).")
    ] = None,
    update_table: Annotated[
        Path | None, typer.Option("--update-table", help="Write what layers took into this latency table.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="A raw stream, as it comes, until its end or Ctrl-C.")
    ] = False,
    audit: Annotated[
        bool, typer.Option("--audit", help="Mask events of this trace, repair them, and say how well that went.")
    ] = False,
    confidence: Annotated[float, typer.Option("--confidence", help="Of all intervals.")] = 0.9,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder (default: RUN/profile, or profiles/TRACE-N).")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite it.")] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the audit's mask.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print only JSON.")] = False,
) -> None:
    """Say what really happened in a run, from a trace that lost events.

    Every lost START and END is put back with an interval; what is inferred is never shown as measured.

    Example: framefit profile runs/first

    Example: framefit profile trace.npz --program program.json --audit

    Example: cat /dev/trace0 | framefit profile - --program program.json --follow
    """
    if follow:
        if output is not None or audit or table is not None or update_table is not None or method is Method.RULE:
            raise typer.BadParameter("goes with --program, --confidence and --json only", param_hint="--follow")
        _follow(trace, program, confidence, json=json)
        return
    from framefit.workflows.profile import own_profile_folder, write_numbered_profile
    from framefit.workflows.profile import profile as profile_workflow

    progress = Progress()
    try:
        found = profile_workflow(
            trace,
            program,
            method=method.value,
            table=table,
            update_table=update_table,
            output=output or own_profile_folder(trace),
            force=force,
            confidence=confidence,
            audit=audit,
            seed=seed,
            notify=progress,
        )
        if found.folder is None:
            progress("writing the profile")
            found = write_numbered_profile(trace, found)
    finally:
        progress.end()
    if json:
        show_json(found.profile)
        return
    from framefit.report.sections.profile import audit_notes
    from framefit.report.terminal.profile_tables import profile_view

    assert found.folder is not None
    certificate = found.profile.certificate
    show(
        profile_view(found.profile),
        *(audit_notes(certificate, confidence) if certificate is not None else ()),
        f"profile:  {found.folder}\n"
        f"timeline: {found.folder / 'timeline.html'} (open it in a browser)\n"
        f"trace:    {found.folder / 'trace.pftrace'} (open it at https://ui.perfetto.dev)",
    )


def _follow(trace: Path, program: Path | None, confidence: float, *, json: bool) -> None:
    """Show where the device is while packets come, and what they were at the end."""
    from framefit.profiling.streaming import follow

    if program is None:
        raise typer.BadParameter("a stream does not tell what is executed", param_hint="--program")
    with Interrupt() as interrupt, _Screen(json=json) as screen:
        found = follow(trace, program, confidence=confidence, stop=interrupt, on_position=screen)
    if json:
        _line(found)
    else:
        from framefit.report.terminal.profile_tables import profile_view

        show(profile_view(found))
    if interrupt.asked:
        raise typer.Exit(130)


def _line(record: Record) -> None:
    """One JSON document on one line, at once: a reader follows too."""
    import msgspec

    sys.stdout.write(msgspec.json.encode(record).decode() + "\n")
    sys.stdout.flush()


class _Screen:
    """Positions as JSON lines, or on one changing line of a terminal; else nowhere."""

    def __init__(self, *, json: bool) -> None:
        self._json = json
        self._live: Live | None = None

    def __enter__(self) -> _Screen:
        if not self._json and sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *details: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, at: Whereabouts) -> None:
        if self._json:
            _line(at)
        elif self._live is not None:
            from rich.text import Text

            where = f"inference {at.inference}, group {at.group}, {at.name} ({100 * at.confidence:.0f} % sure)"
            known = where if at.inference >= 0 else "no event of the program yet"
            self._live.update(Text(f"{known}; {at.received} events, {at.lost} lost"), refresh=True)
