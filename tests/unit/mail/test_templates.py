"""Templates: where they are found, what comes out of them, and what they cannot do."""

from __future__ import annotations

import os
import sys
import tracemalloc
from collections import Counter, OrderedDict, deque, namedtuple
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markupsafe import escape

from durably.errors import BadOption, MissingPackage
from durably.mail.templates import Folder, Rendered, Template, checked, fallbacks, render

WELCOME = {
    "welcome.subject": "Welcome, {{ name }}\n",
    "welcome.txt": "Hello {{ name }}",
    "welcome.html": "<p>Hello</p>",
}
MOST = 5_000_000
texts = st.text(st.characters(codec="utf-8"), max_size=50)


class Person:
    def __init__(self) -> None:
        self.name = "Ann"
        self._secret = "hush"

    def greeting(self) -> str:
        return f"Hello, {self.name}"

    def _hidden(self) -> str:
        return self._secret

    def fails(self) -> str:
        raise RuntimeError("out of\norder")


def folder(path: Path, files: Mapping[str, str] = WELCOME) -> Folder:
    path.mkdir(exist_ok=True)
    for name, source in files.items():
        written = path / name
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(source)
    return Folder(path)


def found(files: Folder, name: str = "welcome", locale: str = "") -> Template:
    template = files.find(name, locale)
    assert template is not None
    return template


def text(source: str, loader: Folder | None = None, /, **context: Any) -> str | None:
    return render(Template("welcome", "Hi", text=source), context, loader).text


def html(source: str, loader: Folder | None = None, /, **context: Any) -> str | None:
    return render(Template("welcome", "Hi", html=source), context, loader).html


def subject(source: str, **context: Any) -> str:
    return render(Template("welcome", source, text="Hello"), context, None).subject


def refused(source: str, loader: Folder | None = None, /, **context: Any) -> str:
    with pytest.raises(BadOption) as caught:
        text(source, loader, **context)
    return str(caught.value)


# Locales


@pytest.mark.parametrize(
    ("locale", "expected"),
    [
        ("", [""]),
        ("de", ["de", ""]),
        ("de-AT", ["de-AT", "de", ""]),
        ("de_AT", ["de-AT", "de", ""]),
        ("de-at", ["de-AT", "de", ""]),
        ("ZH_hant_tw", ["zh-Hant-TW", "zh-Hant", "zh", ""]),
        ("es-419", ["es-419", "es", ""]),
        ("de-DE-1996", ["de-DE-1996", "de-DE", "de", ""]),
    ],
)
def test_a_locale_falls_back_to_less_special_ones(locale: str, expected: list[str]) -> None:
    assert fallbacks(locale) == expected


@pytest.mark.parametrize(
    "wrong",
    ["d", "deutsch", "de-", "-de", "de--AT", "de/AT", "../de", "de.AT", "de-AT\n", "\u212ae", " de", "C", 7, None],
)
def test_what_is_no_language_tag_is_refused(wrong: Any, tmp_path: Path) -> None:
    for use in (
        fallbacks,
        lambda tag: folder(tmp_path).find("welcome", tag),
        lambda tag: checked("a", "b", "c", None, tag),
    ):
        with pytest.raises(BadOption, match=r"locale: .* must be a language tag"):
            use(wrong)


# Finding


def test_a_template_is_found_in_its_files(tmp_path: Path) -> None:
    template = found(folder(tmp_path))

    assert msgspec.structs.replace(template, version="") == Template(
        "welcome", "Welcome, {{ name }}\n", "Hello {{ name }}", "<p>Hello</p>"
    )
    assert len(template.version) == 12
    assert int(template.version, 16) >= 0


def test_one_body_is_enough(tmp_path: Path) -> None:
    files = folder(tmp_path, {"a.subject": "A", "a.txt": "text", "b.subject": "B", "b.html": "<p>"})

    assert (found(files, "a").text, found(files, "a").html) == ("text", None)
    assert (found(files, "b").text, found(files, "b").html) == (None, "<p>")


def test_the_most_special_locale_is_taken(tmp_path: Path) -> None:
    files = folder(
        tmp_path,
        {
            **WELCOME,
            "welcome.de.subject": "Willkommen",
            "welcome.de.txt": "Hallo",
            "welcome.de.html": "<p>Hallo</p>",
            "welcome.de-AT.subject": "Servus",
            "welcome.de-AT.txt": "Servus",
            "welcome.de-AT.html": "<p>Servus</p>",
        },
    )

    assert [found(files, "welcome", locale).locale for locale in ("de-AT", "de_AT", "de-CH", "de", "fr", "")] == [
        *("de-AT", "de-AT", "de", "de", "", "")
    ]
    assert found(files, "welcome", "de_AT").subject == "Servus"
    assert found(files, "welcome", "de-CH").subject == "Willkommen"
    assert found(files, "welcome", "fr").subject == WELCOME["welcome.subject"]


def test_what_a_locale_leaves_out_comes_from_the_next_one_that_has_it(tmp_path: Path) -> None:
    files = folder(tmp_path, {**WELCOME, "welcome.de.subject": "Willkommen", "welcome.de-AT.txt": "Servus"})
    template = found(files, "welcome", "de-AT")

    assert (template.subject, template.text, template.html) == ("Willkommen", "Servus", "<p>Hello</p>")
    assert template.locale == "de-AT"


def test_a_template_may_exist_in_some_locales_only(tmp_path: Path) -> None:
    files = folder(tmp_path, {"welcome.de.subject": "Willkommen", "welcome.de.txt": "Hallo"})

    assert found(files, "welcome", "de").text == "Hallo"
    assert files.find("welcome", "fr") is None
    assert files.names() == ["welcome"]


