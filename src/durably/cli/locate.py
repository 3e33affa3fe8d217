"""Finding the application: `module:attribute`, with the current folder on the path."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from types import ModuleType
from typing import Any

from durably.app import Durably
from durably.cli.usage import Usage


def find_app(where: str) -> Durably:
    """The `Durably` that `module:attribute` names; the attribute may have dots."""
    name, colon, attribute = where.partition(":")
    if not (name and colon and attribute) or not all(name.split(".")):
        raise Usage(f"{where!r} is not of the form module:app, for example shop.tasks:app")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    module = _imported(name, where)
    found: Any = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise Usage(f"{where}: {name} has no {attribute!r}{_instead(module)}") from None
    if not isinstance(found, Durably):
        raise Usage(f"{where} is of type {type(found).__name__}, not a Durably{_instead(module)}")
    return found


def _imported(name: str, where: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name != missing and not name.startswith(f"{missing}."):
            raise _broken(name, error) from error
        hint = f"; write {name.removesuffix('.py')}:app, without .py" if name.endswith(".py") else ""
        raise Usage(f"{where}: there is no module {missing!r} in {os.getcwd()} or on Python's path{hint}") from None
    except Exception as error:
        raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> Usage:
    """The module is there but fails: only its own traceback can tell why."""
    frames = error.__traceback__
    while frames is not None and not _own(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    traceback.print_exception(type(error), error, frames)
    return Usage(f"the module {name} could not be imported: {type(error).__name__}: {error}")


def _own(filename: str) -> bool:
    return filename != __file__ and "importlib" not in filename


def _instead(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, Durably)]
    return f"; did you mean {module.__name__}:{names[0]}?" if names else ""
