"""Recognizes headway documents among the files of a folder, also those whose first lines have a mistake."""

import codecs
import re

from headway.jobspec.suggest import nearest

_KINDS = ("TrainingJob", "Cluster", "Inventory")
# A list of documents is none, and is meant to be one.
_VERSION = re.compile(rb"""^(?:- )?["']?apiVersion["']?[ \t]*:[ \t]*["']?([^\s"'#]*)""", re.MULTILINE)
_KIND = re.compile(rb"""^["']?kind["']?[ \t]*:[ \t]*["']?([^\s"'#]*)""", re.MULTILINE)
# A document with one of headway's kinds, or its version under a misspelt key, and no foreign apiVersion, is headway's, with a mistake.
_MEANT = re.compile(
    rb"""^["']?(kind["']?[ \t]*:[ \t]*["']?(TrainingJob|Cluster|Inventory)\b|[\w-]+["']?[ \t]*:[ \t]*["']?headway/v"""
    rb"""|extends["']?[ \t]*:.*\.ya?ml\b)""",
    re.MULTILINE,
)
_KEY = re.compile(rb"""^["']?([A-Za-z_]+)["']?[ \t]*:""", re.MULTILINE)
# Fields of a job or a cluster without its first two lines, which no other program's file has together.
_FIELDS = (
    ({b"cluster"}, {b"trainer", b"layout", b"batch", b"checkpoint", b"run"}),
    ({b"scheduler", b"node_groups"}, {b"storage", b"fabrics", b"versions"}),
    ({b"scheduler", b"nodes"}, {b"storage", b"fabrics", b"versions"}),
)
# A document in braces, as programs write JSON: its keys may be anywhere.
_BRACES = re.compile(rb"""\s*(?:#[^\n]*\n\s*)*\{""")
_MARK_INSIDE = re.compile(rb"""["']?apiVersion["']?\s*:\s*["']?headway/""")
# UTF-32's mark begins with UTF-16's.
_ENCODINGS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_ALIKE = 0.75


def is_meant(content: bytes) -> bool:
    """Return whether the text is a headway document, or is meant to be one: its version, its kind or both are misspelt or missing."""
    text = plain(content)
    if _BRACES.match(text):
        return _MARK_INSIDE.search(text) is not None
    version, kind = _VERSION.search(text), _KIND.search(text)
    if version is None:
        return _MEANT.search(text) is not None or (kind is None and _has_fields(text))
    group, slash, _ = version[1].decode(errors="replace").partition("/")
    if group == "headway" or nearest(group, ["headway"], _ALIKE):
        return True
    if kind is not None and kind[1].decode(errors="replace") in _KINDS and _has_fields(text):
        # The head of a manifest was copied: no other kind of this name has these fields at its top.
        return True
    return not slash and kind is not None and nearest(kind[1].decode(errors="replace"), _KINDS, _ALIKE) is not None


def plain(content: bytes) -> bytes:
    """Return the text in UTF-8 without its byte order mark."""
    for mark, encoding in _ENCODINGS:
        if content.startswith(mark):
            text = content.removeprefix(mark)
            return text if encoding == "utf-8" else text.decode(encoding, errors="replace").encode()
    return content


def _has_fields(text: bytes) -> bool:
    keys = set(_KEY.findall(text))
    return any(all_of <= keys and keys & one_of for all_of, one_of in _FIELDS)
