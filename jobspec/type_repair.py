"""Finds what a value of the wrong type is meant to be: a number with its unit, a text in place of a list, a list in place of one value."""

import re
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

from pydantic.fields import FieldInfo

from headway.jobspec import form_repair, repair
from headway.jobspec.catalog.models import models
from headway.jobspec.document import Document, Path
from headway.jobspec.example import gpu_groups
from headway.jobspec.fitting import KIND_OR_PRESET, accepts, fitted, short_of
from headway.jobspec.flow import flow, short_flow
from headway.jobspec.spec.fields import field_names, literals_of, model_of
from headway.jobspec.spec.job import DEFAULT_TRAINER
from headway.jobspec.spec.scheduling import ANY
from headway.jobspec.spec.written import AUTO, OrAuto
from headway.jobspec.suggest import Hint
from headway.jobspec.unknown import CORRUPTION, check_of

MAPPINGS = ("dict_type", "model_type", "model_attributes_type")
GRID = ("sweep", "grid")
POINTS = ("sweep", "points")
# A longer list is described, not written.
_SHOWN = 120
# A line of a mapping without the space after its colon.
_PAIR = re.compile(r"([A-Za-z_][\w-]*)[:=](\S+)(?: [A-Za-z_][\w-]*[:=]\S+)*")
# Nodes, and the GPUs of each.
_PRODUCT = re.compile(r"([1-9][0-9]{0,5})\s*[x*\u00d7]\s*([1-9][0-9]{0,2})")
# Numbers of users and groups.
_IDS = ("user", "group", "fs_group")
_LINE = "a line"
# How far a rounded size is from the one that is meant.
_ROUNDED = 0.03
_MOST_ADAPTERS = 64
# More ranks than a node has form groups that a range of nodes does not divide.
_MOST_GPUS = 16
# The ends of a range; as many fields show what a section of switches is like.
_TWO = 2


def of_type(kind: str, loc: Path, info: FieldInfo | None, document: Document, path: Path) -> Hint | None:
    """Return what to write for a value of the wrong type; None if that is unknown."""
    value = document.value(path)
    if isinstance(value, dict | list):
        return _of_collection(kind, loc, info, value, document, _raw(document, path))
    if path not in document.scalars or value is None:
        return None
    if str(value).lower() == AUTO and info is not None and any(isinstance(each, OrAuto) for each in info.metadata):
        return Hint(f"write `{AUTO}`", AUTO)
    if kind == "string_type":
        quoted = _in_quotes(document, path, loc)
        # What is refused next mends nothing: `"570"` is no version either.
        is_item = isinstance(loc[-1], int)
        return quoted if is_item or info is None or quoted.fix is None or accepts(info, quoted.fix.strip('"')) else None
    if kind in ("int_type", "int_from_float", "float_type"):
        return _of_number(kind, loc, info, document, path)
    if kind == "bool_type":
        return repair.boolean(value)
    if kind in ("tuple_type", "list_type") and loc[-1] == "nics" and isinstance(value, int) and 0 < value <= _MOST_ADAPTERS:
        names = flow([f"mlx5_{number}" for number in range(value)])
        return Hint(f"write `{names}`, with the names that `ibv_devices` prints", names)
    if kind in ("tuple_type", "list_type"):
        if (dashes := _blanks_after_dashes(document, path, value)) is not None:
            return dashes
        if loc == ("ignore",) and re.fullmatch(r"HW[0-9]{3}", str(value)):
            return Hint(f"write `[{{code: {value}, reason: ...}}]`, with the reason why it may stay")
        found = repair.lists(value, short_of(info, value), is_command=loc[-1] in ("argv", "run"))
        required = _only_required(info, value)
        return _accepted_list([*found, *([] if required is None else [[{required: value}]])], info, loc)
    if kind in MAPPINGS and loc[-2:-1] == ("nics",) and isinstance(value, int) and 0 <= value < _MOST_ADAPTERS:
        return Hint(f"write `mlx5_{value}`, the name that `ibv_devices` prints", f"mlx5_{value}")
    return (_corruption_check(loc, value, document) or _of_mapping(loc, info, value)) if kind in MAPPINGS else None


