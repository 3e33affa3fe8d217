"""Reading a Markdown page: its code blocks with the comment above them, its headings, its links."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
README = ROOT / "README.md"

_MARKER = re.compile(r"<!-- (.+) -->")
_FENCE = re.compile(r"```(\w*)")
_LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
_HEADING = re.compile(r"#+ (.+)")


class Block(NamedTuple):
    """A fenced block, or a comment that stands for itself."""

    line: int
    """The number of its first line of code, from 1."""
    marker: str
    language: str
    code: str


def blocks(page: Path) -> list[Block]:
    """The blocks of a page in their order; a comment that is not followed by a block comes without a language."""
    found: list[Block] = []
    lines = page.read_text("utf-8").splitlines()
    marker, at = "", 0
    while at < len(lines):
        fence = _FENCE.fullmatch(lines[at])
        comment = _MARKER.fullmatch(lines[at])
        if fence is not None:
            end = lines.index("```", at + 1)
            found.append(Block(at + 2, marker, fence[1], "\n".join(lines[at + 1 : end]) + "\n"))
            marker, at = "", end
        elif comment is not None:
            followed = at + 1 < len(lines) and _FENCE.fullmatch(lines[at + 1])
            if followed:
                marker = comment[1]
            else:
                found.append(Block(at + 1, comment[1], "", ""))
        at += 1
    return found


def pages() -> list[Path]:
    """Every page that people read."""
    return [README, ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]


def named(page: Path) -> str:
    """The page's path in the repository."""
    return str(page.relative_to(ROOT))


def prose(page: Path) -> list[str]:
    """The lines outside of code blocks."""
    kept, inside = [], False
    for line in page.read_text("utf-8").splitlines():
        if line.startswith("```"):
            inside = not inside
        elif not inside:
            kept.append(line)
    return kept


def headings(page: Path) -> list[str]:
    """The text of every heading."""
    return [found[1] for line in prose(page) if (found := _HEADING.fullmatch(line))]


def anchors(page: Path) -> set[str]:
    """The anchors that code hosts make of the headings."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings(page)}


def links(page: Path) -> list[str]:
    """Where the page's links go."""
    return _LINK.findall("\n".join(prose(page)))


def table(page: Path, first: str) -> list[list[str]]:
    """The cells of the table whose first heading is this, without its head."""
    lines = page.read_text("utf-8").splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith(f"| {first} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return rows
