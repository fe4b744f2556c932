"""Builds HTML and SVG in which every text and every attribute is escaped, since there is no other way to insert one."""

import html

VOID_ELEMENTS = frozenset({"meta", "link", "br"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | None
Attribute = str | int | float | bool | None


def element(name: str, /, *children: Child, **attributes: Attribute) -> Markup:
    """`<name ...>children</name>`: a plain string is escaped, Markup is taken as it is, None is left out.

    An attribute's `_` reads as `-` and a trailing one is dropped (`class_`). None and False leave it out, True its value.
    """
    opened = f"<{name}{''.join(_attribute(key, value) for key, value in attributes.items())}>"
    if name in VOID_ELEMENTS:
        return Markup(opened)
    return Markup(f"{opened}{join(*children)}</{name}>")


def join(*children: Child) -> Markup:
    """The children side by side, escaped like an element's."""
    return Markup("".join(child if isinstance(child, Markup) else html.escape(child) for child in children if child is not None))


def raw(name: str, text: str, /, **attributes: Attribute) -> Markup:
    """A style or script element, in which HTML knows no escapes. Raises ValueError for text that would end it early."""
    if "</" in text:
        raise ValueError(f"text of `{name}` must not hold `</`")
    return element(name, Markup(text), **attributes)


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{html.escape(str(value))}"'