def _corruption_check(loc: Path, value: Any, document: Document) -> Hint | None:
    """Return the check against corruption that the trainer has, where it is switched on; it is due within the run."""
    if loc != CORRUPTION or value is not True:
        return None
    check, steps = check_of(document), document.value(("steps",))
    every = 5000 if check == "replay" else 1000
    on = f"{{{check}: {min(every, steps) if isinstance(steps, int) and steps > 0 else every} steps}}"
    return Hint(f"write for example `{on}`", on)


def _blanks_after_dashes(document: Document, path: Path, value: Any) -> Hint | None:
    """Return that a text in the place of a list is its items without the blank after their `-`."""
    span = document.values[path]
    lines = document.origin(path).lines()[span.line : span.end_line + 1]
    if not isinstance(value, str) or not lines or not all(re.match(r"\s*-[^-\s]", line) for line in lines if line.strip()):
        return None
    return Hint(f"put a blank after the `-` of each item, as in `- {lines[0].strip()[1:]}`")


def _of_mapping(loc: Path, info: FieldInfo | None, value: Any) -> Hint | None:
    """Return the section, or the item, that a single value is short for."""
    if (form := _of_section(loc, info, value)) is not None:
        return form
    if isinstance(value, str) and (assigned := _assigned(value)) is not None and info is not None:
        # The values of labels and variables are texts.
        texts = {name: each if isinstance(each, str) else flow(each).strip('"') for name, each in assigned.items()}
        if (meant := next((each for each in (assigned, texts) if accepts(info, each)), None)) is not None:
            return Hint(f"write a mapping: `{flow(meant)}`", flow(meant))
    if isinstance(value, str) and (pair := _PAIR.fullmatch(value)):
        one = f"{{{pair[1]}: {pair[2]}}}"
        return Hint("put a space after the `:` of each line") if " " in value else Hint(f"write `{one}`", one)
    if ratio := re.fullmatch(r"([0-9.]{1,8}):1", str(value)):
        value = repair.plain_number(ratio[1])
    if (section := fitted(info, value, str(loc[-1]))) != value:
        # Of an item, the field is the list around it.
        section = section[0] if isinstance(loc[-1], int) and isinstance(section, list) else section
        return Hint(f"write `{flow(section)}`", flow(section))
    if (item := _of_kind(info, value)) is not None:
        return Hint(f"write `{flow(item)}`", flow(item))
    words = value.split() if isinstance(value, str) else []
    if (
        len(words) == _TWO
        and re.fullmatch(r"[A-Za-z_]\w*", words[0])
        and info is not None
        and accepts(info, {words[0]: words[1]})
    ):
        return Hint(f"write `{flow({words[0]: words[1]})}`", flow({words[0]: words[1]}))
    if (only := _only_accepting(info, value)) is not None:
        return Hint(f"write `{flow(only)}`", flow(only))
    if (short := _only_required(info, value)) is not None:
        return Hint(f"write `{{{short}: {flow(value)}}}`", f"{{{short}: {flow(value)}}}")
    if value is True and (switched := _all_on(info)) is not None:
        return Hint(f"write for example `{switched}`", switched)
    return _in_example(info, value) if isinstance(value, str) else None


def _assigned(text: str) -> dict[str, Any] | None:
    """Return the mapping that lines of a shell, of TOML or of an INI file are: `dp_shard = 16`, `export HF_HOME=/data/hf`."""
    if not re.fullmatch(r"(?:(?:export\s+)?[A-Za-z_]\w*\s*(?:=>|:=|=)\s*[^\s=]+\s*[,;]?\s*)+", text.strip()):
        return None
    found = re.findall(r"(?:export\s+)?([A-Za-z_]\w*)\s*(?:=>|:=|=)\s*([^\s=]+?)[,;]?(?:\s+|$)", text.strip())
    return {name: repair.plain_number(value.strip("\"'")) for name, value in found}