def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "folder.txt").mkdir()
    files = folder(tmp_path)

    assert files.find("goodbye", "de") is None
    assert files.find("welcome/deeper", "") is None
    assert files.find("welcome.txt/deeper", "") is None
    assert files.find("folder", "") is None


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.txt": "x"}, r"template 'a' has no subject: write a\.subject"),
        ({"a.de.txt": "x", "a.html": "x"}, r"template 'a' has no subject: write a\.subject"),
        ({"a.subject": "x"}, r"template 'a' has no body: write a\.txt, a\.html, or both"),
        ({"a.de.subject": "x"}, r"template 'a' has no body: write a\.txt, a\.html, or both"),
    ],
)
def test_a_missing_part_is_told_with_the_file_to_write(files: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(BadOption, match=message):
        folder(tmp_path, files).find("a", "de")


def test_names_may_lead_into_subfolders(tmp_path: Path) -> None:
    files = folder(tmp_path, {"orders/new/mail.subject": "New", "orders/new/mail.de.txt": "Neu"})

    assert found(files, "orders/new/mail", "de").text == "Neu"


@pytest.mark.parametrize(
    "wrong",
    [
        *("", "..", "../secret", "a/../../secret", "a/..", "/etc/passwd", "//etc", "a//b", "a/", "./a", "a/./b", "."),
        *("a\\b", "..\\secret", "a\0b", "a b", "a\nb", "ä", "a:b", "~", "x" * 201, "a..b", None, 7, b"a", ["a"]),
    ],
)
def test_no_name_leads_out_of_the_folder(wrong: Any, tmp_path: Path) -> None:
    folder(tmp_path, {"secret.subject": "s", "secret.txt": "s"})
    with pytest.raises(BadOption, match=r"template: .* must be a name"):
        folder(tmp_path / "in").find(wrong, "")
    with pytest.raises(BadOption, match=r"template: .* must be a name"):
        checked(wrong, "s", "t", None, "")


@pytest.mark.parametrize("file", ["welcome.txt", "welcome.subject", "welcome.de.html"])
def test_links_out_of_the_folder_are_refused(file: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    files = folder(tmp_path / "in")
    (tmp_path / "in" / file).unlink(missing_ok=True)
    (tmp_path / "in" / file).symlink_to(tmp_path / "secret")

    with pytest.raises(BadOption, match="is a link out of the folder"):
        files.find("welcome", "de")


def test_links_to_folders_outside_are_refused(tmp_path: Path) -> None:
    folder(tmp_path / "out")
    files = folder(tmp_path / "in", {})
    (tmp_path / "in" / "link").symlink_to(tmp_path / "out")

    with pytest.raises(BadOption, match="is a link out of the folder"):
        files.find("link/welcome", "")
    assert files.names() == []


def test_links_within_the_folder_are_followed(tmp_path: Path) -> None:
    files = folder(tmp_path / "in")
    (tmp_path / "in" / "hello.subject").symlink_to("welcome.subject")
    (tmp_path / "in" / "hello.txt").symlink_to(tmp_path / "in" / "welcome.txt")
    (tmp_path / "link").symlink_to("in")

    assert found(files, "hello").text == found(Folder(tmp_path / "link"), "welcome").text == "Hello {{ name }}"
    assert files.names() == ["hello", "welcome"]


def test_a_link_to_itself_is_told(tmp_path: Path) -> None:
    files = folder(tmp_path)
    (tmp_path / "loop.txt").symlink_to("loop.txt")

    with pytest.raises(BadOption, match=r"'loop\.txt' cannot be read"):
        files.find("loop", "")


def test_a_file_that_is_not_utf_8_is_told(tmp_path: Path) -> None:
    files = folder(tmp_path)
    (tmp_path / "welcome.txt").write_bytes("Gr\u00fc\u00dfe".encode("latin-1"))

    with pytest.raises(BadOption, match=r"'welcome\.txt' cannot be read"):
        files.find("welcome", "")


def test_a_byte_order_mark_is_no_part_of_a_source(tmp_path: Path) -> None:
    files = folder(tmp_path)
    (tmp_path / "welcome.subject").write_bytes("Grüße".encode("utf-8-sig"))

    assert found(files).subject == "Grüße"


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for wrong in (tmp_path / "nowhere", tmp_path / "file"):
        with pytest.raises(BadOption, match="is not a folder"):
            Folder(wrong)
    assert Folder(str(tmp_path)).names() == []


def test_names_are_sorted_and_leave_out_what_others_extend(tmp_path: Path) -> None:
    nothing = dict.fromkeys(
        [
            *("z.subject", "z.txt", "b/c.subject", "b/c.html", "a.de.subject", "a.de-AT.subject", "a.txt"),
            *("_base.html", "_base.subject", "_parts/foot.subject", "layout.html", "order-new.subject", ".subject"),
            *("with space.subject", "notes.md", "bare.subject"),
        ],
        "",
    )
    files = folder(tmp_path, nothing)
    (tmp_path / "folder.subject").mkdir()
    (tmp_path / "gone.subject").symlink_to("nowhere")

    assert files.names() == ["a", "b/c", "bare", "order-new", "z"]


def test_links_out_of_the_folder_are_not_listed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    files = folder(tmp_path / "in", {})
    (tmp_path / "in" / "link.subject").symlink_to(tmp_path / "secret")

    assert files.names() == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.text(max_size=30) | st.text(st.sampled_from("./\\\0ab-_~"), max_size=12), st.text(max_size=5))
def test_any_name_is_found_in_the_folder_or_refused(tmp_path: Path, name: str, locale: str) -> None:
    (tmp_path / "in").mkdir(exist_ok=True)
    (tmp_path / "a.txt").write_text("secret")
    files = Folder(tmp_path / "in")
    for use in (lambda: files.find(name, locale), lambda: files.read(name)):
        try:
            assert use() is None
        except BadOption:
            continue


# Reading anew


def test_a_changed_file_is_read_anew(tmp_path: Path) -> None:
    files = folder(tmp_path)
    before = found(files)
    (tmp_path / "welcome.txt").write_text("Hello again")
    after = found(files)

    assert (before.text, after.text) == ("Hello {{ name }}", "Hello again")
    assert before.version != after.version


def test_a_file_with_the_same_time_and_size_is_not_read_again(tmp_path: Path) -> None:
    files = folder(tmp_path)
    path = tmp_path / "welcome.txt"
    before, stamp = found(files), path.stat()
    path.write_text("HELLO {{ name }}")
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert found(files) == before

    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1))
    assert found(files).text == "HELLO {{ name }}"


