"""Merges a document with the bases that it extends into one document, each part of which has the file that it is from."""

import os
from collections.abc import Callable, Collection, Mapping
from functools import reduce
from pathlib import Path as FilePath
from typing import Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from headway.jobspec.document import Document, Path, clipped
from headway.jobspec.example import bases_beside
from headway.jobspec.load import MAX_VALUES, load_file
from headway.jobspec.problem import Problem
from headway.jobspec.spec.fields import field_names
from headway.jobspec.suggest import file_like, listed

# Keys that are never inherited.
OWN = frozenset({"apiVersion", "kind", "name", "partial", "extends"})

MAX_BASES = 8
"""Bases that one document names, and bases above each other."""
MAX_FILES = 64
"""Bases of one document in all, each as often as it is named."""

# Keys that identify a mapping: values of another one are not inherited.
_NAMES: Mapping[Path, tuple[str, ...]] = {("model",): ("preset", "config")}

Load = Callable[[FilePath], tuple[Document, list[Problem]]]

V = TypeVar("V")


class Composed(Struct, frozen=True):
    """A document with its inherited values, and the problems of its bases; `whole` when no part of them is missing."""

    document: Document
    problems: list[Problem]
    whole: bool


def compose(document: Document, load: Load = load_file) -> Composed:
    """Return the document with its bases, whose files `load` reads.

    Mappings are merged key by key, also with the bases of a base; of several bases later ones win. A list or a scalar
    replaces the base's value, and so does a mapping whose `kind` is not the base's, or a model of another preset or
    config. `null` removes the base's value, as if neither document had the key.
    """
    if not isinstance(document.data, dict) or "extends" not in document.data:
        return Composed(document, [], True)
    composition = _Composition(load)
    composed = composition.compose((document,))
    problems = [_inherited(problem, document.name) for problem in dict.fromkeys(composition.problems)]
    return Composed(composed, problems, composition.whole)


def overlay(base: Document, heir: Document) -> Document:
    """Return `heir` with the additional values of `base`, without those that it removes."""
    roots: set[Path] = set()
    removed: set[Path] = set()
    data = _merged((), base.data, heir.data, roots, removed)
    return Document(
        heir.name,
        heir.text,
        data,
        {**_without(removed, heir.keys), **_below(roots, base.keys)},
        {**_without(removed, heir.values), **_below(roots, base.values)},
        (heir.scalars - removed) | {path for path in base.scalars if _is_below(roots, path)},
        {**heir.origins, **{root: base.origin(root) for root in roots}, **_below(roots, base.origins)},
    )


class _Composition(Struct):
    """The bases of one document, and what is wrong with them."""

    load: Load
    problems: list[Problem] = field(default_factory=list)
    whole: bool = True
    files: int = 0

    def compose(self, chain: tuple[Document, ...]) -> Document:
        """Return the last document of the chain with its bases; each of the others extends the next."""
        document = chain[-1]
        parts = [base for path, name in self._bases(chain) if (base := self._base(chain, path, name)) is not None] + [document]
        # Before they are merged, which takes time for each.
        if sum(len(part.values) for part in parts) <= MAX_VALUES:
            return reduce(overlay, parts)
        message = f"with its bases the document has more than the {MAX_VALUES} values that a spec may have"
        self._problem("HW115", document, ("extends",), message, "extend fewer documents")
        return document

    def _bases(self, chain: tuple[Document, ...]) -> list[tuple[Path, str]]:
        """Return the names of the last document's bases, with their places."""
        document = chain[-1]
        found = document.value(("extends",)) if "extends" in document.data else []
        names = found if isinstance(found, list) else [found]
        if len(names) <= MAX_BASES and all(isinstance(name, str) and name for name in names):
            return [(("extends", index) if names is found else ("extends",), name) for index, name in enumerate(names)]
        self.whole = False
        # The first document's spec reports it.
        if len(chain) > 1:
            message = f"`extends` is neither a path nor a list of at most {MAX_BASES} paths"
            self._problem("HW114", document, ("extends",), message, "write it as `extends: base.yaml`")
        return []

    def _base(self, chain: tuple[Document, ...], path: Path, name: str) -> Document | None:
        """Return the base `name` of the chain's last document with its own bases; None, with a problem, if it cannot be used."""
        document, file = chain[-1], _file_of(chain[-1], name)
        names = [os.path.normpath(each.name) for each in chain]
        self.files += 1
        if file in names:
            self._refuse_ring(chain[names.index(file) :])
        elif trouble := _trouble(name, file, document.name, len(chain), self.files):
            self._problem("HW114", document, path, *trouble)
        elif (base := self._read(document, path, file)) is not None:
            return self.compose((*chain, base))
        return None

    def _read(self, document: Document, path: Path, file: str) -> Document | None:
        base, problems = self.load(FilePath(file))
        if problems and problems[0].code == "HW101":
            self._problem("HW114", document, path, f"`{clipped(file)}`: {problems[0].message}", problems[0].hint)
            return None
        self.problems += problems
        if not isinstance(base.data, dict):
            self.whole = False
            return None
        for key in ("apiVersion", "kind"):
            if base.value((key,)) != document.value((key,)):
                if key == "kind" and _is_meant_as(base, str(document.value(("kind",)))):
                    kind = str(document.value(("kind",)))
                    message = f"this document has fields of a {kind}, and `{clipped(document.name)}`, which is one, extends it"
                    self.whole = False
                    self.problems.append(Problem("HW114", base.name, ("kind",), message, f"write `{kind}`", fix=kind))
                    return None
                message = f"`{clipped(file)}` has {_said(base, key)}, this document {_said(document, key)}"
                others = bases_beside(document)
                named = f": `{others[0]}`" if len(others) == 1 else ""
                self._problem("HW114", document, path, message, f"extend a document of the same kind{named}")
                return None
        return base

    def _refuse_ring(self, ring: tuple[Document, ...]) -> None:
        """Report the ring at its first file by name, so that it is the same problem for all that are in it or extend it."""
        start = min(range(len(ring)), key=lambda index: ring[index].name)
        turned = (*ring[start:], *ring[:start], ring[start])
        document, following = turned[0], os.path.normpath(turned[1].name)
        path = next(path for path, name in self._bases((document,)) if _file_of(document, name) == following)
        message = f"documents extend each other in a cycle: {listed(each.name for each in turned)}"
        hint = "remove `extends` from one of them"
        if len(ring) == 1:
            others = bases_beside(document)
            named = f", for example `extends: {others[0]}`" if len(others) == 1 else ""
            message, hint = f"`{document.name}` extends itself", f"name the base in `extends`{named}, or leave it out"
        self._problem("HW114", document, path, message, hint)

    def _problem(self, code: str, document: Document, path: Path, message: str, hint: str | None) -> None:
        self.whole = False
        self.problems.append(Problem(code, document.name, path, message, hint))


