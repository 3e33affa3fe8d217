"""Templates of mails: where their sources are found, in which language, and what comes out of them. Pure."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from durably.core.brief import brief
from durably.errors import BadOption, MissingPackage

ENDINGS = {"subject": "subject", "text": "txt", "html": "html"}
NAME = re.compile(r"[A-Za-z0-9._/-]{1,200}")
LOCALE = re.compile(
    r"[a-z]{2,3}(?:-[a-z]{4})?(?:-(?:[a-z]{2}|[0-9]{3}))?(?:-(?:[a-z0-9]{5,8}|[0-9][a-z0-9]{3}))*",
    re.ASCII | re.IGNORECASE,
)
NEVER = re.compile(r"[\\\x00\ud800-\udfff]")
NOT_ONE_LINE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class Template(msgspec.Struct, frozen=True):
    """The sources of one template."""

    name: str
    subject: str
    text: str | None = None
    html: str | None = None
    locale: str = ""
    version: str = ""

    def __post_init__(self) -> None:
        if self.text is None and self.html is None:
            raise BadOption(f"template {brief(self.name)} needs a text, an HTML part, or both")


class Rendered(msgspec.Struct, frozen=True):
    """What came out of a template, and out of which one."""

    subject: str
    text: str | None
    html: str | None
    locale: str
    """The one that was found, which may be less special than the one that was asked for."""
    version: str


class Folder:
    """Templates in files: `welcome.subject`, `welcome.txt`, `welcome.html`, and `welcome.de-AT.txt` for a locale.

    What looks like a locale at the end of a name is taken for one: `order-new` is a better name than `order.new`.
    """

    def __init__(self, path: str | Path) -> None:
        self._root = Path(os.path.realpath(path))
        if not self._root.is_dir():
            raise BadOption(f"templates: {os.fspath(path)} is not a folder")
        self._known: dict[Path, tuple[int, int, str]] = {}

    def find(self, name: str, locale: str = "") -> Template | None:
        """The template for a locale or what it falls back to. What a locale leaves out is taken from the next."""
        _name(name)
        locales = {one: self._parts(name, one) for one in fallbacks(locale)}
        found = [one for one, parts in locales.items() if parts]
        if not found:
            return None
        parts: dict[str, str] = {}
        for one in reversed(found):
            parts |= locales[one]
        if "subject" not in parts:
            raise BadOption(f"template {name!r} has no subject: write {name}.subject")
        if len(parts) == 1:
            raise BadOption(f"template {name!r} has no body: write {name}.txt, {name}.html, or both")
        return Template(name, **parts, locale=found[0], version=_version(parts, self))

    def names(self) -> list[str]:
        """Every template that has a subject in some locale; files and folders that start with _ are for others."""
        names = set()
        for path in self._root.rglob("*.subject"):
            stem = path.relative_to(self._root).as_posix().removesuffix(".subject")
            name, dot, last = stem.rpartition(".")
            name = name if dot and LOCALE.fullmatch(last) else stem
            hidden = any(part.startswith("_") for part in stem.split("/"))
            inside = Path(os.path.realpath(path)).is_relative_to(self._root) and path.is_file()
            if inside and not hidden and _is_name(name):
                names.add(name)
        return sorted(names)

    def read(self, file: str) -> str | None:
        """The source in a file of the folder; None if there is no such file."""
        try:
            path = self._inside(file)
            now = path.stat()
            if not stat.S_ISREG(now.st_mode):
                return None
            known = self._known.get(path)
            if known is None or known[:2] != (now.st_mtime_ns, now.st_size):
                known = self._known[path] = now.st_mtime_ns, now.st_size, path.read_text("utf-8-sig")
            return known[2]
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, UnicodeError) as error:
            raise BadOption(f"templates: {brief(file)} cannot be read: {error}") from None

    def _parts(self, name: str, locale: str) -> dict[str, str]:
        stem = f"{name}.{locale}" if locale else name
        found = {part: self.read(f"{stem}.{ending}") for part, ending in ENDINGS.items()}
        return {part: source for part, source in found.items() if source is not None}

    def _inside(self, file: str) -> Path:
        if not file or file.startswith("/") or ".." in file.split("/") or NEVER.search(file):
            raise BadOption(
                f"templates: {brief(file)} must be the name of a file in the folder, such as parts/base.html"
            )
        path = Path(os.path.realpath(self._root / file))
        if not path.is_relative_to(self._root):
            raise BadOption(f"templates: {brief(file)} is a link out of the folder; put the file itself there")
        return path


def render(template: Template, context: Mapping[str, Any], loader: Folder | None = None) -> Rendered:
    """The words of a mail. Values are data, and never read as a template."""
    if not isinstance(context, Mapping):
        raise BadOption(f"context: a {type(context).__name__} must be a mapping from names to values")
    for key in context:
        if not isinstance(key, str):
            raise BadOption(f"context: the name {brief(key)} must be text")
    with jinja2_needed():
        from durably.mail.sandbox import rendered

    read = _nothing if loader is None else loader.read
    subject, text, html = (
        None if source is None else rendered(template.name, part, source, context, read)
        for part, source in _sources(template).items()
    )
    subject = str(subject).strip(" \t\r\n")
    if NOT_ONE_LINE.search(subject):
        raise BadOption(
            f"template {template.name!r} (subject): {brief(subject)} must be one line, without control characters"
        )
    return Rendered(subject, text, html, template.locale, template.version)


def checked(name: str, subject: str, text: str | None, html: str | None, locale: str = "") -> Template:
    """A template that somebody wrote, if it can be read. What it extends or includes is looked for when it is used."""
    template = Template(_name(name), subject, text, html, _locale(locale))
    with jinja2_needed():
        from durably.mail.sandbox import compiled, telling

    parts = {}
    for part, source in _sources(template).items():
        if source is None and part != "subject":
            continue
        if not isinstance(source, str):
            raise BadOption(f"template {name!r} ({part}): {brief(source)} must be text")
        with telling(name, part):
            compiled(part, source)
        parts[part] = source
    return msgspec.structs.replace(template, version=_version(parts, None))


def fallbacks(locale: str) -> list[str]:
    """Where a template is looked for: `de-AT`, then `de`, then without a locale."""
    parts = _locale(locale).split("-")
    return ["-".join(parts[:length]) for length in range(len(parts), 0, -1) if parts[0]] + [""]


@contextmanager
def jinja2_needed() -> Iterator[None]:
    """Import what uses `jinja2` within, so that its absence is told with what to install."""
    try:
        yield
    except ImportError as error:
        raise MissingPackage(f"a template needs the package jinja2: pip install 'durably[smtp]' ({error})") from error


def _sources(template: Template) -> dict[str, str | None]:
    return {"subject": template.subject, "text": template.text, "html": template.html}


def _nothing(file: str) -> None:
    """No files are known."""


def _version(parts: Mapping[str, str], folder: Folder | None) -> str:
    """A hash over the sources, and over those that they name and that lie in the folder."""
    with jinja2_needed():
        from durably.mail.sandbox import references

    files: dict[str, str] = {}
    left = list(parts.values())
    while left and folder is not None:
        for file in references(left.pop()) - files.keys():
            try:
                source = folder.read(file)
            except BadOption:
                continue
            if source is not None:
                files[file] = source
                left.append(source)
    return blake2b(msgspec.json.encode([parts, files], order="sorted"), digest_size=6).hexdigest()


def _is_name(given: Any) -> bool:
    if not isinstance(given, str) or not NAME.fullmatch(given):
        return False
    return ".." not in given and not {"", "."} & set(given.split("/"))


def _name(given: str) -> str:
    if not _is_name(given):
        raise BadOption(
            f"template: {brief(given)} must be a name of 1 to 200 letters, digits and ._/- such as orders/shipped"
        )
    return given


def _locale(given: str) -> str:
    """A language tag as it is usually written: de, de-AT, zh-Hant-TW."""
    if given == "":
        return ""
    tag = given.replace("_", "-") if isinstance(given, str) else ""
    if not LOCALE.fullmatch(tag):
        raise BadOption(f"locale: {brief(given)} must be a language tag such as de, de-AT or zh-Hant-TW, or empty")
    language, *others = tag.split("-")
    cases = {2: str.upper, 4: str.title}
    return "-".join([language.lower(), *(cases.get(len(one), str.lower)(one) for one in others)])