def test_a_removed_file_is_gone(tmp_path: Path) -> None:
    files = folder(tmp_path)
    assert found(files).html == "<p>Hello</p>"
    (tmp_path / "welcome.html").unlink()
    assert found(files).html is None


# Versions


@pytest.mark.parametrize(
    "changed", ["welcome.subject", "welcome.txt", "welcome.html", "_base.html", "_foot.html", "m.txt"]
)
def test_the_version_follows_every_source_that_takes_part(changed: str, tmp_path: Path) -> None:
    sources = {
        **WELCOME,
        "welcome.html": "{% extends '_base.html' %}",
        "_base.html": "{% block a %}{% endblock %}{% include ['nowhere.html', '_foot.html'] %}",
        "_foot.html": "{% include '_base.html' ignore missing %}",
        "welcome.txt": "{% from 'm.txt' import m %}",
        "m.txt": "{% macro m() %}{% endmacro %}",
        "other.txt": "",
    }
    files = folder(tmp_path, sources)
    first = found(files).version
    (tmp_path / "other.txt").write_text("changed")
    assert found(files).version == first

    (tmp_path / changed).write_text(sources[changed] + "changed")
    assert found(files).version != first


def test_the_version_is_the_same_for_the_same_sources(tmp_path: Path) -> None:
    assert found(folder(tmp_path / "a")).version == found(folder(tmp_path / "b")).version


def test_the_version_tells_parts_apart(tmp_path: Path) -> None:
    swapped = folder(tmp_path / "a", {"a.subject": "x", "a.txt": "y", "b.subject": "x", "b.html": "y"})

    assert found(swapped, "a").version != found(swapped, "b").version


def test_a_file_that_appears_later_changes_the_version(tmp_path: Path) -> None:
    files = folder(tmp_path, {**WELCOME, "welcome.html": "{% include 'foot.html' ignore missing %}"})
    before = found(files).version
    (tmp_path / "foot.html").write_text("Bye")

    assert found(files).version != before


@pytest.mark.parametrize(
    "odd", ["{% if %}", "{% include '../x' %}", "{% include '\\ud800' %}", "{% include name %}", "{{ " + "(" * 5000]
)
def test_what_cannot_be_read_has_a_version_nevertheless(odd: str, tmp_path: Path) -> None:
    assert found(folder(tmp_path, {**WELCOME, "welcome.txt": odd})).version


# Rendering


def test_all_parts_are_rendered(tmp_path: Path) -> None:
    files = folder(
        tmp_path, {**WELCOME, "welcome.html": "<p>Hello {{ name }}</p>", "welcome.de.txt": "Hallo {{ name }}"}
    )
    template = found(files, "welcome", "de-AT")

    assert render(template, {"name": "Ann & Bob"}, files) == Rendered(
        "Welcome, Ann & Bob", "Hallo Ann & Bob", "<p>Hello Ann &amp; Bob</p>", "de", template.version
    )


def test_a_part_that_is_not_there_stays_away() -> None:
    assert render(Template("a", "s", text="t"), {}).html is None
    assert render(Template("a", "s", html="h"), {}).text is None


def test_a_template_needs_a_body() -> None:
    with pytest.raises(BadOption, match="template 'a' needs a text, an HTML part, or both"):
        Template("a", "subject")


@given(texts)
def test_values_are_data_and_escaped_in_html_only(value: str) -> None:
    assert text("{{ value }}", value=value) == value
    assert html("{{ value }}", value=value) == str(escape(value))


@pytest.mark.parametrize("value", ["{{ 7*7 }}", "{% include 'x' %}", "{# gone #}", "{{", "# x", "<b>&amp;</b>"])
def test_values_that_look_like_templates_come_out_verbatim(value: str) -> None:
    assert text("{{ value }}|{{ values[0] }}|{{ value ~ '' }}", value=value, values=[value]) == "|".join([value] * 3)
    assert subject("{{ value }}", value=value) == value


def test_html_is_escaped_however_it_is_put_together() -> None:
    source = (
        "{{ x }} {{ x ~ '!' }} {{ '<i>'|safe ~ x }} {{ [x]|join(', ') }} {{ '<i>%s'|safe|format(x) }}"
        " {{ ('<i>{}'|safe).format(x) }} {% set y %}{{ x }}{% endset %}{{ y }}"
        " {% macro m() %}{{ x }}{% endmacro %}{{ m() }}"
    )
    assert html(source, x="<") == "&lt; &lt;! <i>&lt; &lt; <i>&lt; <i>&lt; &lt; &lt;"
    assert text(source, x="<") == "< <! <i>< < <i>&lt; <i>&lt; < <"
    assert html("{{ x|safe }}{% autoescape false %}{{ x ~ x }}{% endautoescape %}", x="<") == "<<<"
    assert html("{% autoescape on %}{{ x ~ x }}{% endautoescape %}", x="<", on=False) == "<<"