def _mount(info: FieldInfo | None, value: Any) -> dict[str, Any] | None:
    """Return the mount of a job, or of pods, that Docker writes as `/data:/data` or `claim:/data`."""
    section = None if info is None else model_of(info.annotation)
    if section is None or "claim" not in field_names(section):
        return repair.mount(value)
    found = re.fullmatch(r"([^:\s]+):(/[^:\s]*)(?::(?:ro|rw))?", str(value))
    return None if found is None else {"path": found[2], "host_path" if found[1].startswith("/") else "claim": found[1]}


def _of_section(loc: Path, info: FieldInfo | None, value: Any) -> Hint | None:
    """Return the section that Docker's `/data:/data:ro`, or the code of a problem alone, is short for."""
    if loc == ("model",) and (name := form_repair.preset(value)) in models():
        return Hint(f"write `{{preset: {name}}}`", f"{{preset: {name}}}")
    if loc[0] == "mounts" and (mount := _mount(info, value)) is not None:
        written = flow(mount)
        return Hint(f"write `{written}`", written)
    if loc == ("code",) and re.fullmatch("HEAD|[0-9a-f]{40}", str(value)):
        return Hint(f"write `{{commit: {value}}}`", f"{{commit: {value}}}")
    if loc == ("batch",) and isinstance(value, int | str):
        amount = f"{value} sequences" if isinstance(value, int) else repair.amount(value)
        return (
            None
            if amount is None
            else Hint(f"write `{{global: {amount}, micro: 1, sequence: 4096}}`, with the sequence's length of your own")
        )
    if loc[-1] == "login" and (login := form_repair.login(value)) is not None:
        return Hint(f"write `{login}`", login)
    if loc[0] == "ignore" and re.fullmatch(r"HW[0-9]{3}", str(value)):
        return Hint(f"write `{{code: {value}, reason: ...}}`, with the reason why it may stay")
    return None


def _of_number(kind: str, loc: Path, info: FieldInfo | None, document: Document, path: Path) -> Hint | None:
    """Return the number, the range of nodes or the `auto` that a text or another number is meant to be."""
    value = document.value(path)
    if loc[-1] in _IDS and value == "root":
        return Hint("write `0`", "0")
    if loc == ("nodes",) and (ends := re.fullmatch(r"([1-9][0-9]{0,5})\s*(?:[:-]|\.\.)\s*([1-9][0-9]{0,5})", str(value))):
        return _one_number(int(ends[1]), int(ends[2]), document) or _range_of({"min": int(ends[1]), "max": int(ends[2])})
    if loc[-1] in ("nodes", "count") and (product := _PRODUCT.fullmatch(str(value))):
        return Hint(f"write `{product[1]}`, without the GPUs of each", product[1])
    if loc[-1] == "ports" and (each := re.fullmatch(r"([0-9]{1,4})\s*[x*\u00d7]\s*([0-9].*)", str(value))):
        speed = repair.quantity("link speed", each[2])
        also = "" if speed is None or speed.fix is None else f", and `speed: {speed.fix}`"
        return Hint(f"write `{each[1]}`{also}", each[1])
    if loc[-1] == "asn" and (first := re.fullmatch(r"([0-9]{1,10})\s*(?:-|\.\.)\s*[0-9]{1,10}", str(value))):
        return Hint(f"write `{first[1]}`, the first of them", first[1])
    if loc[-1] in ("gpus", "count") and (
        ends := re.fullmatch(r"[A-Za-z-]*\[?([0-9]{1,6})\s*(?:-|\.\.)\s*([0-9]{1,6})\]?", str(value))
    ):
        number = int(ends[2]) - int(ends[1]) + 1
        return Hint(f"write `{number}`, the number of them", str(number)) if number > 1 else None
    if loc[-1] == "skip_samples" and (samples := _samples_of_steps(value, document)) is not None:
        return samples
    if loc[-1] == "dscp" and (marked := _code_point(str(value).strip().upper())) is not None:
        return Hint(f"write `{marked}`", str(marked))
    if loc == ("steps",) and (steps := repair.steps_of_tokens(value, document)) is not None:
        return Hint(f"write `{steps}`, the steps of so many tokens", str(steps))
    if kind != "float_type" and re.fullmatch(r"[1-9][0-9]{0,2}(?:\.[0-9]{3})+", document.source(path)):
        # Points between thousands, as in German.
        whole = document.source(path).replace(".", "")
        return Hint(f"write `{whole}`", whole)
    if loc[-1] in ("warmup_steps", "decay_steps") and (share := share_of_steps(value, document)) is not None:
        return share
    hint = repair.number(value, whole=kind != "float_type", field=str(loc[-1]))
    return _of_preset(loc, document, hint) or hint


