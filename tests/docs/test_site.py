"""The documentation site: no link leads nowhere, every page has its place, pictures are described."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import framefit

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as ``make site`` makes it; a warning of any kind fails."""
    place = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "docs/make_site.py", str(place)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return place


class _Page(HTMLParser):
    """Pictures, and what a browser would fetch."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.pictures: list[dict[str, str | None]] = []
        self.fetched: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what the tag shows or loads."""
        given = dict(attrs)
        if tag == "img":
            self.pictures.append(given)
        if tag in ("img", "script") or (tag == "link" and given.get("rel") == "stylesheet"):
            self.fetched.append(given.get("src") or given.get("href") or "")


def test_pictures_are_described_and_nothing_comes_from_elsewhere(site: Path) -> None:
    """Each picture has an alternative text; scripts, styles and pictures are the site's own."""
    pages = [_Page(path) for path in site.rglob("*.html")]
    assert len(pages) > 60
    pictures = [picture for page in pages for picture in page.pictures]
    assert len(pictures) > 5
    assert all(picture.get("alt") for picture in pictures)
    assert not [link for page in pages for link in page.fetched if "//" in link]


def test_the_readme_is_the_first_page(site: Path) -> None:
    """Its links lead to pages of the site."""
    text = (site / "index.html").read_text(encoding="utf-8")
    assert "fits them into every frame" in text
    assert 'href="fit.html"' in text
    assert not re.search(r'href="[^"]*\.md"', text)


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    """Functions show the options that the command line has."""
    text = (site / "python.html").read_text(encoding="utf-8")
    missing = [name for name in framefit.__all__ if f'id="framefit.{name}"' not in text]
    assert missing == []
    assert "Top-1 accuracy that may be lost" in text
