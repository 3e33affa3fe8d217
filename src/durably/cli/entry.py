"""From the command line to an exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from durably.cli.parser import parser
from durably.cli.usage import Usage
from durably.cli.words import printable
from durably.errors import DurablyError

FAILED, MISUSED, INTERRUPTED, PIPE_CLOSED = 1, 2, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 is success, 1 a failure, 2 a misuse."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if not all(map(_is_text, arguments)):
        return _complain(Usage("an argument is not text: it has bytes that are no UTF-8, or NUL"), MISUSED)
    options = parser().parse_args(arguments, argparse.Namespace(arguments=arguments))
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except Usage as error:
        return _complain(error, MISUSED)
    except DurablyError as error:
        return _complain(error, FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout once more on its way out, and must find someone who listens.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    return code


def _is_text(argument: str) -> bool:
    """Whether it can be stored and printed; bytes that are no UTF-8 arrive as lone surrogates."""
    return "\0" not in argument and not any("\ud800" <= letter <= "\udfff" for letter in argument)


def _complain(error: Exception, code: int) -> int:
    print(f"durably: {printable(str(error), lines=True)}", file=sys.stderr)
    return code