def _one_number(fewest: int, most: int, document: Document) -> Hint | None:
    """Return the one number of nodes of a job that keeps its number; None for one that runs on a range."""
    kind, layout = document.value(("trainer", "kind")), document.value(("layout",))
    runs_script = kind == "script" or (kind is None and document.value(("run",)) is not None)
    if not runs_script:
        return Hint(f"write `{fewest}` or `{most}`: the trainer `{kind or DEFAULT_TRAINER}` runs on a fixed number of nodes")
    layout = layout if isinstance(layout, dict) else {}
    degrees = [layout.get(axis, 1) for axis in ("pp", "cp", "tp", "dp_replicate")]
    if not all(isinstance(each, int) for each in degrees) or prod(degrees) <= _MOST_GPUS:
        return None
    return Hint(f"write one number, for example `{most}`: the layout fixes the number of nodes", str(most))


def _of_preset(loc: Path, document: Document, hint: Hint | None) -> Hint | None:
    """Return the size that the preset has, of which the value is a rounded one: `vocab_size: 128k` of Llama is 128256."""
    preset = models().get(str(document.value(("model", "preset")))) if loc[0] == "model" else None
    own: Any = None if preset is None else preset.model.model_dump()
    for name in loc[1:]:
        own = own.get(name) if isinstance(own, dict) else None
    meant = None if hint is None or hint.fix is None else repair.plain_number(hint.fix)
    if isinstance(own, int) and isinstance(meant, int) and 0 < abs(own - meant) <= own * _ROUNDED:
        return Hint(f"write `{own}`, as the preset has it, or leave it out", str(own))
    return None


def _code_point(name: str) -> int | None:
    """Return the DSCP of a name: assured forwarding (RFC 2597), class selectors (RFC 2474), expedited forwarding (RFC 3246)."""
    if assured := re.fullmatch("AF([1-4])([1-3])", name):
        return 8 * int(assured[1]) + 2 * int(assured[2])
    if selector := re.fullmatch("CS([0-7])", name):
        return 8 * int(selector[1])
    return 46 if name == "EF" else None


def _in_example(info: FieldInfo | None, value: str) -> Hint | None:
    """Return the field's example with the text in place of the only one in its options: a path is written for the choice that reads it."""
    example = info.examples[0] if info is not None and info.examples else None
    if not isinstance(example, dict) or not ("/" in value or "*" in value):
        return None
    options = example.get("options", {})
    if len(options) != 1 or not all(isinstance(each, list) and len(each) == 1 for each in options.values()):
        return None
    found = flow({**example, "options": {key: [value] for key in options}})
    return Hint(f"write `{found}`", found)


def _raw(document: Document, path: Path) -> str | None:
    """Return the text of a mapping or a list as its line has it; None if it is on several lines."""
    inside = [span for place, span in document.values.items() if place[: len(path)] == path and place != path]
    span = document.values.get(path)
    if span is None or any(each.line != span.line for each in inside):
        return None
    return re.sub(r"\s+#.*", "", document.origin(path).lines()[span.line][span.column :]).rstrip()


