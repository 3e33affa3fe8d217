"""Runs the tests against one mutant after the other, each in a process of its own.

The tests are collected once. A mutant of a function is then a fork of that process in which the function has other
code; only what runs when a module is imported needs a process that imports everything anew. A mutant that does not
come to an end is stopped by its share of processor time, which no other process can use up.
"""

from __future__ import annotations

import gc
import importlib
import importlib.abc
import importlib.util
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import hypothesis
import pytest
from _pytest.runner import runtestprotocol

from .mutants import Mutant, mutants_of

PROCESSOR_SECONDS = 20
MEMORY = 4 * 1024**3
SURVIVED, NOTICED, REFUSED = 0, 1, 70
"""How a trial's process ends; one that could not even begin says so, lest it count as noticed."""


@dataclass(frozen=True)
class Subject:
    """The modules to change, and the tests that must notice."""

    modules: tuple[str, ...]
    tests: Path

    def mutants(self) -> list[Mutant]:
        found: list[Mutant] = []
        for module in self.modules:
            found += mutants_of(module, _file_of(module).read_text())
        return found


def _file_of(module: str) -> Path:
    """Where a module is, without importing anything: the mutants come first."""
    package, *inner = module.split(".")
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent.joinpath(*inner).with_suffix(".py") if inner else Path(spec.origin)


class NotATrial(Exception):
    """The tests fail without any mutant, or a mutant could not be put in place."""


def survivors(subject: Subject, mutants: Sequence[Mutant], tell: Callable[[Mutant, bool], None]) -> list[Mutant]:
    """The mutants that all tests pass with."""
    hypothesis.settings.register_profile("mutants", max_examples=30, derandomize=True, database=None, deadline=None)
    hypothesis.settings.load_profile("mutants")
    at_import = [mutant for mutant in mutants if not mutant.scope]
    in_functions = [mutant for mutant in mutants if mutant.scope]
    found: list[Mutant] = []

    def note(mutant: Mutant | None, ended: int) -> None:
        if ended == REFUSED or (mutant is None and ended != SURVIVED):
            raise NotATrial("no mutant at all" if mutant is None else mutant.name)
        if mutant is not None:
            tell(mutant, ended == SURVIVED)
            if ended == SURVIVED:
                found.append(mutant)

    _in_parallel([None, *at_import], lambda mutant: _import_and_run(subject, mutant), note)
    report, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(report)
        _leave(_collect_and_run(subject, in_functions, write))
    os.close(write)
    with os.fdopen(report) as lines:
        for line in lines:
            number, ended = line.split()
            note(in_functions[int(number)] if int(number) >= 0 else None, int(ended))
    if os.waitpid(pid, 0)[1] != 0:
        raise NotATrial("the tests could not be collected")
    return found


def _in_parallel(
    mutants: Sequence[Mutant | None], run: Callable[[Mutant | None], int], note: Callable[[Mutant | None, int], None]
) -> None:
    """Try each in a fork, as many at once as there are processors."""
    running: dict[int, Mutant | None] = {}
    for mutant in mutants:
        if len(running) >= (os.cpu_count() or 1):
            _reap(running, note)
        pid = os.fork()
        if pid == 0:
            _confine()
            _leave(run(mutant))
        running[pid] = mutant
    while running:
        _reap(running, note)


def _reap(running: dict[int, Mutant | None], note: Callable[[Mutant | None, int], None]) -> None:
    pid, status = os.wait()
    note(running.pop(pid), os.waitstatus_to_exitcode(status))


def _confine() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_SECONDS, PROCESSOR_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)


def _leave(code: int) -> None:
    os._exit(code)


class _Importer(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives a module the mutant's code when it is imported."""

    def __init__(self, module: str, code: CodeType) -> None:
        self._module = module
        self._code = code

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        return importlib.util.spec_from_loader(fullname, self) if fullname == self._module else None

    def exec_module(self, module: ModuleType) -> None:
        exec(self._code, module.__dict__)


def _arguments(subject: Subject) -> list[str]:
    return [str(subject.tests), "-x", "-q", "--noconftest", "-p", "no:cacheprovider", "--assert=plain"]


def _import_and_run(subject: Subject, mutant: Mutant | None) -> int:
    """In a fork that has not imported the module yet."""
    if any(module in sys.modules for module in subject.modules):
        return REFUSED
    if mutant is not None:
        sys.meta_path.insert(0, _Importer(mutant.module, mutant.compiled()))
    return SURVIVED if pytest.main(_arguments(subject)) == 0 else NOTICED


def _collect_and_run(subject: Subject, mutants: list[Mutant], report: int) -> int:
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    return int(pytest.main(_arguments(subject), plugins=[_Loop(mutants, report)]))


class _Loop:
    """A pytest plugin that runs the collected tests once per mutant, where pytest would run them once."""

    def __init__(self, mutants: list[Mutant], report: int) -> None:
        self._mutants = mutants
        self._report = report

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed or not session.items:
            raise session.Failed("nothing to run")
        numbers = {id(mutant): number for number, mutant in enumerate(self._mutants)}

        def note(mutant: Mutant | None, ended: int) -> None:
            os.write(self._report, f"{numbers.get(id(mutant), -1)} {ended}\n".encode())

        gc.freeze()
        _in_parallel([None, *self._mutants], lambda mutant: self._run(session.items, mutant), note)
        return True

    def _run(self, items: list[pytest.Item], mutant: Mutant | None) -> int:
        if mutant is not None:
            try:
                _put_in_place(mutant)
            except Exception:
                traceback.print_exc()
                return REFUSED
        for item, following in zip(_likely_first(items, mutant), [*items[1:], None], strict=True):
            reports = runtestprotocol(item, log=False, nextitem=following)
            if any(report.failed for report in reports):
                return NOTICED
        return SURVIVED


def _likely_first(items: list[pytest.Item], mutant: Mutant | None) -> Iterator[pytest.Item]:
    """The tests of the mutant's own module before the others."""
    own = f"test_{mutant.module.rpartition('.')[2]}.py" if mutant is not None else ""
    yield from (item for item in items if item.path.name == own)
    yield from (item for item in items if item.path.name != own)


def _put_in_place(mutant: Mutant) -> None:
    """Give the function of the running module the mutant's code."""
    code = mutant.compiled()
    for name in mutant.scope.split("."):
        [code] = [inner for inner in code.co_consts if isinstance(inner, CodeType) and inner.co_name == name]
    found: Any = sys.modules[mutant.module]
    for name in mutant.scope.split("."):
        found = vars(found)[name]
    function = getattr(found, "fget", None) or getattr(found, "__func__", found)
    assert isinstance(function, FunctionType)
    function.__code__ = code
