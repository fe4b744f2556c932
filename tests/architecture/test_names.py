"""A public class name has one meaning in all of headway, so that a search for it finds one class."""

import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("headway/cli", "headway/compile", "headway/planner", "headway/report", "infra", "jobspec", "runner", "templates")
PUBLIC_CLASS = re.compile(r"^class ([A-Za-z]\w*)", re.MULTILINE)
# One concept in several forms: as a user writes it, as the runner gets it, and as a report reads it from the runner's files.
FORMS = ("jobspec/spec/", "jobspec/catalog/", "runner/contract/", "headway/report/records.py")
# A class and its form in one of FORMS.
WRITERS = {
    "Claim": "runner/checkpoint/chain.py",
    "Committed": "runner/checkpoint/chain.py",
    "End": "runner/checkpoint/chain.py",
    "Record": "runner/checkpoint/chain.py",
    "Hang": "runner/health/watch.py",
    "Straggler": "runner/health/stragglers.py",
    "Store": "runner/checkpoint/stores/__init__.py",
    "Trainer": "runner/train/main.py",
    # In the schema that editors show, a user sees the name.
    "Mount": "templates/schedulers/kubernetes/options.py",
}


def test_public_class_name_has_one_meaning() -> None:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        for name in PUBLIC_CLASS.findall(path.read_text()):
            found[name].add(path.relative_to(ROOT).as_posix())
    several = {}
    for name, files in found.items():
        others = {file for file in files if not file.startswith(FORMS)} - {WRITERS.get(name, "")}
        if len(files) > 1 and others:
            several[name] = sorted(files)
    assert several == {}
    unused = {name for name, file in WRITERS.items() if file not in found[name] or len(found[name]) == 1}
    assert unused == set()