def _of_collection(
    kind: str, loc: Path, info: FieldInfo | None, value: dict[str, Any] | list[Any], document: Document, raw: str | None = None
) -> Hint | None:
    """Return what to write for a mapping or a list where something else belongs; `raw` is its text."""
    if isinstance(value, dict) and loc == ("nodes",):
        return _range_of(value)
    if isinstance(value, list) and loc == ("nodes",) and len(value) == _TWO and all(isinstance(each, int) for each in value):
        return _one_number(value[0], value[1], document) or _range_of({"min": value[0], "max": value[1]})
    if isinstance(value, list):
        if kind in MAPPINGS:
            pairs = _by_group(value, loc, info, document) or _allowing(value, info) or repair.pairs(value)
            if pairs is None and len(value) == 1 and not isinstance(value[0], dict | list):
                return _of_mapping(loc, info, value[0])
            return None if pairs is None else Hint(f"write a mapping: `{flow(pairs)}`")
        # Slurm joins features that a node must all have by `&`.
        joined = ("&" if loc[-1] == "constraint" else ",").join(map(str, value))
        if kind == "string_type" and len(value) > 1 and info is not None and _is_in_form(info, joined):
            return Hint(f"write `{flow(joined)}`", flow(joined))
        if kind == "string_type" and value and loc[0] == "environment" and all(isinstance(each, str | int) for each in value):
            return Hint(f'write one text, for example `{loc[-1]}: "{joined}"`')
        return (
            _of_list(kind, value, info, inside=isinstance(loc[-1], int))
            if kind in ("int_type", "float_type", "string_type")
            else None
        )
    if kind == "string_type":
        return _text_of_mapping(value, loc, raw)
    if (
        kind in ("int_type", "float_type")
        and len(value) == 1
        and info is not None
        and accepts(info, only := next(iter(value.values())))
    ):
        return Hint(f"write `{flow(only)}`")
    return _list_of_mapping(loc, info, value) if kind in ("tuple_type", "list_type") and value else None


def _by_group(value: list[Any], loc: Path, info: FieldInfo | None, document: Document) -> dict[str, Any] | None:
    """Return Slurm's names of nodes by their group, the only one with GPUs if there are several."""
    groups = gpu_groups(document) if loc[-1] == "node_names" else []
    if len(groups) != 1 or info is None or not all(isinstance(each, str) for each in value):
        return None
    parts = [re.fullmatch(r"(.*?)([0-9]+)", each) for each in value]
    found = [each for each in parts if each is not None]
    text = ",".join(value)
    if len(found) == len(value) > 1 and len({each[1] for each in found}) == 1:
        numbers = [int(each[2]) for each in found]
        if numbers == list(range(numbers[0], numbers[0] + len(numbers))):
            text = f"{found[0][1]}[{found[0][2]}-{found[-1][2]}]"
    return {groups[0]: text} if accepts(info, {groups[0]: text}) else None


def _allowing(value: list[Any], info: FieldInfo | None) -> dict[str, Any] | None:
    """Return the fields of a list of their names, each open to any value: `allow: [partition, qos]`."""
    section = None if info is None else model_of(info.annotation)
    fields = {} if section is None else field_names(section)
    if info is None or not value or not all(isinstance(each, str) and each in fields for each in value):
        return None
    found = {name: next((each for each in (ANY, True) if accepts(fields[name], each)), None) for name in value}
    return found if accepts(info, found) else None


