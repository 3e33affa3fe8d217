"""The peers: what each takes part in, and the throw-away environment that it runs in."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.contenders import ROOT, Entry
from bench.run import told
from durably.bench.process import Contender, Failed, complaint

ENVIRONMENTS = ROOT / ".venvs" / "bench-peers"
HERE = Path(__file__).parent

USUAL = frozenset({"enqueue", "bulk", "drain-1", "drain-2", "latency", "latency-half"})
ASYNC = USUAL | {"callers-64", "callers-1000"}
PEERS: dict[str, tuple[str, str, frozenset[str], float]] = {
    "graphile-worker": ("postgres", "postgres", USUAL, 1.0),
    "pgqueuer": ("postgres", "postgres", ASYNC, 0.5),
    "huey": ("sqlite", "sqlite", USUAL, 0.05),
    "procrastinate": ("postgres", "postgres", ASYNC, 0.03),
    "dbos": ("postgres", "postgres", USUAL, 0.01),
    "dramatiq": ("postgres", "valkey", USUAL, 0.05),
    "celery": ("postgres", "valkey", USUAL, 0.05),
}
"""By name: in which tables it stands, the server that it needs, what it takes part in, and its share of the tasks."""


BRISK, QUICK = 0.1, frozenset({"enqueue", "bulk", "drain-1", "drain-2", "latency"})
"""In a quick run, peers with a larger share than this take part in these measurements, the others in one drain."""


def enlisted(names: Sequence[str], *, quick: bool = False) -> tuple[list[Entry], dict[str, str]]:
    """Those that could be installed, and why the others could not."""
    entries, refused = [], {}
    for name in names:
        side, store, takes, share = PEERS[name]
        try:
            contender = _installed_from_npm(name) if name == "graphile-worker" else _installed_from_pypi(name)
        except (Failed, OSError) as error:
            refused[name] = str(error)
            told(f"{name} is not measured: {error}")
        else:
            if quick:
                takes &= QUICK if share > BRISK else {"drain-1"}
            entries.append(Entry(contender, side, takes, store=store, share=share))
    return entries, refused


def pinned(name: str) -> str:
    """The version that is measured."""
    if name == "graphile-worker":
        wanted: dict[str, str] = json.loads((HERE / "package.json").read_text())["dependencies"]
        return wanted[name]
    first = (HERE / "requirements" / f"{name}.txt").read_text().splitlines()[0]
    return first.partition("==")[2]


def _installed_from_pypi(name: str) -> Contender:
    requirements = HERE / "requirements" / f"{name}.txt"
    environment = ENVIRONMENTS / name
    python = environment / "bin" / "python"
    if not _current(environment, requirements):
        told(f"installing {name} {pinned(name)}")
        _run(sys.executable, "-m", "venv", "--clear", str(environment))
        _run(str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "-r", str(requirements))
        _stamp(environment, requirements)
    return Contender(
        name,
        (str(python), "-m", f"bench.peers.{name}"),
        environment={"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"},
    )


def _installed_from_npm(name: str) -> Contender:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise Failed("there is no node here")
    manifest, folder = HERE / "package.json", ENVIRONMENTS / "node"
    if not _current(folder, manifest):
        told(f"installing {name} {pinned(name)}")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(manifest, folder)
        _run(npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder))
        _stamp(folder, manifest)
    return Contender(name, (node, str(HERE / "graphile.mjs")), environment={"BENCH_NODE": str(folder)})


def _current(environment: Path, wanted: Path) -> bool:
    stamp = environment / "made-from"
    return stamp.exists() and stamp.read_bytes() == wanted.read_bytes()


def _stamp(environment: Path, wanted: Path) -> None:
    (environment / "made-from").write_bytes(wanted.read_bytes())


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode != 0:
        raise Failed(f"it does not install: {complaint(done.stderr or done.stdout)}")
