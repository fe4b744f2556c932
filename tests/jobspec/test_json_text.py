"""JSON as it is in committed trees: one line for what fits, and else one line for each item."""

import json

from headway.jobspec.json_text import json_text


def test_a_value_of_exactly_the_width_stays_on_one_line_and_a_longer_one_does_not() -> None:
    fits = ["x" * (120 - len('["", 1]')), 1]
    assert json_text(fits) == json.dumps(fits) + "\n"
    longer = ["x" + str(fits[0]), 1]
    assert json_text(longer) == f'[\n  "{longer[0]}",\n  1\n]\n'


def test_what_is_indented_has_as_much_less_room() -> None:
    inner = {"a": "x" * (118 - len('{"a": ""}'))}
    one_line, more = json.dumps(inner), json.dumps({"a": inner["a"] + "x"})
    assert one_line in json_text([inner])
    assert more not in json_text([json.loads(more)])