def _file_of(document: Document, name: str) -> str:
    """Return the path of the base that the document names `name`."""
    return os.path.normpath(FilePath(document.name).parent / name)


def _trouble(name: str, file: str, heir: str, above: int, files: int) -> tuple[str, str] | None:
    """Return why a base of that name is not even opened: the problem, and the remedy."""
    if FilePath(name).is_absolute():
        return f"`{clipped(name)}` is an absolute path", "set the path relative to this document's folder"
    if above > MAX_BASES:
        return f"more than {MAX_BASES} bases above each other", "shorten the chain of documents between"
    if files > MAX_FILES:
        return f"more than {MAX_FILES} bases in all", "extend fewer documents"
    # Not opened to see: a pipe would be waited for.
    if not os.path.isfile(file):  # noqa: PTH113 (Path.is_file raises where a name is too long)
        if os.path.isdir(file):  # noqa: PTH112
            inside = _documents_in(file)
            each = f"`{os.path.normpath(os.path.join(name, inside[0]))}`" if inside else "a document in it"  # noqa: PTH118
            hint = f"write {each}" if len(inside) == 1 else f"name one document in it, for example {each}"
            return f"`{clipped(file)}` is a folder, and `extends` names a file", hint
        expands = "write the path out; `~` and `$` are not expanded" if name.startswith("~") or "$" in name else None
        near = None if expands or not file.endswith(name) else file_like(FilePath(file.removesuffix(name)), name)
        beside = os.path.basename(name)  # noqa: PTH119
        if near is None and beside != name and os.path.isfile(os.path.join(os.path.dirname(heir), beside)):  # noqa: PTH113, PTH118, PTH120
            near = beside
        meant = f"did you mean `{near}`?" if near is not None else "set the path relative to this document's folder"
        named = next((f"{name}{suffix}" for suffix in (".yaml", ".yml") if os.path.isfile(f"{file}{suffix}")), None)  # noqa: PTH113
        return f"there is no file `{clipped(file)}`", expands or (
            f"write `{named}`, the file of that document" if named else meant
        )
    return None


def _documents_in(folder: str) -> list[str]:
    """Return the YAML files of a folder, those first that are called a base."""
    try:
        names = sorted(each for each in os.listdir(folder) if each.endswith((".yaml", ".yml")))  # noqa: PTH208
    except OSError:
        return []
    return [each for each in names if "base" in each] or names


def _said(document: Document, key: str) -> str:
    return f"`{key}: {document.source((key,))}`" if (key,) in document.values else f"no `{key}`"


def _inherited(problem: Problem, heir: str) -> Problem:
    return problem if problem.document == heir else replace(problem, heir=heir)


def _merged(path: Path, base: Any, heir: Any, roots: set[Path], removed: set[Path]) -> Any:
    """Return the merged value at `path`; parts that only the base has go into `roots`, those that the heir removes into
    `removed`."""
    if not (isinstance(base, dict) and isinstance(heir, dict)):
        return heir
    if path and any(heir.get(key) not in (None, base.get(key)) for key in _NAMES.get(path, ("kind",))):
        return heir
    removed.update((*path, key) for key, value in heir.items() if value is None and key in base and (path or key not in OWN))
    found = {
        key: _merged((*path, key), base[key], value, roots, removed) if key in base else value
        for key, value in heir.items()
        if (*path, key) not in removed
    }
    inherited = {key: value for key, value in base.items() if key not in heir and (path or key not in OWN)}
    roots.update((*path, key) for key in inherited)
    return {**found, **inherited}


def _without(removed: Collection[Path], found: Mapping[Path, V]) -> dict[Path, V]:
    return {path: value for path, value in found.items() if path not in removed}


def _below(roots: Collection[Path], found: Mapping[Path, V]) -> dict[Path, V]:
    return {path: value for path, value in found.items() if _is_below(roots, path)}


def _is_below(roots: Collection[Path], path: Path) -> bool:
    """Return whether one of the roots leads to the path."""
    return any(path[:length] in roots for length in range(1, len(path) + 1))


def _is_meant_as(base: Document, kind: str) -> bool:
    """Return whether all fields of the base are those of this kind of document, and not all those of its own."""
    from headway.jobspec.parse import MODELS  # noqa: PLC0415 (it reads this file)

    if kind not in MODELS or not isinstance(base.data, dict):
        return False
    names = {str(name) for name in base.data}
    own = MODELS.get(str(base.value(("kind",))))
    return names <= field_names(MODELS[kind]).keys() and (own is None or not names <= field_names(own).keys())