def test_templates_do_what_templates_do() -> None:
    source = (
        "{% for o in orders if o.n %}{{ loop.index }}/{{ loop.length }} {{ o.title|upper }}"
        "{% if not loop.last %}, {% endif %}{% else %}none{% endfor %}; {{ orders|sum(attribute='n') }};"
        " {{ orders|map(attribute='title')|join('+') }}; {{ orders|join('+', attribute='title') }};"
        " {{ '%05.2f'|format(1.5) }} {{ '%(a)s' % {'a': 1} }} {{ '{:>3}'.format(7) }}"
        " {{ '-'.join(['a', 'b']|map('lower')) }};"
        " {{ 'a'.center(3) }}{{ 'a'|center(3) }}{{ 'a'.replace('a', 'b') }}{{ 'a'|replace('a', 'b') }}; {{ 2 ** 10 }};"
        " {% set a, b = 1, {'c': (2, 3)} %}{{ a + b.c[1] }} {{ b.get('x', 'none') }} {{ nothing|default('usual') }};"
        " {% set ns = namespace(n=0) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }};"
        " {% for x in [1, [2, [3]]] recursive %}{{ x if x is number else loop(x) }}{% endfor %}"
    )
    orders = [{"title": "tea", "n": 1}, {"title": "milk", "n": 2}]

    assert text(source, orders=orders) == (
        "1/2 TEA, 2/2 MILK; 3; tea+milk; tea+milk; 01.50 1   7 a-b;  a  a bb; 1024; 4 none usual; 3; 123"
    )
    assert str(text(source, orders=[])).startswith("none; 0;")


def test_values_of_any_kind_can_be_used() -> None:
    class Color(StrEnum):
        RED = "red"

    point = namedtuple("point", "x count")
    values = {"p": point(1, 2), "c": Color.RED, "d": date(2024, 1, 2), "m": Decimal("1234.50"), "o": Person()}
    source = (
        "{{ p.x }}{{ p.count }} {{ c.value }} {{ d.strftime('%d.%m.') }} {{ m * 2 }} {{ '%.1f' % m }}"
        " {{ o.greeting() }}"
    )

    assert text(source, **values) == "12 red 02.01. 2469.00 1234.5 Hello, Ann"


@pytest.mark.parametrize("context", [None, [], "name", {1: "a"}, {"a": 1, None: 2}, [("a", 1)]])
def test_a_context_is_a_mapping_with_names(context: Any) -> None:
    with pytest.raises(BadOption, match="context: "):
        render(Template("a", "s", text="t"), context)


def test_any_mapping_is_a_context() -> None:
    assert (
        render(Template("a", "{{ self_ }}{{ name }}", text="t"), MappingProxyType({"name": 1, "self_": 2})).subject
        == "21"
    )


def test_nothing_is_left_over_from_one_mail_to_the_next(tmp_path: Path) -> None:
    keep = "{% set ns = namespace(v='nobody') %}{% macro keep(v) %}{{ ns.v }}{% set ns.v = v %}{% endmacro %}"
    files = folder(tmp_path, {"keep.txt": keep})

    assert [text("{% import 'keep.txt' as k %}{{ k.keep(v) }}", files, v=v) for v in "ab"] == ["nobody", "nobody"]


# Subjects


def test_a_subject_is_stripped() -> None:
    assert subject("\n  {% set a = 1 %}\n Hi {{ a }} \t\r\n") == "Hi 1"


@pytest.mark.parametrize(
    "evil", ["a\nb", "a\r\nBcc: x@y.example", "a\rb", "a\0b", "\x1bb", "b\x7f", "b\x85", "\u2028b", "\u2029b", "b\x1c"]
)
@pytest.mark.parametrize("source", ["{{ value }}", "Hello {{ value }}!"])
def test_a_subject_is_one_line(source: str, evil: str) -> None:
    with pytest.raises(BadOption, match=r"template 'welcome' \(subject\): .* must be one line"):
        subject(source, value=evil)


def test_a_subject_of_two_lines_is_refused() -> None:
    with pytest.raises(BadOption, match="must be one line"):
        subject("Hello\nthere")


@given(texts | st.text(st.sampled_from("a \t\r\n\0\x1f\x85\u2028"), max_size=8))
def test_a_value_in_a_subject_is_never_changed(value: str) -> None:
    try:
        found = subject("<{{ value }}>", value=value)
    except BadOption:
        assert not value.isprintable()
    else:
        assert found == f"<{value}>"
        assert len(found.splitlines()) == 1


# Files that are extended and included


PARTS = {
    "_base.html": "<html>{% block body %}base {{ name }}{% endblock %}</html>",
    "_foot.txt": "Bye {{ name }}",
    "_foot.html": "<i>{{ name }}</i>",
    "_macros.html": "{% macro bold(x) %}<b>{{ x }}</b>{% endmacro %}",
    "deep/er.txt": "deeper",
}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "{% extends '_base.html' %}{% block body %}{{ super() }}, child{% endblock %}",
            "<html>base &lt;, child</html>",
        ),
        ("{% include '_foot.html' %}", "<i>&lt;</i>"),
        ("{% include '_foot.txt' %}", "Bye <"),
        ("{% include 'deep/er.txt' %}", "deeper"),
        ("{% import '_macros.html' as m %}{{ m.bold(name) }}", "<b>&lt;</b>"),
        ("{% from '_macros.html' import bold with context %}{{ bold(name) }}", "<b>&lt;</b>"),
        ("{% include ['nowhere', '_foot.txt'] %}", "Bye <"),
        ("{% include 'nowhere' ignore missing %}-", "-"),
    ],
)
def test_files_of_the_folder_take_part_and_their_ending_says_whether_values_are_escaped(
    source: str, expected: str, tmp_path: Path
) -> None:
    files = folder(tmp_path, PARTS)

    assert html(source, files, name="<") == expected
    assert text(source, files, name="<") == expected


