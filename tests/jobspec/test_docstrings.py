"""Descriptions of fields, read from the sources of their sections."""

import importlib
import sys
from pathlib import Path

import pytest
from pydantic import Field

from headway.jobspec.spec.docstrings import field_descriptions
from headway.jobspec.spec.section import Section


class Base(Section):
    """A section that another one extends."""

    kept: int = 1
    """Kept."""
    replaced: int = 1
    """In the base."""


class Longer(Base):
    """One with everything that a class may hold besides."""

    replaced: int = 2
    """In the heir: text of
    two lines."""
    written: int = Field(3, alias="short")
    """Under another name."""
    silent: int = 4
    """After the silent one."""
    other: int = 5

    class Inner(Section):
        """A class inside."""

        kept: int = 1
        """Of the inner class."""

    def method(self) -> int:
        """Text that is no field's."""
        return self.kept


def test_a_field_is_described_by_the_text_below_it() -> None:
    assert field_descriptions(Base) == {"kept": "Kept.", "replaced": "In the base."}


def test_subclass_has_the_descriptions_of_its_base_and_its_own() -> None:
    assert field_descriptions(Longer) == {
        "kept": "Kept.",
        "replaced": "In the heir: text of two lines.",
        "short": "Under another name.",
        "silent": "After the silent one.",
    }


def test_nested_class_has_its_own_descriptions() -> None:
    assert field_descriptions(Longer.Inner) == {"kept": "Of the inner class."}


def test_local_class_has_its_own_descriptions() -> None:
    class Base(Section):
        kept: int = 1
        """Of the local class."""

    assert field_descriptions(Base) == {"kept": "Of the local class."}


def test_module_without_source_has_no_descriptions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "sourceless.py"
    source.write_text(
        'from headway.jobspec.spec.section import Section\nclass Alone(Section):\n    kept: int = 1\n    """Kept."""\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    sourceless = importlib.import_module("sourceless")
    source.unlink()
    try:
        assert field_descriptions(sourceless.Alone) == {}
    finally:
        del sys.modules["sourceless"]
