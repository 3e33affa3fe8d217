"""The package's protocol, loaded as a file of its own: a peer's environment has no Durably in it."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from durably.bench.protocol import handler, paced, say, serve, timed, wait_for_the_start
else:
    _spec = spec_from_file_location(
        "bench_protocol", Path(__file__).parents[1] / "src" / "durably" / "bench" / "protocol.py"
    )
    _module = module_from_spec(_spec)
    sys.modules[_spec.name] = _module
    _spec.loader.exec_module(_module)
    handler, paced, say, serve = _module.handler, _module.paced, _module.say, _module.serve
    timed, wait_for_the_start = _module.timed, _module.wait_for_the_start

__all__ = ["handler", "paced", "say", "serve", "timed", "wait_for_the_start"]