def _list_of_mapping(loc: Path, info: FieldInfo | None, value: dict[str, Any]) -> Hint | None:
    """Return the list that a mapping is meant to be."""
    section = None if info is None else model_of(info.annotation)
    if loc[:2] == GRID and section is None and (listed_values := _values_of_range(value, info)) is not None:
        return Hint(f"write the values themselves, for example `{flow(listed_values)}`", flow(listed_values))
    if loc[:2] == GRID and section is not None and field_names(section).keys() >= value.keys():
        return Hint("write " + " and ".join(f"`{loc[-1]}.{key}: {flow(each)}`" for key, each in value.items()))
    if loc == POINTS:
        return _points(value)
    # Those that an item must have first: what is written as its key and value.
    fields = sorted(field_names(section).items(), key=lambda each: not each[1].is_required()) if section else []
    is_item = bool(fields) and value.keys() <= dict(fields).keys() and info is not None and accepts(info, [value])
    found = (
        Hint("", flow([value]))
        if is_item
        else _accepted_list(repair.lists_of_mapping(value, [name for name, _ in fields]), info, loc)
    )
    if (
        found is not None
        and found.fix is not None
        and len(found.fix) > _SHOWN
        and "name" in (field_names(section) if section else {})
    ):
        named = [f"`- name: {name}`" for name, each in value.items() if isinstance(each, dict) and "name" not in each]
        if len(named) == len(value):
            return Hint(f"write a list: begin each item with its name, {' and '.join(named)}, and its other fields below that")
    if found is not None and found.fix == flow([value]):
        return Hint(f"begin it with `- `: a list of one item, {short_flow([value])}")
    if found is None and section is not None and 2 * len(value.keys() & field_names(section).keys()) > len(value):
        return Hint("begin it with `- `: a list of one item")
    return found


def _text_of_mapping(value: Mapping[str, Any], loc: Path, raw: str | None) -> Hint | None:
    """Return the text that YAML has read as a mapping, or the secret that it refers to."""
    if (quoted := _unquoted(value)) is not None:
        return quoted
    if value.keys() == {"value"} and isinstance(only := value["value"], str | int | float) and not isinstance(loc[-1], int):
        return Hint(f"write `{loc[-1]}: {flow(str(only))}`")
    if isinstance(loc[-1], int) and raw is not None and '{"' in raw and not raw.startswith("{"):
        return _argument(raw) if loc[-2] in ("argv", "run") else Hint(f"write `{flow(raw)}`", flow(raw))
    if isinstance(loc[-1], int) and len(value) == 1:
        ((key, item),) = value.items()
        if isinstance(item, dict) and len(item) == 1 and next(iter(item.values())) is None:
            # YAML reads the braces of `{seed}` as a mapping.
            item = f"{{{next(iter(item))}}}"
        if not isinstance(item, str | int | float):
            return None if raw is None or loc[-2] not in ("argv", "run") else _argument(raw)
        # Kubernetes names an object by `{name: ...}`; a colon and a blank in a line of shell make a mapping.
        written = str(item).lower() if isinstance(item, bool) else str(item)
        text = written if key == "name" else f"{key}={written}" if str(key).startswith("-") else f"{key}: {written}"
        if loc[-2] in ("argv", "run") and raw is not None and raw.startswith("{") and re.fullmatch(r"[A-Za-z_][\w-]*", str(key)):
            # An option of the script and its value.
            text = f"--{key}={written}"
        return Hint(f"write `{flow(text)}`", flow(text))
    secret = _secret_of(value)
    if secret is None:
        return None
    return Hint(f"leave it out here, and write `secrets: [{flow({'name': str(loc[-1]), **secret})}]`")


def _argument(raw: str) -> Hint:
    """Return an argument in quotes, in which a brace of its own, as JSON has them, is written twice."""
    text = flow(raw.replace("{", "{{").replace("}", "}}"))
    return Hint(f"write `{text}`", text)


def _points(value: Mapping[str, Any]) -> Hint:
    """Return the points that a mapping is meant to be: a list of mappings, each with one value of a field."""
    columns = {key: each if isinstance(each, list) else [each] for key, each in value.items()}
    count = max(map(len, columns.values()), default=1)
    rows = [{key: each[min(at, len(each) - 1)] for key, each in columns.items() if each} for at in range(count)]
    return Hint(f"begin each point with `- `, and give it one value of each field: {short_flow(rows)}", flow(rows))


