"""Running the Python blocks of a page one after the other, in one module, with a real server where it names one."""

from __future__ import annotations

import gc
from pathlib import Path
from types import ModuleType

import pytest

from durably import Durably
from tests.docs_support.expected import compare
from tests.docs_support.markdown import blocks

SERVER = "postgresql://app@localhost/shop"
"""The address that pages use; SQLAlchemy's spelling of it names a driver too."""


def needs_server(page: Path) -> bool:
    """Whether one of the snippets names the server."""
    return any("@localhost/shop" in block.code for block in blocks(page) if block.language == "python")


def run_snippets(page: Path, module: ModuleType, url: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    """Run every Python block in the module, and compare what is printed with the output that follows it."""
    try:
        for block in blocks(page):
            if block.language == "python":
                assert block.marker == "", f"{page.name}:{block.line}: every Python block runs as it is"
                # Empty lines before it, so that a traceback names the line of the page.
                source = "\n" * (block.line - 1) + _addressed(block.code, url)
                exec(compile(source, str(page), "exec", dont_inherit=True), vars(module))
            elif block.marker == "output":
                printed = capsys.readouterr().out
                assert compare(block.code, printed) is not None, f"{page.name}:{block.line}: this came:\n{printed}"
    finally:
        _close(module)


def _addressed(code: str, url: str | None) -> str:
    if url is None:
        return code
    rest = url.partition("://")[2]
    for scheme in ("postgresql", "postgresql+psycopg", "postgresql+asyncpg"):
        code = code.replace(f'"{scheme}://app@localhost/shop"', repr(f"{scheme}://{rest}"))
    return code


def _close(module: ModuleType) -> None:
    """Close what the page left open, so that nothing of it is found by the tests that follow."""
    for value in list(vars(module).values()):
        if isinstance(value, Durably):
            value.close()
        elif hasattr(value, "dispose"):
            value.dispose()
    vars(module).clear()
    gc.collect()
