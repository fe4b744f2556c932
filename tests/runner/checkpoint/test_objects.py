"""Tests objects saved with tensors: every accepted value is restored with its type, and anything else is refused by name."""

import json
import math
import random
from collections import OrderedDict
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.runner.checkpoint.objects import ObjectError, decode, encode

numpy_scalars = st.one_of(
    st.integers(-128, 127).map(np.int8),
    st.integers(0, 2**64 - 1).map(np.uint64),
    st.integers(-(2**63), 2**63 - 1).map(np.int64),
    st.floats(width=16).map(np.float16),
    st.floats(width=32).map(np.float32),
    st.floats().map(np.float64),
    st.complex_numbers().map(np.complex128),
    st.booleans().map(np.bool_),
    st.integers(0, 2**62).map(lambda n: np.datetime64(n, "ns")),
)
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(2**63, 2**200).flatmap(lambda n: st.sampled_from([n, -n])),
    st.floats(),
    st.text(st.characters()),
    st.binary(),
    numpy_scalars,
)
keys = st.one_of(st.text(), st.integers(), st.booleans(), st.none(), st.binary(), st.tuples(st.integers(), st.text()))
values = st.recursive(
    leaves,
    lambda inner: st.one_of(st.lists(inner), st.lists(inner).map(tuple), st.dictionaries(keys, inner)),
    max_leaves=20,
)


def same(a: Any, b: Any) -> bool:
    """Equal bit by bit and of the same types: 1 is not True, -0.0 is not 0.0, NaN is NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.generic):
        return bool(a.dtype == b.dtype and a.tobytes() == b.tobytes())
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return same(list(a), list(b)) and same(list(a.values()), list(b.values()))
    return bool(a == b)


def through_json(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value), allow_nan=False)))


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(values)
def test_accepted_objects_are_restored_unchanged(value: Any) -> None:
    assert same(through_json(value), value)


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        -math.inf,
        -0.0,
        5e-324,
        10**5000,
        -(10**5000),
        "\ud800",
        {"!": "tuple", "v": [1]},
        {1: "a", "1": "b", None: "c"},
        ((), [], {}),
        random.Random(1).getstate(),
        np.float16("nan"),
        np.longdouble("0.1"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_awkward_values_are_restored_unchanged(value: Any) -> None:
    assert same(through_json(value), value)


class Colour(IntEnum):
    RED = 1


class Text(str):
    __slots__ = ()


class Raw(bytes):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ({1, 2}, "builtins.set"),
        (frozenset(), "builtins.frozenset"),
        (object(), "builtins.object"),
        (int, "builtins.type"),
        (lambda: 0, "builtins.function"),
        (bytearray(b"a"), "builtins.bytearray"),
        (1j, "builtins.complex"),
        (range(3), "builtins.range"),
        (Path("a"), "pathlib.PosixPath"),
        (np.zeros(2), "numpy.ndarray"),
        (np.str_("a"), "numpy.str_"),
        (np.bytes_(b"a"), "numpy.bytes_"),
        (np.void(b"ab"), "numpy.void"),
        (SimpleNamespace(a=1), "types.SimpleNamespace"),
        (OrderedDict(a=1), "collections.OrderedDict"),
        (Colour.RED, f"{__name__}.Colour"),
        (Text("a"), f"{__name__}.Text"),
        (Raw(b"a"), f"{__name__}.Raw"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_unlisted_type_is_refused_by_name(value: object, name: str) -> None:
    with pytest.raises(ObjectError, match=f"^value is a {name}, which a checkpoint cannot hold$"):
        encode(value)


def test_the_error_names_the_path_inside_the_object() -> None:
    with pytest.raises(ObjectError, match=r"^state\['a'\]\[1\]\[0\] is a builtins\.set"):
        encode({"a": [1, ({2},)]}, "state")
    with pytest.raises(ObjectError, match=r"^state key is a builtins\.frozenset"):
        encode({frozenset(): 1}, "state")


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"v": 1},
        {"!": "object", "v": "os.system"},
        {"!": "pickle", "v": "gASVIQ=="},
        {"!": ["tuple"], "v": []},
        {"!": None},
    ],
)
def test_an_unknown_tag_is_refused(raw: Any) -> None:
    with pytest.raises(ValueError, match="unknown tag"):
        decode(raw)


@pytest.mark.parametrize("dtype", ["O", "|O8", "O,O"])
def test_no_numpy_dtype_turns_bytes_into_objects(dtype: str) -> None:
    with pytest.raises(ValueError, match="OBJECT array"):
        decode({"!": "numpy", "dtype": dtype, "v": "AAAAAAAAAAAAAAAAAAAAAA=="})


PLAIN = (type(None), bool, int, float, str, bytes, list, tuple, dict)
documents = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.fixed_dictionaries(
            {"!": st.sampled_from(["float", "int", "bytes", "numpy", "tuple", "dict", "set"])}, optional={"v": inner}
        ),
    ),
    max_leaves=8,
)


def types_in(value: Any) -> set[type]:
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list | tuple) else []
    return {type(value)}.union(*map(types_in, inner))


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(documents)
def test_any_document_decodes_into_plain_values_or_not_at_all(document: Any) -> None:
    try:
        value = decode(document)
    except (ValueError, KeyError, TypeError):
        return
    assert all(kind in PLAIN or issubclass(kind, np.generic) for kind in types_in(value))
