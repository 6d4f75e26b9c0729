"""Make the documentation site: ``python docs/make_site.py FOLDER`` (``make site``).

Sphinx makes it of the pages below ``docs``, the README as the first page, the changelog, and a reference of the public
names in Python from their docstrings. Files of the repository that a page links to become files of the site. Whatever
Sphinx warns of, such as a link that leads nowhere or a page without a place in the contents, ends it with exit code 1.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import sys
import tempfile
from pathlib import Path, PurePosixPath

from sphinx.cmd.build import build_main

import framefit

_ROOT = Path(__file__).resolve().parents[1]
_PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
_CONTENTS = {
    "Tutorials": "fit scheduling board latency profiling sparsity trees always_on",
    "Fit and plan": "fit planning priorities ladder choose",
    "Run": "running streams embedding faults profiling report soak bundle check",
    "Devices": "boards targets latency backends store fleet",
    "Cheaper models": "sparsity kernels trees hardware training",
    "Reference": "cli python benchmarks requirements architecture decisions changelog contributing",
}
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_FILES = "_static/files"
_SETTINGS = {
    "project": "Framefit",
    "html_title": "Framefit",
    "html_theme": "furo",
    "html_static_path": "_static",
    "extensions": "myst_parser,sphinx.ext.autodoc,sphinx.ext.napoleon",
    "myst_heading_anchors": "4",
    "autodoc_typehints": "none",
    "suppress_warnings": "myst.xref_ambiguous,ref.python",
}


def main(site: Path) -> int:
    """Make the site in a folder; returns the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        pages = Path(folder) / "pages"
        _write_pages(pages)
        options = [f"--define={name}={value}" for name, value in _SETTINGS.items()]
        return int(
            build_main(["-q", "-W", "--keep-going", "-C", *options, "-d", f"{folder}/state", str(pages), str(site)])
        )


def _write_pages(folder: Path) -> None:
    """All pages as Sphinx reads them, and the files that they show or link to."""
    for path in sorted((_ROOT / "docs").rglob("*")):
        name = path.relative_to(_ROOT / "docs")
        if path.suffix in (".svg", ".png"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, folder / name)
        elif path.suffix == ".md":
            _write_page(folder, f"docs/{name.as_posix()}", name.as_posix())
    for source, name in _PAGES.items():
        _write_page(folder, source, name)
    decisions = sorted(path.stem for path in (_ROOT / "docs" / "decisions").glob("*.md"))
    (folder / "decisions.md").write_text("# Decisions\n\n" + _contents(decisions, "decisions/"), encoding="utf-8")
    (folder / "python.md").write_text(_reference(), encoding="utf-8")
    with (folder / "index.md").open("a", encoding="utf-8") as file:
        for title, names in _CONTENTS.items():
            file.write("\n" + _contents(names.split(), "tutorials/" if title == "Tutorials" else "", title))
    (folder / _FILES).mkdir(parents=True, exist_ok=True)


def _contents(names: list[str], folder: str = "", title: str = "") -> str:
    """The part of the contents that lists pages."""
    lines = ["```{toctree}", ":maxdepth: 1"]
    lines += [f":caption: {title}", ":hidden:"] if title else []
    return "\n".join([*lines, "", *(folder + name for name in names), "```", ""])


def _write_page(folder: Path, source: str, name: str) -> None:
    """A page with links for the site, and the files outside ``docs`` that it links to."""

    def replaced(link: re.Match[str]) -> str:
        path, _, anchor = link[3].partition("#")
        if not path or ":" in path:
            return link[0]
        target = posixpath.normpath(str(PurePosixPath(source).parent / path))
        file = _ROOT / target
        if file.is_dir():
            return link[2]
        if not file.is_file():
            return link[0]  # Sphinx warns
        place = target.removeprefix("docs/") if target.startswith("docs/") else _PAGES.get(target)
        if place is None:
            place = f"{_FILES}/{target}" + (".txt" if target.endswith(".md") else "")  # no page, so as it is
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, folder / place)
        shown = posixpath.relpath(place, posixpath.dirname(name) or ".")
        return f"{link[1]}[{link[2]}]({shown}{'#' + anchor if anchor else ''})"

    text = _LINK.sub(replaced, (_ROOT / source).read_text(encoding="utf-8"))
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")


def _reference() -> str:
    """The public names in Python."""
    lines = ["# Python", "", "Options of functions are those of the [command line](cli.md).", "", "```{eval-rst}"]
    names = sorted(framefit.__all__)
    for title, chosen in (
        ("Functions", [name for name in names if name[0].islower()]),
        ("Classes", [name for name in names if name[0].isupper()]),
    ):
        lines += [title, "-" * len(title), ""]
        for name in chosen:
            kind = "autofunction" if name[0].islower() else "autoclass"
            lines += [f".. {kind}:: framefit.{name}", *(["   :members:"] if kind == "autoclass" else []), ""]
    return "\n".join([*lines, "```", ""])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