def test_a_changed_base_is_used_at_once(tmp_path: Path) -> None:
    files = folder(tmp_path, PARTS)
    assert text("{% include '_foot.txt' %}", files, name="Ann") == "Bye Ann"
    (tmp_path / "_foot.txt").write_text("See you, {{ name }}")
    assert text("{% include '_foot.txt' %}", files, name="Ann") == "See you, Ann"


@pytest.mark.parametrize(
    "file",
    ["../secret", "/etc/passwd", "a/../../secret", "deep/../_foot.txt", "..\\\\secret", "link", "a\\0b", "", "\\ud800"],
)
@pytest.mark.parametrize(
    "source",
    ["{% include FILE %}", "{% extends FILE %}", "{% import FILE as x %}", "{% include FILE ignore missing %}"],
)
def test_nothing_outside_takes_part(source: str, file: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    files = folder(tmp_path / "in", PARTS)
    (tmp_path / "in" / "link").symlink_to(tmp_path / "secret")

    assert "template 'welcome' (text, line 1): templates: " in refused(source.replace("FILE", f"'{file}'"), files)
    name = file.encode().decode("unicode_escape")
    assert "template 'welcome' (text, line 1): templates: " in refused(source.replace("FILE", "name"), files, name=name)


def test_a_missing_file_is_named_and_without_a_folder_there_is_none(tmp_path: Path) -> None:
    expected = "template 'welcome' (text, line 2): there is no file 'x.html' among the templates"

    assert refused("\n{% include 'x.html' %}", folder(tmp_path)) == expected
    assert refused("\n{% include 'x.html' %}") == expected
    assert refused("{% include 'welcome.txt' %}").endswith("there is no file 'welcome.txt' among the templates")


# Errors


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("\n\n{{ name }}", "(text, line 3): 'name' is undefined"),
        ("{{ who.name }}", "(text, line 1): 'dict object' has no attribute 'name'"),
        ("{{ name.first }}", "(text, line 1): 'name' is undefined"),
        ("{% for x in name %}{% endfor %}", "(text, line 1): 'name' is undefined"),
        ("{% if name %}{% endif %}", "(text, line 1): 'name' is undefined"),
        ("{% include name %}", "(text, line 1): 'name' is undefined"),
        ("\n{% if %}", "(text, line 2): Expected an expression, got 'end of statement block'"),
        ("{{ 1|nothing }}", "(text, line 1): No filter named 'nothing'."),
        ("\n{{ 1 / 0 }}", "(text, line 2): ZeroDivisionError: division by zero"),
        ("{{ person.fails() }}", "(text, line 1): RuntimeError: out of order"),
        ("{{ 'a'|round }}", "(text, line 1): TypeError: type str doesn't define __round__ method"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "(text, line 1): RecursionError: "),
        ("{{ 1" + "+1" * 5000 + " }}", "(text): RecursionError: "),
        ("{{ " + "(" * 5000, "(text): RecursionError: "),
        ("{% for x in who %}" * 25 + "{% endfor %}" * 25, "(text): SyntaxError: "),
        ("{{ ''.__class__ }}", "(text, line 1): access to attribute '__class__' of 'str' object is unsafe."),
        ("{{ surrogate }}", "(text): UnicodeEncodeError: "),
    ],
)
def test_an_error_is_told_with_where_and_why(source: str, expected: str) -> None:
    said = refused(source, who={"a": 1}, person=Person(), surrogate="\ud800")

    assert said.startswith(f"template 'welcome' {expected}")
    assert "\n" not in said


@pytest.mark.parametrize(("part", "ending"), [("text", "txt"), ("html", "html")])
def test_the_part_with_the_error_is_named(part: str, ending: str) -> None:
    with pytest.raises(BadOption, match=rf"template 'a' \({part}, line 1\): 'x' is undefined"):
        render(Template("a", "s", **{part: "{{ x }}"}), {})
    with pytest.raises(BadOption, match=r"template 'a' \(subject, line 1\): 'x' is undefined"):
        render(Template("a", "{{ x }}", "t"), {})


def test_an_error_in_another_file_is_told_with_its_name(tmp_path: Path) -> None:
    files = folder(tmp_path, {"a.html": "\n{{ nobody }}", "b.html": "\n\n{% if %}", "c.html": "{% include 'c.html' %}"})

    assert refused("\n\n{% include 'a.html' %}", files) == "template 'welcome' (a.html, line 2): 'nobody' is undefined"
    assert "template 'welcome' (b.html, line 3): Expected" in refused("{% include 'b.html' %}", files)
    assert "template 'welcome' (c.html, line 1): RecursionError" in refused("{% extends 'c.html' %}", files)


def test_a_long_error_is_cut() -> None:
    said = refused("{{ {}['x' * 100000] }}")

    assert len(said) < 500
    assert "\n" not in said


# The way out


SECRETS = {
    "person": Person(),
    "items": [1, 2],
    "map": {"a": 1},
    "set": {1},
    "queue": deque([1]),
    "ordered": OrderedDict(a=1, b=2),
    "counter": Counter("a"),
    "kinds": [list, dict, str],
    "data": b"x",
}


