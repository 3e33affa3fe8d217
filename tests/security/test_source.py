"""The source itself: no SQL is made from values, and nothing turns data into code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent / "src" / "durably"
FILES = sorted(ROOT.rglob("*.py"))

FORBIDDEN_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "yaml", "jsonpickle"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
RUNNING = {"execute", "executemany", "executescript"}
MADE_OF_NAMES = {
    ("stores/postgres/store.py", 'f"CREATE SCHEMA IF NOT EXISTS {self.schema}".encode()'),
    ("demo/files.py", 'f"PRAGMA application_id = {OURS}"'),
    ("stores/postgres/listen.py", 'f"LISTEN {self._channel}".encode()'),
}
"""SQL that is put together: from a constant, or from a schema's name, which is checked to be a plain word."""
KNOWN_TEXTS = {
    "text",
    "text.encode()",
    "statement",
    "statement.encode()",
    "query.encode()",
    "pragma",
    "lock",
    "begin(connection)",
    "SETTLE",
    "value",
}
"""Names that hold a statement from a file of the package, or one written out beside the call."""


def where(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def calls(path: Path) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call):
            yield node


def called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def complaints(path: Path) -> list[str]:
    """Every statement that is run and is neither written out nor known."""
    found = []
    for call in calls(path):
        if not isinstance(call.func, ast.Attribute) or called(call) not in RUNNING or not call.args:
            continue
        if ast.unparse(call.func.value) == "self":
            continue
        first = call.args[0]
        spelled = ast.unparse(first).replace("'", '"')
        if isinstance(first, ast.Constant) or (where(path), spelled) in MADE_OF_NAMES or spelled in KNOWN_TEXTS:
            continue
        if spelled.startswith("in_schema(") and isinstance(first, ast.Call):
            inner = first.func.value if isinstance(first.func, ast.Attribute) else first
            if isinstance(inner, ast.Call) and isinstance(inner.args[0], ast.Constant):
                continue
        found.append(f"{where(path)}:{call.lineno}: {spelled}")
    return found


@pytest.mark.parametrize("path", FILES, ids=where)
def test_no_sql_is_made_from_values(path: Path) -> None:
    if "testing" not in path.relative_to(ROOT).parts:
        assert complaints(path) == []


def test_what_is_made_of_names_is_still_there() -> None:
    for file, spelled in MADE_OF_NAMES:
        text = (ROOT / file).read_text("utf-8")
        assert spelled.removesuffix(".encode()") in text, f"{file} has no {spelled} any more: take it off the list"


def test_the_check_of_sql_finds_what_it_should(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.security.test_source.ROOT", tmp_path)
    bad = tmp_path / "bad.py"
    bad.write_text(
        'c.execute(f"SELECT {x}")\nc.execute("SELECT " + x)\nc.execute("SELECT %s" % x)\nc.execute("{}".format(x))\n'
        'c.execute("; ".join(x))\nc.executescript(f"{x}".encode())\nc.execute(make(x))\nc.execute(x)\n'
        'c.execute("SELECT 1", [x])\n'
    )

    assert [line.partition(": ")[0] for line in complaints(bad)] == [f"bad.py:{number}" for number in range(1, 9)]


@pytest.mark.parametrize("path", FILES, ids=where)
def test_nothing_turns_data_into_code(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""])
    }
    assert imported.isdisjoint(FORBIDDEN_MODULES)
    for call in calls(path):
        plain = isinstance(call.func, ast.Name)
        assert not (plain and called(call) in FORBIDDEN_CALLS), f"{where(path)}:{call.lineno}: {ast.unparse(call)}"
        assert ast.unparse(call.func) not in ("os.system", "os.popen", "subprocess.getoutput"), where(path)
        shell = [word for word in call.keywords if word.arg == "shell"]
        assert not shell, f"{where(path)}:{call.lineno}: {ast.unparse(call)}"
