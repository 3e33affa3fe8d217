"""Names as DNS has them: lower-case ASCII, and never the name of somebody else."""

from __future__ import annotations

import re
import unicodedata

LONGEST_NAME = 253
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def dns_name(given: str) -> str | None:
    """The name as DNS has it; None if it can have none."""
    if len(given) > LONGEST_NAME:
        return None
    labels = [_label(label) for label in unicodedata.normalize("NFC", given).lower().split(".")]
    found = ".".join(labels)
    return found if len(found) <= LONGEST_NAME and all(map(_LABEL.fullmatch, labels)) else None


def _label(label: str) -> str:
    """The label in ASCII; empty if that loses something, since old and new IDNA then disagree on what it is (ß)."""
    if label.isascii():
        return label
    try:
        written = label.encode("idna")
        kept = written.decode("idna") == label == label.casefold()
    except UnicodeError:
        return ""
    return written.decode("ascii") if kept else ""
