"""The mutants: that they are made, that weak tests are found out, and that a sample of the real ones is noticed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .mutants import mutants_of

ROOT = Path(__file__).parents[2]
SAMPLE = 200


def run(*arguments: str, path: Path = ROOT) -> tuple[int, str]:
    """Run the command; its exit code and what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.mutation", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


SOURCE = '''
"""A module."""
LIMIT = 3

def allowed(count: int, extra: bool = False) -> bool:
    """Whether so many are allowed."""
    if count < 0:
        raise ValueError("negative")
    return count <= LIMIT or (extra and count == LIMIT + 1)
'''


def test_every_part_of_a_function_has_its_mutants() -> None:
    rest = "(extra and count == LIMIT + 1)"
    changes = {mutant.name.removeprefix("toy") for mutant in mutants_of("toy", SOURCE)}

    assert changes == {
        ": 3 -> 4",
        ": 3 -> 2",
        ": False -> True",
        ".allowed: count < 0 -> count <= 0",
        ".allowed: count < 0 -> count >= 0",
        ".allowed: 0 -> 1",
        ".allowed: 0 -> -1",
        ".allowed: raise ValueError('negative') -> nothing",
        ".allowed: 'negative' -> other text",
        ".allowed: return count <= LIMIT or (extra and count == LIMIT + 1) -> return None",
        f".allowed: count <= LIMIT or {rest} -> count <= LIMIT and {rest}",
        ".allowed: count <= LIMIT or (extra and count == LIMIT + 1) -> count <= LIMIT",
        ".allowed: count <= LIMIT or (extra and count == LIMIT + 1) -> extra and count == LIMIT + 1",
        ".allowed: count <= LIMIT -> count < LIMIT",
        ".allowed: count <= LIMIT -> count > LIMIT",
        ".allowed: extra and count == LIMIT + 1 -> extra or count == LIMIT + 1",
        ".allowed: extra and count == LIMIT + 1 -> extra",
        ".allowed: extra and count == LIMIT + 1 -> count == LIMIT + 1",
        ".allowed: count == LIMIT + 1 -> count != LIMIT + 1",
        ".allowed: LIMIT + 1 -> LIMIT - 1",
        ".allowed: 1 -> 2",
        ".allowed: 1 -> 0",
    }


@pytest.mark.parametrize(
    ("source", "change"),
    [
        ("def f(a, b):\n    return g(a, b)", "g(a, b) -> g(b, a)"),
        ("def f(a):\n    return g(a, deep=True)", "g(... deep=True) -> no deep="),
        ("def f(a):\n    return max(a, 0)", "max(a, 0) -> min(a, 0)"),
        ("def f(a):\n    return [x for x in a if x]", "for x in a if x -> for x in a"),
        ("def f(a):\n    match a:\n        case 1 | 2:\n            return 3", "1 | 2 -> 2"),
        ("def f(a):\n    match a:\n        case 1:\n            return 3", "case 1 -> no such case"),
        ("def f(a):\n    try:\n        g()\n    except (A, B):\n        h()", "except A, B -> not B"),
        ("def f(a):\n    return b if a else c", "b if a else c -> c"),
        ("def f(a):\n    if a:\n        g()", "if a -> if not"),
        ("def f(a):\n    a.b = 1", "a.b = 1 -> nothing"),
        ("class C:\n    def f(self):\n        return not self", "not self -> self"),
    ],
)
def test_every_kind_of_change_is_made_and_can_be_compiled(source: str, change: str) -> None:
    [mutant] = [mutant for mutant in mutants_of("toy", source) if mutant.change == change]

    assert mutant.compiled() != compile(source, "<toy>", "exec")
    assert all(other.compiled() for other in mutants_of("toy", source))


WEAK = """
import pytest
from toy import allowed

def test_it():
    assert allowed(3)
    assert not allowed(4)
    assert not allowed(5, extra=True)
    assert not allowed(2, extra=True) is None
    with pytest.raises(ValueError, match="^negative$"):
        allowed(-1)
    assert allowed(0)
"""
STRONG = WEAK + "    assert allowed(4, extra=True)\n"


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    (tmp_path / "toy.py").write_text(SOURCE)
    (tmp_path / "test_toy.py").write_text(STRONG)
    listed(tmp_path)
    return tmp_path


def listed(path: Path, *names: str) -> None:
    (path / "equivalent.toml").write_text(f'[[equivalent]]\nbecause = "we say so"\nmutants = {list(names)!r}\n')


def tried(path: Path, only: str = "") -> tuple[int, str]:
    paths = ("--tests", str(path / "test_toy.py"), "--equivalent", str(path / "equivalent.toml"))
    return run("--module", "toy", "--only", only, *paths, path=path)


def test_tests_that_pin_everything_down_leave_no_survivor(toy: Path) -> None:
    code, said = tried(toy)

    assert "no test notices" not in said
    assert (code, said.splitlines()[0]) == (0, "toy: 22 mutants, 22 noticed")


def test_a_weak_test_is_found_out_and_a_reason_excuses_it(toy: Path) -> None:
    (toy / "test_toy.py").write_text(WEAK)
    code, said = tried(toy, "allowed: count <= LIMIT or")
    survivors = [line.partition(": ")[2] for line in said.splitlines() if line.startswith("no test notices")]

    assert code == 1
    assert "toy.allowed: count <= LIMIT or (extra and count == LIMIT + 1) -> count <= LIMIT" in survivors
    listed(toy, *survivors)
    assert tried(toy, "allowed: count <= LIMIT or")[0] == 0


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("toy.allowed: 1 -> 2", "a test does notice what is listed as equivalent: toy.allowed: 1 -> 2"),
        ("toy.allowed: 7 -> 8", "listed, but there is no such mutant any more: toy.allowed: 7 -> 8"),
    ],
)
def test_a_reason_that_is_not_needed_is_refused(toy: Path, name: str, complaint: str) -> None:
    listed(toy, name)
    code, said = tried(toy, "1 -> 2")

    assert code == 1
    assert complaint in said


def test_tests_that_fail_by_themselves_prove_nothing(toy: Path) -> None:
    (toy / "test_toy.py").write_text(STRONG + "    assert False\n")
    code, said = tried(toy, "1 -> 2")

    assert code == 1
    assert "NotATrial: no mutant at all" in said


def test_a_sample_of_the_mutants_of_the_core_is_noticed() -> None:
    code, said = run("--sample", str(SAMPLE), "--seed", os.environ.get("DURABLY_SEED", "1"))

    assert code == 0, said
    assert f"{SAMPLE} of " in said