def _values_of_range(value: Mapping[str, Any], info: FieldInfo | None) -> list[Any] | None:
    """Return the values in a distribution of a search: `{min: 1.0e-4, max: 3.0e-4}`, `{values: [1, 2]}`."""
    inner = next((each for each in value.values() if isinstance(each, list)), None)
    found = inner if inner is not None else [each for each in value.values() if isinstance(each, int | float)]
    return found if found and info is not None and all(accepts(info, each) for each in found) else None


def _unquoted(value: Mapping[str, Any]) -> Hint | None:
    """Return the text in braces that YAML reads as a mapping without a value: `{seed}`, which a script's argument may be."""
    if len(value) != 1 or next(iter(value.values())) is not None:
        return None
    quoted = f'"{{{next(iter(value))}}}"'
    return Hint(f"quote it: `{quoted}`", quoted)


def _range_of(value: Mapping[str, Any]) -> Hint | None:
    """Return the range of nodes that a mapping is meant to be: `{minimum: 4, maximum: 8}`."""
    ends = {str(key).lower()[:3]: each for key, each in value.items() if isinstance(each, int)}
    if not ends.keys() & {"min", "max"}:
        return None
    both = flow({end: ends.get(end, "...") for end in ("min", "max")})
    return Hint(f"write `{both}`" if len(ends) > 1 else f"write both ends: `{both}`", both if len(ends) > 1 else None)


def _accepted_list(candidates: Iterable[Any], info: FieldInfo | None, loc: Path) -> Hint | None:
    """Return the hint for the first of the values that the field accepts: what is refused next mends nothing."""

    def is_taken(value: Any) -> bool:
        if info is None or loc[:2] != GRID:
            return info is not None and accepts(info, value)
        return isinstance(value, list) and all(accepts(info, each) for each in value)

    found = next((each for each in candidates if is_taken(each)), None)
    return None if found is None else Hint(f"write {short_flow(found)}", flow(found))


def _secret_of(value: Mapping[str, Any]) -> dict[str, str] | None:
    """Return source and key of the Secret that an entry of Kubernetes' `env` refers to."""
    reference = value.get("valueFrom")
    found = reference.get("secretKeyRef") if isinstance(reference, dict) else None
    if not isinstance(found, dict) or not isinstance(found.get("name"), str) or not isinstance(found.get("key"), str):
        return None
    return {"source": found["name"], "key": found["key"]}


def _is_in_form(info: FieldInfo, text: str) -> bool:
    """Return whether the field has a form in which commas separate parts, and takes the text; a field that takes any line has none."""
    return not accepts(info, _LINE) and accepts(info, text)


def _all_on(info: FieldInfo | None) -> str | None:
    """Return a section whose fields are all true or false with the first two of them on: `overlap: true` has no more in it."""
    section = None if info is None else model_of(info.annotation)
    fields = {} if section is None else field_names(section)
    on = {name: True for name, each in list(fields.items())[:2] if accepts(each, True)}
    return flow(on) if len(on) == _TWO and all(accepts(each, True) for each in fields.values()) else None


def _of_kind(info: FieldInfo | None, value: Any) -> dict[str, Any] | None:
    """Return the item of which the text is the kind, with an example of what else it must have: `shared` in `tiers`."""
    section = None if info is None else model_of(info.annotation)
    fields = {} if section is None else field_names(section)
    if "kind" not in fields or value not in literals_of(fields["kind"]):
        return None
    others = {name: each.examples[0] for name, each in fields.items() if each.is_required() and name != "kind" and each.examples}
    return {"kind": value, **others}


def _only_accepting(info: FieldInfo | None, value: Any, depth: int = 1) -> dict[str, Any] | None:
    """Return the section with the one field that takes the text, but no line of text: `7d` is a time, in `limits` that of an attempt."""
    section = None if info is None else model_of(info.annotation)
    fields = {} if section is None or not isinstance(value, str) else field_names(section)
    taking = [name for name, each in fields.items() if accepts(each, value) and not accepts(each, _LINE)]
    found = {taking[0]: value} if len(taking) == 1 else None
    if not taking and depth:
        inner = {name: _only_accepting(each, value, depth - 1) for name, each in fields.items()}
        found = next(({name: each} for name, each in inner.items() if each is not None), None)
    return found if found is not None and info is not None and accepts(info, found) else None