@pytest.mark.parametrize(
    "source",
    [
        "''.__class__.__mro__",
        "''['__class__']",
        "''|attr('__class__')",
        "()|attr('__cla' ~ 'ss__')",
        "['']|map(attribute='__class__')|first",
        "[items]|map(attribute='append')|first",
        "''.__class__.__mro__[1].__subclasses__()",
        "'{0.__class__}'.format('')",
        "'{a.__class__}'.format(a='')",
        "'{a.__class__}'.format_map({'a': ''})",
        "('{0.__class__}'|safe).format('')",
        "'{0[a]}'.format(map)",
        "(''|attr('format'))(person)|attr('_secret')",
        "'{0._secret}'.format(person)",
        "('{0._secret}'|attr('format'))(person)",
        "person._secret",
        "person['_secret']",
        "person|attr('_secret')",
        "person._hidden()",
        "person.greeting.__func__",
        "person.greeting.__globals__",
        "person.__init__.__globals__",
        "range.__globals__",
        "cycler.__init__.__globals__",
        "joiner.__init__.__globals__",
        "namespace.__init__.__globals__",
        "dict.__mro__",
        "self.__init__",
        "self._TemplateReference__context",
        "lipsum.__globals__",
        "(items|map('upper')).gi_frame",
        "items.append(3)",
        "items.clear()",
        "items.sort()",
        "items.__setitem__(0, 3)",
        "map.update(a=2)",
        "map.pop('a')",
        "map.setdefault('b', 1)",
        "map['clear']()",
        "(map|attr('clear'))()",
        "set.add(2)",
        "queue.append(2)",
        "queue.rotate()",
        "ordered.move_to_end('a')",
        "counter.subtract('a')",
        "dict.update(map, a=2)",
        "kinds[0].append(items, 3)",
        "kinds[1].update(map, a=2)",
        "kinds[2].center('x', 9)",
        "dict.fromkeys('ab')",
        "data.join([])",
        "''.encode()",
        "''.translate({})",
        "('a'|safe).escape(items)",
        "(5).to_bytes(9, 'big')",
    ],
)
def test_there_is_no_way_out_of_a_template(source: str) -> None:
    before = repr({name: value for name, value in SECRETS.items() if name != "person"})
    with pytest.raises(BadOption):
        text("{{ " + source + " }}", **SECRETS)
    with pytest.raises(BadOption):
        html("{{ " + source + " }}", **SECRETS)
    assert repr({name: value for name, value in SECRETS.items() if name != "person"}) == before


@pytest.mark.parametrize(
    "source", ["{% set map.a = 2 %}", "{% set person.name = 'Bob' %}", "{% do items.append(1) %}", "{% debug %}"]
)
def test_values_cannot_be_assigned_to(source: str) -> None:
    refused(source, **SECRETS)


# Too much


NESTED = "{% set n = namespace(x='x', l=['x']) %}{% for i in range(21) %}{% set n.l = [n.l, n.l] %}{% endfor %}"


@pytest.mark.parametrize(
    "source",
    [
        "'x' * 10**9",
        "10**9 * 'x'",
        "[1] * 10**9",
        "(1,) * 10**9",
        "data * 10**9",
        "2 ** (10**9)",
        "(2 ** 3000) * (2 ** 3000) * (2 ** 3000) * (2 ** 3000)",
        "third ** (10**9)",
        "range(10**9)",
        "range(10**5)|list + range(10**5)|list",
        "'x'|center(1000000000)",
        "'x'.center(10**9)",
        "'x'.ljust(10**9)",
        "'x'.rjust(10**9)",
        "'x'.zfill(10**9)",
        "('x'|safe).center(10**9)",
        "('x'|attr('center'))(10**9)",
        "'x'['center'](10**9)",
        "'\\t'.expandtabs(10**9)",
        "'%1000000000d' % 1",
        "'%.1000000000f' % 1",
        "'%*d' % (10**9, 1)",
        "'%.*f' % (10**9, 1)",
        "'%(a)1000000000d' % {'a': 1}",
        "'%(a(b))1000000000d' % {'a(b)': 1}",
        "('%1000000000d'|safe) % 1",
        "data % 1",
        "'%1000000000d'|format(1)",
        "'%(a)1000000000d'|format(a=1)",
        "('%s' * 10**4) % (('x' * 10**4,) * 10**4)",
        "'{:1000000000}'.format(1)",
        "'{:.1000000000f}'.format(1)",
        "'{:{}}'.format(1, 10**9)",
        "'{a:{w}}'.format_map({'a': 1, 'w': 10**9})",
        "('{:1000000000}'|safe).format(1)",
        "('{0}' * 10**4).format('x' * 10**4)",
        "('x' * 10**4).join('y' * 10**4)",
        "('x' * 10**4).join('y' * 10**4|list)",
        "('x' * 10**4).join(('y' * 10**4)|map('upper'))",
        "('y' * 10**4)|join('x' * 10**4)",
        "([{'a': 'y' * 10**4}] * 10**4)|join(attribute='a')",
        "('y' * 10**4).replace('', 'x' * 10**4)",
        "('y' * 10**4)|replace('y', 'x' * 10**4)",
        "('a\\n' * 10**4)|indent(10**4)",
        "('a\\n' * 10**4)|indent('x' * 10**4)",
        "('a ' * 10**4)|wordwrap(1, wrapstring='x' * 10**4)",
        "('http://a.b ' * 10**4)|urlize(target='x' * 10**4)",
        "([1] * 10**4)|tojson(indent=10**6)",
        "([[1] * 10**4])|pprint",
        "1.5|round(10**9, 'ceil')",
        "15|round(-(10**9))",
        "[1]|batch(10**9, 0)|list",
        "[1]|slice(10**9)|list",
        "([[1] * 1000] * 1000)|sum(start=[])",
        "range(1000)|sort(attribute=',' * 10**6)",
        "lipsum(n=10**6)",
        "['x']|map('center', 10**9)|list",
        "('x' * 10**6) ~ ('x' * 10**6) ~ ('x' * 10**6) ~ ('x' * 10**6) ~ ('x' * 10**6) ~ 'x'",
        "('x' * 4000000)|list|length",
    ],
)
def test_what_would_eat_the_memory_is_refused(source: str) -> None:
    tracemalloc.start()
    try:
        refused("{{ " + source + " }}", data=b"%1000000000d", third=Fraction(1, 3))
        assert tracemalloc.get_traced_memory()[1] < 20 * MOST
    finally:
        tracemalloc.stop()


