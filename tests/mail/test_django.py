"""Django's mail goes into the outbox: whole, once, and with the transaction in which it was sent."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from email import message_from_bytes
from email.message import EmailMessage, MIMEPart
from email.policy import default
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import pytest

from durably import BadOption, Durably
from durably.errors import NoTransaction, WrongConnection
from durably.mail.info import MailInfo
from durably.stores.postgres.store import PostgresStore
from durably.stores.sqlite.store import SqliteStore
from tests.support.command import SAFETY, SOURCE
from tests.support.smtp import Script
from tests.within_kinds import ORDERS, Place, PostgresPlace, SqlitePlace, django_for, forget_django

django: Any = import_module("django.core.mail")
improper: Any = import_module("django.core.exceptions").ImproperlyConfigured

ANN, BOB, CYD, ROOT = "ann@x.example", "bob@x.example", "cyd@x.example", "root@x.example"
SHOP = "Shop <shop@here.example>"
BACKEND = "durably.mail.django.EmailBackend"


class Site:
    """A Django site whose default database is the store of an application."""

    def __init__(self, app: Durably, place: Place) -> None:
        self.app = app
        self.place = place
        self.db = django_for(place)

    def settings(self, **settings: Any) -> Any:
        """These settings, for a block."""
        return import_module("django.test.utils").override_settings(**settings)

    def order(self, name: str) -> None:
        """What the site itself writes."""
        with self.db.connection.cursor() as cursor:
            cursor.execute("INSERT INTO orders VALUES (%s)", [name])

    def mails(self) -> list[MailInfo]:
        """The oldest first."""
        return [self.app.mail.get(one.id) for one in sorted(self.app.mail.list(), key=lambda one: one.accepted)]

    def source(self, number: int = 0) -> EmailMessage:
        return message_from_bytes(self.app.mail.source(self.mails()[number].id), policy=default)


@pytest.fixture
def site(app: Durably, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    store = app.store
    assert isinstance(store, SqliteStore | PostgresStore)
    made = Site(app, SqlitePlace(store) if isinstance(store, SqliteStore) else PostgresPlace(store))
    with made.db.connection.cursor() as cursor:
        cursor.execute(ORDERS)
    app.mail.add_transport("main", "smtp://mail.example")
    tasks = ModuleType("shop_tasks")
    tasks.app = app  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "shop_tasks", tasks)
    with made.settings(
        EMAIL_BACKEND=BACKEND,
        DURABLY_APP="shop_tasks:app",
        DEFAULT_FROM_EMAIL=SHOP,
        SERVER_EMAIL="server@here.example",
        ADMINS=[("Root", ROOT)],
    ):
        yield made
    forget_django()


@pytest.fixture
def within(site: Site) -> Iterator[Site]:
    """The same, with mail that is part of the transaction."""
    with site.settings(DURABLY_MAIL_WITHIN="default"):
        yield site


def addresses(mail: MailInfo) -> list[str]:
    return [one.address for one in mail.recipients]


def content(part: MIMEPart | None) -> str:
    assert part is not None
    return str(part.get_content()).strip()


class TestWhatIsAccepted:
    def test_a_mail_is_accepted_with_its_envelope(self, site: Site) -> None:
        assert django.send_mail("Hello", "It is there.", None, [ANN, f"Bob <{BOB}>"]) == 1

        [mail] = site.mails()
        assert (mail.state, mail.transport, mail.about.subject) == ("waiting", "main", "Hello")
        assert (mail.about.sender, addresses(mail)) == ("shop@here.example", [ANN, BOB])
        source = site.source()
        assert (source["From"], source["To"], source["Subject"]) == (SHOP, f"{ANN}, Bob <{BOB}>", "Hello")
        assert content(source) == "It is there."

    def test_text_html_and_attachments_arrive_as_they_were_written(self, site: Site) -> None:
        message = django.EmailMultiAlternatives(
            "Grüße", "Schöne\nFrom here", SHOP, [ANN], reply_to=["desk@here.example"]
        )
        message.attach_alternative("<p>Schöne</p>", "text/html")
        message.attach("rëceipt.pdf", b"\x00\xff\r\n.\n", "application/pdf")
        message.send()

        source = site.source()
        assert (source["Subject"], source["Reply-To"]) == ("Grüße", "desk@here.example")
        assert content(source.get_body(("plain",))).splitlines() == ["Schöne", "From here"]
        assert content(source.get_body(("html",))) == "<p>Schöne</p>"
        [file] = source.iter_attachments()
        assert (file.get_filename(), file.get_content()) == ("rëceipt.pdf", b"\x00\xff\r\n.\n")

    def test_bcc_is_in_the_envelope_only(self, site: Site) -> None:
        django.EmailMessage("Hello", "x", SHOP, [ANN], bcc=[CYD], cc=[BOB]).send()

        [mail] = site.mails()
        assert addresses(mail) == [ANN, BOB, CYD]
        assert b"cyd" not in site.app.mail.source(mail.id)

    def test_the_sender_of_the_envelope_can_be_another_than_the_author(self, site: Site) -> None:
        django.EmailMessage("Hello", "x", "bounces@here.example", [ANN], headers={"From": SHOP}).send()

        [mail] = site.mails()
        assert (mail.about.sender, site.source()["From"]) == ("bounces@here.example", SHOP)

    def test_a_domain_outside_of_ascii_is_written_as_dns_has_it(self, site: Site) -> None:
        django.send_mail("Hello", "x", "Käthe <k@bücher.example>", ["Jörg <j@bücher.example>"])

        [mail] = site.mails()
        assert (mail.about.sender, addresses(mail)) == ("k@xn--bcher-kva.example", ["j@xn--bcher-kva.example"])

    def test_many_mails_are_counted_without_those_to_nobody(self, site: Site) -> None:
        messages = [django.EmailMessage(str(number), "x", SHOP, to) for number, to in enumerate([[ANN], [], ["", BOB]])]

        assert django.get_connection().send_messages(messages) == 2
        assert [(mail.about.subject, addresses(mail)) for mail in site.mails()] == [("0", [ANN]), ("2", [BOB])]
        assert django.EmailMessage("Hello", "x", SHOP).send() == 0
        assert django.send_mass_mail([("Hello", "x", SHOP, [ANN]), ("Hello", "x", SHOP, [BOB])]) == 2

    def test_nothing_is_loaded_for_nobody(self, site: Site) -> None:
        with site.settings(DURABLY_APP="no_such_module:app"):
            assert django.get_connection().send_messages([]) == 0
            assert django.get_connection().send_messages([django.EmailMessage("Hello", "x", SHOP)]) == 0

    def test_administrators_get_theirs(self, site: Site) -> None:
        django.mail_admins("Disk", "It is full.", html_message="<p>Full</p>")

        [mail] = site.mails()
        assert (mail.about.sender, mail.about.subject) == ("server@here.example", "[Django] Disk")
        assert addresses(mail) == [ROOT]

    def test_the_category_and_the_key_are_told_to_nobody_else(self, site: Site) -> None:
        headers = {"X-Durably-Key": "order-7", "x-durably-category": "Grüße", "X-Shop": "7"}
        first = django.EmailMessage("Hello", "x", SHOP, [ANN], headers=headers)

        assert [first.send(), django.EmailMessage("Other", "y", SHOP, [BOB], headers=headers).send()] == [1, 1]
        [mail] = site.mails()
        assert (mail.key, mail.about.category, mail.about.subject) == ("order-7", "Grüße", "Hello")
        assert b"x-durably" not in site.app.mail.source(mail.id).lower()
        assert site.source()["X-Shop"] == "7"
        assert first.extra_headers == headers

    def test_a_subject_cannot_bring_headers_with_it(self, site: Site) -> None:
        for subject in ("x\nBcc: eve@evil.example", "x\r\nBcc: eve@evil.example"):
            with pytest.raises(django.BadHeaderError):
                django.send_mail(subject, "x", SHOP, [ANN], fail_silently=True)
        with pytest.raises(ValueError, match="line"):
            django.send_mail("Hello", "x", SHOP, [f"{ANN}\r\nRCPT TO:<eve@evil.example>"])
        assert site.mails() == []

    @pytest.mark.parametrize("name", ["X-A\r\nBcc: eve@evil.example\r\nX-B", "X-A\nB", "X A", "X\0"])
    def test_the_name_of_a_header_cannot_bring_others_with_it(self, site: Site, name: str) -> None:
        with pytest.raises(BadOption, match="is not the name of a header"):
            django.EmailMessage("Hello", "x", SHOP, [ANN], headers={name: "v"}).send()
        assert site.mails() == []

    @pytest.mark.parametrize("name", ["Bcc", "Resent-Bcc"])
    def test_a_header_does_not_show_whom_nobody_may_see(self, site: Site, name: str) -> None:
        django.EmailMessage("Hello", "x", SHOP, [ANN], headers={name: "eve@evil.example"}).send()

        [mail] = site.mails()
        assert addresses(mail) == [ANN]
        assert b"eve" not in site.app.mail.source(mail.id)

    @pytest.mark.parametrize("domain", ["straße.example", "نامه\u200cی.example", "example\u3002org"])
    def test_a_domain_that_not_all_read_alike_is_refused(self, site: Site, domain: str) -> None:
        for sender, to in ((SHOP, f"ann@{domain}"), (f"shop@{domain}", ANN)):
            with pytest.raises(BadOption, match="write the domain in ASCII"):
                django.send_mail("Hello", "x", sender, [to])
        assert site.mails() == []

    def test_a_body_is_seven_bits_wide(self, site: Site) -> None:
        message = django.EmailMultiAlternatives("Grüße", "Schöne", SHOP, [ANN])
        message.attach_alternative("<p>Schöne</p>", "text/html")
        message.attach("before.eml", message_from_bytes("Subject: x\n\nSchön\n".encode()), "message/rfc822")
        message.send()

        assert site.app.mail.source(site.mails()[0].id).isascii()
        assert content(site.source().get_body(("plain",))) == "Schöne"

    def test_a_worker_sends_it(self, site: Site) -> None:
        server = Script()

        async def work() -> None:
            async with server.listening() as port:
                address = f"smtp://127.0.0.1:{port}?tls=none"
                await site.app.deliveries.destinations.aset("main", address=address)
                await site.app.atick()
                await site.app.aclose()

        headers = {"X-Durably-Key": "order-7"}
        django.EmailMessage("Hello", "It is there.\nFrom here\n", SHOP, [ANN], bcc=[BOB], headers=headers).send()
        asyncio.run(work())

        [(recipients, source)] = server.taken
        assert recipients == [ANN, BOB]
        assert source.startswith(site.app.mail.source("order-7"))
        assert site.mails()[0].state == "sent"


class TestTransactions:
    def test_a_rollback_leaves_no_mail_and_a_commit_leaves_one(self, within: Site) -> None:
        for name, rolls_back in (("o-1", True), ("o-2", False)):
            with within.db.transaction.atomic():
                within.order(name)
                assert django.send_mail(name, "x", SHOP, [ANN]) == 1
                assert within.mails() == []
                within.db.transaction.set_rollback(rolls_back)

        assert within.place.orders() == ["o-2"]
        assert [mail.about.subject for mail in within.mails()] == ["o-2"]

    def test_an_inner_block_takes_its_mail_back(self, within: Site) -> None:
        with within.db.transaction.atomic():
            django.send_mail("kept", "x", SHOP, [ANN])
            with within.db.transaction.atomic():
                django.send_mail("dropped", "x", SHOP, [ANN])
                within.db.transaction.set_rollback(True)

        assert [mail.about.subject for mail in within.mails()] == ["kept"]

    def test_without_a_transaction_a_mail_is_accepted_by_itself(self, within: Site) -> None:
        django.send_mail("Hello", "x", SHOP, [ANN])

        assert len(within.mails()) == 1

    def test_unless_it_is_asked_for_mail_does_not_wait_for_the_commit(self, site: Site) -> None:
        with site.db.transaction.atomic():
            django.send_mail("Hello", "x", SHOP, [ANN])
            assert len(site.mails()) == 1
            site.db.transaction.set_rollback(True)

        assert len(site.mails()) == 1

    def test_one_mail_can_be_kept_out_of_the_transaction(self, within: Site) -> None:
        with within.db.transaction.atomic():
            django.send_mail("Alarm", "x", SHOP, [ANN], connection=django.get_connection(within=None))
            within.db.transaction.set_rollback(True)

        assert [mail.about.subject for mail in within.mails()] == ["Alarm"]

    @pytest.mark.parametrize("silently", [True, False])
    def test_a_mail_that_is_refused_leaves_nothing_and_the_transaction_goes_on(
        self, within: Site, silently: bool
    ) -> None:
        headers = {"X-Durably-Key": "order-7"}

        def send(**options: Any) -> int:
            connection = django.get_connection(fail_silently=silently, **options)
            sent: int = django.EmailMessage("Hello", "x", SHOP, [ANN], headers=headers, connection=connection).send()
            return sent

        with within.db.transaction.atomic():
            within.order("o-1")
            if silently:
                assert send(transport="nowhere") == 0
            else:
                with pytest.raises(BadOption, match="transport: there is no 'nowhere'; add it first"):
                    send(transport="nowhere")
            within.order("o-2")
            assert send() == 1

        assert within.place.orders() == ["o-1", "o-2"]
        assert [mail.key for mail in within.mails()] == ["order-7"]

    def test_a_transaction_that_has_failed_accepts_no_mail(self, within: Site) -> None:
        with within.db.transaction.atomic():
            within.db.transaction.set_rollback(True)
            with pytest.raises(NoTransaction, match="has failed"):
                django.send_mail("Hello", "x", SHOP, [ANN])
            assert django.send_mail("Hello", "x", SHOP, [ANN], fail_silently=True) == 0

        assert within.mails() == []

    def test_a_transaction_in_another_database_than_the_stores_is_refused(self, within: Site, tmp_path: Path) -> None:
        with Durably(f"sqlite:///{tmp_path}/other.db") as other:
            other.migrate()
            other.mail.add_transport("main", "smtp://mail.example")
            sys.modules["shop_tasks"].app = other  # type: ignore[attr-defined]
            with within.db.transaction.atomic(), pytest.raises(WrongConnection):
                django.send_mail("Hello", "x", SHOP, [ANN])
            assert other.mail.list() == []
            assert django.send_mail("Hello", "x", SHOP, [ANN]) == 1
            assert len(other.mail.list()) == 1


class TestSettings:
    def test_the_transport_is_chosen_by_a_setting_or_for_one_connection(self, site: Site) -> None:
        for name in ("bulk", "own"):
            site.app.mail.add_transport(name, "smtp://mail.example")
        with site.settings(DURABLY_MAIL_TRANSPORT="bulk"):
            django.send_mail("Hello", "x", SHOP, [ANN])
            django.send_mail("Hello", "x", SHOP, [ANN], connection=django.get_connection(transport="own"))

        assert [mail.transport for mail in site.mails()] == ["bulk", "own"]

    def test_failing_silently_is_not_counted(self, site: Site) -> None:
        with site.settings(DURABLY_MAIL_TRANSPORT="nowhere"):
            assert django.send_mail("Hello", "x", SHOP, [ANN], fail_silently=True) == 0
            with pytest.raises(BadOption, match="transport: there is no 'nowhere'; add it first"):
                django.send_mail("Hello", "x", SHOP, [ANN])

        assert site.mails() == []

    @pytest.mark.parametrize(
        ("where", "told"),
        [
            (None, "DURABLY_APP: None must name your application, such as 'shop.tasks:app'"),
            ("shop_tasks", "DURABLY_APP: 'shop_tasks' must name your application"),
            (".tasks:app", "DURABLY_APP: '.tasks:app' must name your application"),
            ("no_such_module.tasks:app", "DURABLY_APP: there is no module 'no_such_module'"),
            ("shop_tasks:ap", "DURABLY_APP: shop_tasks has no 'ap'"),
            ("shop_tasks:__name__", "DURABLY_APP: 'shop_tasks:__name__' is of type str, and must be a Durably"),
        ],
    )
    def test_an_application_that_is_not_there_is_explained(self, site: Site, where: Any, told: str) -> None:
        with site.settings(DURABLY_APP=where), pytest.raises(improper) as raised:
            django.send_mail("Hello", "x", SHOP, [ANN], fail_silently=True)

        assert str(raised.value).startswith(told)

    def test_an_application_may_be_an_attribute_of_something(self, site: Site) -> None:
        sys.modules["shop_tasks"].Tasks = type("Tasks", (), {"app": site.app})  # type: ignore[attr-defined]
        with site.settings(DURABLY_APP="shop_tasks:Tasks.app"):
            assert django.send_mail("Hello", "x", SHOP, [ANN]) == 1

    def test_a_module_that_fails_to_import_says_so_itself(
        self, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "failing_shop.py").write_text("import a_package_that_is_not_installed\n")
        monkeypatch.syspath_prepend(tmp_path)
        with site.settings(DURABLY_APP="failing_shop:app"), pytest.raises(ModuleNotFoundError, match="a_package_that"):
            django.send_mail("Hello", "x", SHOP, [ANN])

    def test_a_database_that_django_does_not_know_is_named(self, site: Site) -> None:
        with (
            site.settings(DURABLY_MAIL_WITHIN="orders"),
            pytest.raises(improper, match="DURABLY_MAIL_WITHIN: there is no database 'orders'"),
        ):
            django.send_mail("Hello", "x", SHOP, [ANN])


PROJECT = {
    "settings.py": f"""
        DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}}}}
        EMAIL_BACKEND = "{BACKEND}"
        DEFAULT_FROM_EMAIL = "{SHOP}"
        SECRET_KEY = "x"
        DURABLY_APP = "tasks:app"
        DURABLY_MAIL_WITHIN = "default"
    """,
    "tasks.py": """
        from django.conf import settings

        from durably import Durably

        app = Durably(f"sqlite:///{settings.DATABASES['default']['NAME']}")
    """,
}


def test_one_line_in_the_settings_of_a_site_is_enough(tmp_path: Path) -> None:
    for name, text in PROJECT.items():
        (tmp_path / name).write_text(dedent(text))
    with Durably(f"sqlite:///{tmp_path}/shop.db") as app:
        app.migrate()
        app.mail.add_transport("main", "smtp://mail.example")

        subprocess.run(
            [sys.executable, "-m", "django", "sendtestemail", ANN, BOB],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{tmp_path}", "DJANGO_SETTINGS_MODULE": "settings"},
            check=True,
            timeout=SAFETY,
        )

        [mail] = app.mail.list()
        assert mail.about is not None
        assert (mail.about.to, mail.about.sender) == ([ANN, BOB], "shop@here.example")