def _only_required(info: FieldInfo | None, value: Any) -> str | None:
    """Return the one field of the section that must be set, which the value is most likely meant as: the path of a corpus."""
    section = None if info is None else model_of(info.annotation)
    required = {name: each for name, each in (field_names(section) if section else {}).items() if each.is_required()}
    name = next(iter(required), "")
    is_meant = len(required) == 1 and name not in KIND_OR_PRESET and isinstance(value, str) and accepts(required[name], value)
    return name if is_meant else None


def _of_list(kind: str, items: list[Any], info: FieldInfo | None, *, inside: bool) -> Hint | None:
    """Return what to write for a list in place of one value, which may be `inside` of a list."""
    if len(items) == 1 and info is not None and accepts(info, items[0]):
        return Hint(f"write `{flow(items[0])}`", flow(items[0]))
    if kind in ("int_type", "float_type"):
        # `[0, 1, 2, 3]` are the indices of four devices.
        if kind == "float_type" and not items:
            return None
        if kind == "float_type" or (all(isinstance(each, int) for each in items) and items != list(range(len(items)))):
            return Hint(f"write one number, for example `{items[0]}`; values to compare belong in `sweep`")
        return Hint(f"write `{len(items)}`, the number of them", str(len(items))) if items else None
    joined = ",".join(map(str, items))
    if inside and items and info is not None and accepts(info, [joined]) and not accepts(info, [_LINE]):
        return Hint(f"write `{flow(joined)}`", flow(joined))
    return Hint("write each as an item of the list around it") if inside and items else None


def share_of_steps(value: Any, document: Document) -> Hint | None:
    """Return the steps that a share of the run is, `3%` of `steps`."""
    if isinstance(value, float) and 0 < value < 1:
        value = f"{value * 100:g}%"
    steps, share = document.value(("steps",)), re.fullmatch(r"([0-9.]{1,6})\s*%", str(value).strip())
    if share is None:
        return None
    if not isinstance(steps, int) or share[1].count(".") > 1:
        return Hint("write a number of steps")
    found = round(float(share[1]) / 100 * steps)
    return Hint(f"write `{found}`, which is {share[1]} % of {steps} steps", str(found))


def _samples_of_steps(value: Any, document: Document) -> Hint | None:
    """Return the samples of so many steps, `20 steps`, by the job's global batch."""
    steps = re.fullmatch(r"([0-9]{1,12})\s*steps?", str(value).strip())
    found = None if steps is None else repair.samples(int(steps[1]), document)
    if steps is None or found is None:
        return None
    return Hint(f"write `{found}`: {steps[1]} steps of {found // max(1, int(steps[1]))} samples", str(found))


def _in_quotes(document: Document, path: Path, loc: Path) -> Hint:
    """Return how to write a number or a boolean where text is required."""
    if loc[-1] == "code" and re.fullmatch(r"[0-9]{3}", document.source(path)):
        return Hint(f"write `HW{document.source(path)}`", f"HW{document.source(path)}")
    if loc[-1] == "cuda" and (digits := re.fullmatch(r"([0-9]{2})([0-9])", document.source(path))):
        return Hint(f'write `"{digits[1]}.{digits[2]}"`', f'"{digits[1]}.{digits[2]}"')
    if loc[-1] == "memory" and document.source(path).isdigit():
        return Hint(f"write `{document.source(path)}Gi` or `{document.source(path)}Mi`")
    key = f"{path[-1]}: " if isinstance(path[-1], str) else ""
    return Hint(f'put it in quotes: `{key}"{document.source(path)}"`', f'"{document.source(path)}"')
