"""JSON as in committed trees: a value that fits is on one line, any other has a line for each item."""

import json

from headway.jobspec.json_text import json_text


def test_value_up_to_the_width_stays_on_one_line() -> None:
    fits = ["x" * (120 - len('["", 1]')), 1]
    assert json_text(fits) == json.dumps(fits) + "\n"
    longer = ["x" + str(fits[0]), 1]
    assert json_text(longer) == f'[\n  "{longer[0]}",\n  1\n]\n'


def test_indentation_counts_toward_the_width() -> None:
    inner = {"a": "x" * (118 - len('{"a": ""}'))}
    one_line, more = json.dumps(inner), json.dumps({"a": inner["a"] + "x"})
    assert one_line in json_text([inner])
    assert more not in json_text([json.loads(more)])