def test_a_replacement_is_measured_as_it_is_escaped() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(BadOption, match="more than 5,000,000 characters"):
            html("{{ ('&' * 10**4)|replace('a', ('x' * 10**4)|safe) }}")
        assert tracemalloc.get_traced_memory()[1] < MOST
    finally:
        tracemalloc.stop()


def test_lists_are_not_summed_up() -> None:
    assert "this makes more than 5,000,000 characters" in refused("{{ [[1]]|sum(start=[]) }}")


@pytest.mark.parametrize(
    "growing",
    [
        "{% set n.x = n.x + n.x %}",
        "{% set n.x = n.x ~ n.x %}",
        "{% set x %}{{ n.x }}{{ n.x }}{% endset %}{% set n.x = x %}",
        "{% set x %}{% filter upper %}{{ n.x }}{{ n.x }}{% endfilter %}{% endset %}{% set n.x = x %}",
        "{% set n.x = m(n.x) %}",
        "{% set n.x = '%s%s' % (n.x, n.x) %}",
        "{% set n.x = '{}{}'.format(n.x, n.x) %}",
        "{% set n.x = [n.x, n.x]|join %}",
        "{% set n.l = n.l + n.l %}",
        "{% set n.l = n.l * 2 %}",
        "{% set n.l = [n.l, 'x' * 4000000] %}",
        "{% set n.l = dict(a=n.l, b='x' * 4000000) %}",
    ],
)
def test_nothing_grows_without_end(growing: str) -> None:
    macro = "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}"
    said = refused(f"{macro}{{% set n = namespace(x='x', l=['x']) %}}{{% for i in range(24) %}}{growing}{{% endfor %}}")

    assert "this makes more than 5,000,000 characters" in said or "too much work" in said


@pytest.mark.parametrize(
    "use",
    [
        "{{ n.l }}",
        "{{ {'a': n.l} }}",
        "{{ {'a': n.l}.items() }}",
        "{{ n.l ~ '' }}",
        "{{ n.l|string }}",
        "{{ n.l|upper }}",
        "{{ n.l|tojson }}",
        "{{ n.l|join }}",
        "{{ '%s' % (n.l,) }}",
        "{{ '%s'|format(n.l) }}",
        "{{ '{}'.format(n.l) }}",
        "{{ ''.join([n.l]) }}",
        "{{ [].index(n.l) }}",
        "{{ n.l is lower }}",
        "{{ [n.l]|select('upper')|list }}",
        "{{ {}[n.l] }}",
        "{{ n|attr(n.l) }}",
        "{{ [1]|map(n.l)|list }}",
        "{% include n.l %}",
        "{% include [n.l] %}",
    ],
)
def test_a_list_that_holds_another_one_over_and_over_is_never_written_out(use: str) -> None:
    tracemalloc.start()
    try:
        assert "this makes more than 5,000,000 characters" in refused(NESTED + use)
        assert tracemalloc.get_traced_memory()[1] < MOST
    finally:
        tracemalloc.stop()


def test_a_namespace_does_not_show_what_is_in_it() -> None:
    assert text(NESTED + "{{ n }}") == "<Namespace>"


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(2000) %}{% for j in range(2000) %}{% endfor %}{% endfor %}",
        "{% for i in range(10**5) if false %}{% endfor %}" * 20,
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(20) }}",
        "{% macro m() %}{% endmacro %}{% for i in range(10**5) %}{{ m() }}{% endfor %}",
        "{% for x in tree recursive %}{% if x %}{{ loop(x) }}{% endif %}{% endfor %}",
        "{% for x in [20] recursive %}{% if x %}{{ loop([x - 1, x - 1]) }}{% endif %}{% endfor %}",
        "{% with n = 20 %}{% include 'again.txt' %}{% endwith %}",
    ],
)
def test_work_without_end_is_refused(source: str, tmp_path: Path) -> None:
    again = "{% if n %}{% with n = n - 1 %}{% include 'again.txt' %}{% include 'again.txt' %}{% endwith %}{% endif %}"

    assert "too much work" in refused(source, folder(tmp_path, {"again.txt": again}), tree=[[0] * 2000] * 2000)


def test_all_text_that_is_put_together_is_counted(tmp_path: Path) -> None:
    keeping = "{% set x %}{{ long }}{{ i }}{% endset %}{% set n.l = [n.l, x] %}"
    said = refused(
        f"{{% set n = namespace(l=[]) %}}{{% for i in range(30) %}}{keeping}{{% endfor %}}", long="x" * 4_000_000
    )
    assert "too much work" in said


def test_text_is_counted_while_it_is_put_together(tmp_path: Path) -> None:
    files = folder(tmp_path, {"many.txt": f"{{% if true %}}{'x' * 50}{{% endif %}}" * 200})
    tracemalloc.start()
    try:
        refused("{% set x %}{% for i in range(30000) %}{% include 'many.txt' %}{% endfor %}{% endset %}", files)
        assert tracemalloc.get_traced_memory()[1] < 4 * MOST
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "source", ["'%*d' % (9, 1)", "'%1001d' % 1", "'%.1001f' % 1", "'{:1001}'.format(1)", "'%01001d' % 1"]
)
def test_a_format_is_at_most_so_wide(source: str) -> None:
    assert "pads to 1,000 characters at most" in refused("{{ " + source + " }}")
    assert len(str(text("{{ '%1000d' % 1 ~ '{:1000}'.format(1) }}"))) == 2000


