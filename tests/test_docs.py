"""The documentation is true: its snippets run, its tutorial works to the letter, its lists are complete."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import durably
from durably import deliveries, errors, mail, notifications
from durably.client import dead, operators
from durably.core.options import CallOptions, DeclaredOptions
from durably.deliveries import destinations
from durably.observe.events import Event
from tests.docs_support import cipher, source
from tests.docs_support.commands import known_commands, parses
from tests.docs_support.django_state import unconfigured_django
from tests.docs_support.markdown import (
    DOCS,
    README,
    ROOT,
    anchors,
    blocks,
    headings,
    links,
    named,
    pages,
    table,
)
from tests.docs_support.shell import SKIPPED, Reader
from tests.docs_support.snippets import needs_server, run_snippets
from tests.docs_support.stubs import complaints

FOLLOWED = [DOCS / "how-to" / f"{name}.md" for name in ("mail", "notifications", "write-a-channel")]
"""Guides that are followed like the tutorial: their files are written, and their commands are typed."""
WITH_SNIPPETS = [README, *(page for page in sorted(DOCS.glob("how-to/*.md")) if page not in FOLLOWED)]
API = DOCS / "reference" / "api.md"


def words(cell: str) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`]+)`", cell)


def test_the_tutorial_works_to_the_letter(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    try:
        for block in blocks(DOCS / "tutorial.md"):
            reader.follow(block)
    finally:
        reader.close()

    assert all(any(line.startswith(start) for line in reader.skipped) for start in SKIPPED)


@pytest.mark.parametrize("page", FOLLOWED, ids=named)
def test_a_guide_works_to_the_letter(page: Path, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    try:
        for block in blocks(page):
            assert block.marker or not block.language, f"{page.name}:{block.line}: what is to be done with this?"
            if block.marker:
                reader.follow(block)
    finally:
        reader.close()

    assert all(line.startswith("pip install ") for line in reader.skipped)


@pytest.mark.parametrize("page", WITH_SNIPPETS, ids=named)
def test_every_snippet_runs(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = request.getfixturevalue("postgres_url") if needs_server(page) else None
    cipher.provide(monkeypatch)
    module = ModuleType("snippets")
    monkeypatch.setitem(sys.modules, "snippets", module)
    monkeypatch.chdir(tmp_path)
    with unconfigured_django():
        run_snippets(page, module, url, capsys)


@pytest.mark.parametrize("page", pages(), ids=named)
def test_every_command_line_is_one(page: Path) -> None:
    for block in blocks(page):
        if block.language == "sh":
            for line in block.code.splitlines():
                command, *arguments = shlex.split(line, comments=True)
                assert command != "durably" or parses(arguments), f"{named(page)}: {line}"


@pytest.mark.parametrize("page", pages(), ids=named)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in links(page):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        goal = page if not path else page.parent / path
        assert goal.exists(), target
        assert not anchor or anchor in anchors(goal), target


def test_every_page_can_be_reached() -> None:
    reached = {target.resolve() for page in pages() for target in map(page.parent.joinpath, links(page))}
    found = {Path(str(path).partition("#")[0]) for path in reached}

    assert {page for page in pages() if page != README} <= found


def test_the_page_of_states_is_what_the_code_says() -> None:
    generated: str = runpy.run_path(str(DOCS / "generate_states.py"))["page"]()

    assert (DOCS / "explanation" / "states.md").read_text("utf-8") == generated, "run python docs/generate_states.py"


def test_the_api_names_everything_that_is_public() -> None:
    text = API.read_text("utf-8")

    assert [name for name in durably.__all__ if f"`{name}`" not in text and name not in headings(API)] == []


def test_the_api_shows_the_signatures_as_they_are() -> None:
    def find(name: str) -> Any:
        return next(getattr(one, name) for one in (durably, operators, dead) if hasattr(one, name))

    assert [told for block in blocks(API) for told in complaints(block.code, find)] == []


@pytest.mark.parametrize(
    ("page", "package", "more"),
    [("deliveries", deliveries, [destinations]), ("mail", mail, [deliveries]), ("notifications", notifications, [])],
    ids=["deliveries", "mail", "notifications"],
)
def test_the_reference_shows_the_signatures_as_they_are(page: str, package: Any, more: list[Any]) -> None:
    reference = DOCS / "reference" / f"{page}.md"

    def find(name: str) -> Any:
        return next(getattr(one, name) for one in (package, *more) if hasattr(one, name))

    assert [told for block in blocks(reference) for told in complaints(block.code, find)] == []
    shown = {name for name in package.__all__ if re.search(rf"\b{name}\b", reference.read_text("utf-8"))}
    used = {name for name in package.__all__ if any(name in guide.read_text("utf-8") for guide in pages())}
    assert set(package.__all__) <= shown | used


def test_every_option_is_explained() -> None:
    rows = {words(row[0])[0]: row[2] for row in table(DOCS / "reference" / "options.md", "option")}
    per_call = {option for option, meaning in rows.items() if meaning.startswith("Only per call")}

    assert rows.keys() - per_call == set(DeclaredOptions.__annotations__)
    assert per_call == CallOptions.__annotations__.keys() - DeclaredOptions.__annotations__.keys()


def test_every_command_is_listed_with_its_options() -> None:
    rows = table(DOCS / "reference" / "cli.md", "command")
    shown = {re.split(r" [A-Z]", words(row[0])[0])[0]: set(words(row[2])) for row in rows}

    assert shown == known_commands()


def test_every_kind_of_event_is_listed_with_every_field() -> None:
    page = DOCS / "reference" / "events.md"

    assert {words(row[0])[0] for row in table(page, "kind")} == source.event_kinds()
    assert [words(row[0])[0] for row in table(page, "field")] == list(Event.__struct_fields__)


def test_every_code_of_why_is_explained() -> None:
    rows = table(DOCS / "how-to" / "operate.md", "code")

    assert {words(row[0])[0] for row in rows} == source.why_codes()


def test_every_error_is_listed_with_what_else_it_is() -> None:
    tables = DOCS / "reference" / "errors.md"
    text = tables.read_text("utf-8")
    listed = {words(row[0])[0]: row[1] for row in table(tables, "error")}
    public = {
        name: value for name, value in vars(errors).items() if isinstance(value, type) and name in durably.__all__
    }

    assert [name for name in public if f"| `{name}" not in text] == []
    assert listed.keys() == {name for name, value in public.items() if issubclass(value, errors.DurablyError)}
    for name, also in listed.items():
        bases = {base.__name__ for base in public[name].__bases__} - {"DurablyError", "Exception"}
        assert set(words(also)) == bases, name


def test_every_decision_but_the_one_to_come_has_a_page() -> None:
    numbers = [int(page.name[:4]) for page in sorted((DOCS / "decisions").glob("0*.md"))]

    assert numbers == [number for number in range(1, numbers[-1] + 1) if number != 15]
    for page in (DOCS / "decisions").glob("0*.md"):
        assert headings(page)[1:3] == ["Context", "Decision"], named(page)
        assert "Consequences" in headings(page), named(page)


def test_the_two_commands_for_a_clone_exist() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    commands = [line.split()[1] for block in blocks(README) for line in block.code.splitlines() if line[:5] == "make "]

    assert commands == ["demo", "test"]
    assert all(f"\n{target}: " in makefile for target in commands)
