"""The templates of an application: files in a folder, and those that people keep in the store."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from durably.client.engine import Engine
from durably.client.plan import Plan, arun, run
from durably.core.brief import brief
from durably.errors import BadOption
from durably.mail.templates import Folder, Rendered, Template, checked, fallbacks, render
from durably.stores.operations.mail import add_template, forget_template, list_templates, newest_templates

ROUNDS = 20


class TemplateInfo(msgspec.Struct, frozen=True):
    """A template, and where it is kept."""

    name: str
    locale: str
    version: str
    stored: bool
    """Whether it is kept in the store, and not in a file."""


class Templates:
    """What mails are made from. A file is found before what is stored under the same name."""

    def __init__(self, engine: Engine, namespace: str) -> None:
        self._store = engine.store
        self._namespace = namespace
        self._folder: Folder | None = None

    def folder(self, path: str | Path) -> None:
        """Use the files of a folder: `welcome.subject`, `welcome.txt`, `welcome.html`, and `welcome.de.txt`."""
        self._folder = Folder(path)

    def put(
        self, name: str, *, subject: str, text: str | None = None, html: str | None = None, locale: str = ""
    ) -> int:
        """Keep a new version of a template in the store; its number. Mails that were accepted before do not change."""
        return run(self._store, self._putting(checked(name, subject, text, html, locale)))

    async def aput(
        self, name: str, *, subject: str, text: str | None = None, html: str | None = None, locale: str = ""
    ) -> int:
        """The asynchronous twin of put."""
        return await arun(self._store, self._putting(checked(name, subject, text, html, locale)))

    def list(self) -> builtins.list[TemplateInfo]:
        """Every template, by name and locale."""
        return run(self._store, self._listing())

    async def alist(self) -> builtins.list[TemplateInfo]:
        """The asynchronous twin of list."""
        return await arun(self._store, self._listing())

    def forget(self, name: str, *, locale: str = "") -> int:
        """Forget a stored template in one locale; how many versions there were."""
        return self._store.run(forget_template(self._namespace, name, fallbacks(locale)[0]))

    async def aforget(self, name: str, *, locale: str = "") -> int:
        """The asynchronous twin of forget."""
        return await self._store.arun(forget_template(self._namespace, name, fallbacks(locale)[0]))

    def rendering(self, name: str, context: Mapping[str, Any], locale: str) -> Plan[Rendered]:
        """The words of a mail, out of the newest version for a locale or for what it falls back to."""
        found = self._folder.find(name, locale) if self._folder is not None else None
        if found is None:
            found = yield from self._stored(name, locale)
        if found is None:
            where = "in the store" if self._folder is None else "in the folder of templates, or in the store"
            raise BadOption(f"template: there is no {brief(name)} {where}")
        return render(found, context, self._folder)

    def names(self) -> Plan[set[str]]:
        """The names of all templates, in whatever locale they are."""
        stored = yield list_templates(self._namespace)
        return {name for name, _, _, _ in stored} | set(self._folder.names() if self._folder is not None else ())

    def _stored(self, name: str, locale: str) -> Plan[Template | None]:
        """The most special one; what it leaves out is not taken from others, as it is for files."""
        wanted = fallbacks(locale)
        known: dict[str, tuple[int, str]] = yield newest_templates(self._namespace, name, wanted)
        for one in wanted:
            if one in known:
                version, source = known[one]
                return msgspec.structs.replace(
                    msgspec.json.decode(source, type=Template), locale=one, version=str(version)
                )
        return None

    def _putting(self, template: Template) -> Plan[int]:
        source = msgspec.json.encode(template).decode()
        for _ in range(ROUNDS):
            version: int | None = yield add_template(self._namespace, template.name, template.locale, source)
            if version is not None:
                return version
        raise BadOption(f"template: {brief(template.name)} is changed by others all the time")

    def _listing(self) -> Plan[builtins.list[TemplateInfo]]:
        stored = yield list_templates(self._namespace)
        found = [TemplateInfo(name, locale, str(version), True) for name, locale, version, _ in stored]
        if self._folder is not None:
            for name in self._folder.names():
                template = self._folder.find(name, "")
                found.append(TemplateInfo(name, "", template.version if template is not None else "", False))
        return sorted(found, key=lambda one: (one.name, one.locale, one.stored))