@pytest.mark.parametrize(
    "source",
    [
        "{{ x }}{{ x }}",
        "{{ 'ä' * 2500001 }}",
        "{% for i in range(51) %}{{ 'x' * 100000 }}{% endfor %}",
        "{% for i in range(51) %}{% include 'long.txt' %}{% endfor %}",
        "{% import 'longer.txt' as l %}",
        "{% include 'longer.txt' without context %}",
        "{% block a %}{{ x }}{% endblock %}{{ self.a() }}",
    ],
)
def test_more_than_5_mb_do_not_come_out(source: str, tmp_path: Path) -> None:
    files = folder(
        tmp_path,
        {"long.txt": "x" * 100_000, "longer.txt": "{% for i in range(51) %}{% include 'long.txt' %}{% endfor %}"},
    )

    assert "this makes more than 5,000,000 characters" in refused(source, files, x="x" * 3_000_000)


def test_5_mb_come_out() -> None:
    assert text("{{ x }}{{ x }}", x="x" * (MOST // 2)) == "x" * MOST


def test_html_that_grows_by_being_escaped_is_refused() -> None:
    with pytest.raises(BadOption, match="more than 5,000,000 characters"):
        html("{{ x }}", x="&" * 2_000_000)


SYNTAX = [
    *("{{", "}}", "{%", "%}", "{#", "#}", " for x in y ", " endfor ", " if ", " endif ", " macro m(x) ", " endmacro "),
    *(" set x = ", " include ", " extends ", " block b ", " endblock ", "'a'", "x", "y", "9", "**", "*", "%", "~", "|"),
    *(
        "upper",
        "join",
        "center(99999999)",
        ".",
        "format",
        "(",
        ")",
        "[",
        "]",
        ",",
        "__class__",
        "\n",
        "m",
        "range",
        "-",
    ),
]


@settings(max_examples=400)
@given(st.lists(st.sampled_from(SYNTAX), max_size=25).map("".join))
def test_whatever_is_written_comes_out_or_is_refused(source: str) -> None:
    for use in (text, html):
        try:
            assert isinstance(use(source, x="<", y=[1, "&"]), str)
        except BadOption:
            continue


# Templates that people write


def test_a_checked_template_can_be_rendered() -> None:
    template = checked("orders/new", "Order {{ n }}", "Your order {{ n }}", "<b>{{ n }}</b>", "de_at")

    assert (template.name, template.locale, len(template.version)) == ("orders/new", "de-AT", 12)
    assert render(template, {"n": 7}) == Rendered("Order 7", "Your order 7", "<b>7</b>", "de-AT", template.version)
    assert checked("a", "s", "t", None, "").html is None
    assert checked("a", "s", None, "h", "").text is None


def test_the_version_of_a_checked_template_follows_its_sources() -> None:
    versions = [checked("a", "s", text, html, "").version for text, html in (("t", None), (None, "t"), ("t2", None))]

    assert len(set(versions)) == 3
    assert checked("b", "s", "t", None, "de").version == versions[0]


@pytest.mark.parametrize("name", ["a", "a.b-c_d/E9", "x" * 200, "_part"])
def test_names_of_checked_templates(name: str) -> None:
    assert checked(name, "s", "t", None, "").name == name


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (("{% if %}", "t", "h"), r"template 'a' \(subject, line 1\): Expected an expression"),
        (("s", "\n{{ x", "h"), r"template 'a' \(text, line 2\): unexpected end of template"),
        (("s", "t", "\n\n{% endif %}"), r"template 'a' \(html, line 3\): Encountered unknown tag 'endif'"),
        (("s", "{{ 1|nothing }}", None), r"template 'a' \(text, line 1\): No filter named 'nothing'"),
        (("s", "{% for x in y %}" * 25 + "{% endfor %}" * 25, None), r"template 'a' \(text\): SyntaxError"),
        (("s", None, None), "template 'a' needs a text, an HTML part, or both"),
        ((None, "t", None), r"template 'a' \(subject\): None must be text"),
        (("s", 7, None), r"template 'a' \(text\): 7 must be text"),
        (("s", "t", b"h"), r"template 'a' \(html\): b'h' must be text"),
        (("s", "\ud800", None), r"template 'a' \(text\): UnicodeEncodeError"),
        (("s", "x" * 1_000_001, None), r"template 'a' \(text\): a source has at most 1,000,000 bytes"),
    ],
)
def test_what_cannot_be_a_template_is_refused(parts: tuple[Any, Any, Any], message: str) -> None:
    subject, text, html = parts
    with pytest.raises(BadOption, match=message):
        checked("a", subject, text, html, "")


def test_what_is_extended_is_looked_for_when_it_is_used(tmp_path: Path) -> None:
    template = checked("a", "s", None, "{% extends '_base.html' %}", "")

    with pytest.raises(BadOption, match=r"there is no file '_base\.html' among the templates"):
        render(template, {"name": "Ann"})
    assert render(template, {"name": "Ann"}, folder(tmp_path, PARTS)).html == "<html>base Ann</html>"


# Without the package


@pytest.fixture
def without_jinja2(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "jinja2" or name == "durably.mail.sandbox"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jinja2", None)


@pytest.mark.usefixtures("without_jinja2")
def test_templates_say_which_package_they_need(tmp_path: Path) -> None:
    files = folder(tmp_path)
    for use in (
        lambda: checked("a", "s", "t", None, ""),
        lambda: render(Template("a", "s", "t"), {}),
        lambda: files.find("welcome", ""),
    ):
        with pytest.raises(
            MissingPackage, match=r"a template needs the package jinja2: pip install 'durably\[smtp\]' \("
        ):
            use()
    assert files.names() == ["welcome"]
    assert files.find("goodbye", "") is None
