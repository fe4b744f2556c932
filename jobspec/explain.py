"""Explains the codes of problems: why each is reported, how to mend it, and a part of a document before and after."""

import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import yaml
from msgspec import Struct

from headway.jobspec.codes import CODES, WARNING
from headway.jobspec.ignore import may_be_ignored, only_as_warning

# What the codes of one hundred are about.
SUBJECTS: Mapping[str, str] = {
    "HW1": "the text of a document",
    "HW2": "one document",
    "HW3": "layout",
    "HW4": "a job against its cluster",
    "HW5": "fabrics",
    "HW6": "NCCL",
    "HW7": "checkpoints and storage",
    "HW8": "files in force, by themselves",
}
_FILE = Path(__file__).with_name("explanations.yaml")
_OF = {"job": "in a job", "cluster": "in a cluster", "text": "a document"}


class Explanation(Struct, frozen=True):
    """A code's explanation. `wrong` and `right` are a part of a job or a cluster, or a whole document, as `of` states; None of a problem
    that needs several files to appear."""

    code: str
    why: str
    mend: str
    wrong: str | None = None
    right: str | None = None
    of: str = "job"

    @property
    def title(self) -> str:
        """The code's meaning as a sentence."""
        meaning = CODES[self.code].removesuffix(WARNING)
        return f"{meaning[0].upper()}{meaning[1:]}."

    @property
    def status(self) -> str:
        """Whether it is an error or a warning, and whether a document may accept it."""
        if only_as_warning(self.code):
            return "error or warning; the warning can be ignored with a reason"
        kind = "warning" if CODES[self.code].endswith(WARNING) else "error"
        return f"{kind}, can be ignored with a reason" if may_be_ignored(self.code) else kind

    def markdown(self) -> str:
        """The explanation below its heading."""
        examples = [f"```yaml\n# {title}\n{text}\n```" for title, text in self._examples()]
        return "\n\n".join([self.why.strip(), self.mend.strip(), *examples])

    def text(self) -> str:
        """The explanation for a terminal, a paragraph a line."""
        examples = [f"{title}:\n\n{textwrap.indent(text, '    ')}" for title, text in self._examples()]
        return "\n\n".join([f"{self.code}: {self.title} ({self.status})", self.why.strip(), self.mend.strip(), *examples])

    def _examples(self) -> Iterator[tuple[str, str]]:
        for text, verdict in ((self.wrong, "wrong"), (self.right, "right")):
            if text is not None:
                yield f"{verdict}, {_OF[self.of]}", text.rstrip()


@cache
def explanations() -> Mapping[str, Explanation]:
    """Return the explanation of each code, in the order of the codes."""
    rows = yaml.load(_FILE.read_text(encoding="utf-8"), yaml.CSafeLoader)
    return {code: Explanation(code, **row) for code, row in rows.items()}
