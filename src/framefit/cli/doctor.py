"""``framefit doctor``."""

from __future__ import annotations

from typing import Annotated

import typer

from framefit.cli.screen import show, show_json

__all__ = ["doctor"]


def doctor(json: Annotated[bool, typer.Option("--json", help="Print only JSON.")] = False) -> None:
    """Say what this machine permits, and how to make its timing steadier.

    Example: framefit doctor
    """
    from framefit.devices.diagnosis import doctor as examine

    report = examine()
    if json:
        show_json(report)
    else:
        from framefit.report.terminal.doctor_table import doctor_view

        show(doctor_view(report))
