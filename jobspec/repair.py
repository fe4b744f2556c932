"""Writes a value in the way that its field reads it: `7 days` becomes `7d`, `400Gbps` becomes `400Gb/s`.

It reads more loosely than `units`, but only for the hint of a problem: a document with such a value stays wrong.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from headway.jobspec import units
from headway.jobspec.document import Document
from headway.jobspec.flow import flow
from headway.jobspec.notation import Notation, write_bits_per_second, write_bytes, write_bytes_per_second, write_parts
from headway.jobspec.scalar import plain_scalar
from headway.jobspec.suggest import Hint, joined_or, nearest

_SURELY_TOKENS = 65_536
_NUMBER = r"[0-9][0-9_,]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_MEASURED = re.compile(rf"({_NUMBER})\s*([a-z%]*)\s*((?:[a-z].*)?)", re.IGNORECASE)
_SLURM_TIME = re.compile(r"([0-9]+)-([0-9]{1,2})(?::([0-9]{1,2}))?(?::([0-9]{1,2}))?")
_CLOCK = re.compile(r"([0-9]{1,4}):([0-5]?[0-9])")
_ISO_TIME = re.compile(r"P(?:([0-9]+)W)?(?:([0-9]+)D)?(?:T(?:([0-9]+)H)?(?:([0-9]+)M)?(?:([0-9]+)S)?)?", re.IGNORECASE)
_TIME_PART = re.compile(rf"({_NUMBER})\s*([a-z]+)", re.IGNORECASE)
_PER_SECOND = re.compile(r"\s*(?:/|per)\s*s(?:ec(?:ond)?)?$", re.IGNORECASE)
_BETWEEN_PARTS = re.compile(r"[\s,]*(?:and\s+)?", re.IGNORECASE)

_TIME_UNITS: Mapping[str, tuple[str, float]] = {
    word: (unit, scale)
    for unit, scale, words in (
        ("ms", 1, "ms msec msecs millisecond milliseconds"),
        ("s", 1, "s sec secs second seconds"),
        ("m", 1, "m min mins minute minutes"),
        ("h", 1, "h hr hrs hour hours"),
        ("d", 1, "d day days"),
        ("d", 7, "w wk wks week weeks"),
        ("d", 30, "mo month months"),
        ("y", 1, "y yr yrs year years"),
    )
    for word in words.split()
}
_WORDS_OF_PREFIXES: Mapping[str, str] = {
    **dict.fromkeys(("kilo", "thousand"), "k"),
    **dict.fromkeys(("mega", "million", "mn"), "M"),
    **dict.fromkeys(("giga", "billion", "bn"), "G"),
    **dict.fromkeys(("tera", "trillion"), "T"),
    "peta": "P",
    **{f"{letter}i": f"{letter.upper()}i" for letter in "kmgtp"},
    **{f"{each}i": f"{each[0].upper()}i" for each in ("kib", "meb", "gib", "teb", "peb")},
    **{letter: letter.upper() if letter != "k" else letter for letter in "kmgtp"},
    "": "",
}
# InfiniBand's names of link speeds, four lanes wide.
_INFINIBAND: Mapping[str, str] = {"qdr": "40", "fdr": "56", "edr": "100", "hdr": "200", "ndr": "400", "xdr": "800", "gdr": "1600"}
_STEPS = frozenset(
    ("step", "steps", "iter", "iters", "iteration", "iterations", "it", "its", "update", "updates", "batches", "optimizer_steps")
)
_SEQUENCES = frozenset(
    ("sequence", "sequences", "seq", "seqs", "sample", "samples", "example", "examples", "sentence", "sentences", "row", "rows")
)
_TOKENS = frozenset(("token", "tokens", "tok", "toks", "tks"))
# A number with a word or a sign before or behind it: `$63.30`, `last 4`, `60%`, `32,`.
_NUMBER_WITH_UNIT = re.compile(rf"(-?)(?:[$€£~]|USD|last|first|about|at most)?\s*({_NUMBER})\s*([A-Za-z%]*)[,;.]?", re.IGNORECASE)
# What shells, Jinja, Helm, Python, autoconf and people fill in.
_UNFILLED = re.compile(
    r"\$\{[^{}]*\}?|\$\(?[A-Za-z_]\w*\)?|\{\{.*?\}\}|\{[a-z_]+(?:\.[a-z_]+)*\}|%\([a-z_]+\)s|@[A-Z_]{2,}@|__[A-Z_]{2,}__|<[A-Za-z][\w .-]*>"
)
_PER_TERA: Mapping[str, str] = {"": "1", "g": "0.001", "t": "1", "p": "1000"}
# Fields in which `k` is 1024.
_IN_TOKENS = ("sequence", "max_positions")
_TIMES_IN_NAMES: Mapping[str, str] = {"_ms": "ms", "seconds": "s", "_s": "s", "minutes": "m", "hours": "h", "days": "d"}
_SMALLER: Mapping[str, str] = {"d": "h", "h": "m", "m": "s"}
_MILLISECONDS: Mapping[str, int] = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "y": 31_536_000_000}
_OF_NODES = frozenset(
    (
        "x",
        "node",
        "nodes",
        "host",
        "hosts",
        "machine",
        "machines",
        "worker",
        "workers",
        "server",
        "servers",
        "instance",
        "instances",
    )
)
_OF_RANKS = frozenset(("rank", "ranks", "gpu", "gpus", "way", "ways", "process", "processes"))
# Words that count what a field counts; of the fields that are not here, the others do.
_COUNTED_IN: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("nodes", "min_nodes", "count", "spares", "held_back", "grow_to", "most_drained", "leaf_nodes"), _OF_NODES),
    **dict.fromkeys(
        ("pp", "tp", "cp", "ep", "dp_shard", "dp_replicate", "procs", "nvlink_domain", "gpus"), _OF_RANKS | {"stages", "x"}
    ),
    **dict.fromkeys(("micro", "skip_samples"), _SEQUENCES),
    **dict.fromkeys(("sequence", "max_positions", "vocab_size"), _TOKENS),
    **dict.fromkeys(("steps", "warmup_steps", "decay_steps", "refill_steps", "from_step", "rollback_to"), _STEPS),
}
_COUNTED = frozenset(
    (
        *(
            "x",
            "times",
            "cores",
            "core",
            "cpus",
            "cpu",
            "vcpus",
            "threads",
            "layers",
            "layer",
            "heads",
            "head",
            "blocks",
            "block",
        ),
        *(
            "experts",
            "expert",
            "stages",
            "rails",
            "rail",
            "ports",
            "port",
            "leaves",
            "leaf",
            "spines",
            "spine",
            "switches",
            "links",
        ),
        *(
            "lanes",
            "restarts",
            "retries",
            "attempts",
            "checkpoints",
            "copies",
            "pods",
            "planes",
            "percent",
            "usd",
            "eur",
            "dollars",
        ),
        *("tokens", "units", "pcs", "pieces", "channels", "steps", "hours"),
    )
)
# Units of fewer letters are not misspelt, but others.
_SHORT_WORD = 3
# Of a literal number in C.
_SUFFIXES = ("f", "l")
# 1 ft is 0.3048 m and 1 in 0.0254 m exactly (NIST SP 811, appendix B.8).
_METRES: Mapping[str, Decimal] = {
    **dict.fromkeys(("ft", "foot", "feet"), Decimal("0.3048")),
    **dict.fromkeys(("in", "inch", "inches"), Decimal("0.0254")),
    **dict.fromkeys(("cm", "centimeter", "centimeters"), Decimal("0.01")),
}
# A size this many times larger or smaller than the example is not meant.
_NEAR = 4096
_USUAL, _USUAL_TIME = 32, 50
_LONGEST_RANGE = 256
# Commas outside of brackets.
_COMMA = re.compile(r",(?![^\[]*\])")
_PYTHON = re.compile(r"(?:\S*/)?python[0-9.]*")
_NUMBERS = {
    word: str(number)
    for number, word in enumerate(
        ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
    )
}
_NO_LIMIT = frozenset(("inf", "no limit", "infinite", "infinity", "unlimited", "none", "never", "forever", "-1"))
# Fields for which a word may mean that there is no limit.
_LIMITED = ("budget", "keep", "max_restarts", "no_progress", "refill_steps", "epochs", "gpu_hours")
_OFTEN: Mapping[str, str] = {"hourly": "1h", "daily": "1d", "weekly": "7d"}
# A number this large without a unit is a number of bytes: no other unit was meant.
_SURELY_BYTES = 1_000_000


def quantity(name: str, value: Any) -> Hint | None:
    """Return what to write for a `value` that is meant to be the quantity `name` (`notation.Notation.name`); None if unknown."""
    value = _single(value)
    text = _in_digits(str(value).strip())
    found = _QUANTITIES[name](text) if _is_plain(value) and name in _QUANTITIES else None
    if found is None and text.startswith("-") and (positive := quantity(name, text[1:].strip())) is not None:
        return Hint(f"{positive.text}, without the sign", positive.fix)
    return Hint(f"write `{found}`", flow(found)) if isinstance(found, str) else found


def _single(value: Any) -> Any:
    """Return the one value in a list, or in a mapping with its unit as the key: `[7d]`, `{days: 7}`."""
    if isinstance(value, list) and len(value) == 1:
        return value[0]
    if isinstance(value, dict) and len(value) == 1:
        ((unit, number),) = value.items()
        return f"{number} {unit}" if isinstance(number, int | float) and not isinstance(number, bool) else number
    return value


def _in_digits(text: str) -> str:
    """Return the text with digits for the number that it begins with as a word: `ten minutes`."""
    word, blank, rest = text.partition(" ")
    return f"{_NUMBERS[word.lower()]}{blank}{rest}" if word.lower() in _NUMBERS else text


def _word_like(word: str, known: Iterable[str]) -> str:
    """Return the one of the known words that a misspelt one is, `minuts`; else the word itself."""
    return nearest(word, [each for each in known if len(each) > _SHORT_WORD]) or word if len(word) > _SHORT_WORD else word


def number(value: Any, whole: bool, field: str = "") -> Hint | None:
    """Return the number that a text or another number is meant to be in this field: `"32"`, `100k`, `1e5`, `500 steps`, `$63.30`."""
    if not _is_plain(value):
        return None
    if isinstance(value, str) and re.fullmatch("0x[0-9a-fA-F]{1,15}|0o[0-7]{1,20}|0b[01]{1,60}", value.strip()):
        return Hint(f"write `{int(value, 0)}`", str(int(value, 0)))
    if field == "skip_samples" and isinstance(value, str) and "step" in value:
        return Hint("write a number of samples: the steps, times the sequences of a global batch")
    if (word := _word_for_no_number(str(value).strip().lower(), whole, field)) is not None:
        return word
    if isinstance(value, str) and (glued := re.fullmatch(r"([^#\s]+)(#.*)", value)) and (hint := number(glued[1], whole, field)):
        return Hint(f"write `{hint.fix} {glued[2]}`: a comment needs a blank before its `#`", f"{hint.fix} {glued[2]}")
    text = re.sub("[\u2212\u2013]", "-", _in_digits(re.sub(r"\s*\([^()]*\)$", "", str(value).strip()).rstrip(",;")))
    # `8k tokens`: the field has its own unit.
    text = re.sub(r"(?<=[0-9])\s*([kKMGT]i?)\s+[a-z]+$", r"\1", text) if whole else text
    # `6x10^-4`; the ratio `3:1`; an AS number, also in two halves (RFC 5396).
    text = re.sub(r"^([0-9.]+)\s*[x*\u00d7]\s*10\s*\^?\s*(-?[0-9]{1,3})$", r"\1e\2", text)
    text = re.sub(r"^([0-9.]+):1$", r"\1", text)
    # `1.5e -4`; the fraction `3/20000`; Slurm's `h100:8`.
    text = re.sub(r"(?<=[0-9]) *([eE]) *(?=[-+]?[0-9])", r"\1", text)
    if not whole and (part := re.fullmatch(r"([0-9]{1,9})\s*/\s*([1-9][0-9]{0,14})", text)):
        return Hint(f"write `{int(part[1]) / int(part[2]):g}`", f"{int(part[1]) / int(part[2]):g}")
    text = re.sub(r"^(?:gpu:)?[A-Za-z][\w.-]*:([0-9]{1,4})$", r"\1", text) if field == "gpus" else text
    text = _as_number(text) if field == "asn" else text
    if field == "cpus" and (product := re.fullmatch(r"([0-9]{1,3})\s*[x*\u00d7]\s*([0-9]{1,4})", text)):
        text = str(int(product[1]) * int(product[2]))
    found = _NUMBER_WITH_UNIT.fullmatch(text)
    amount = None if found is None else _decimal(found[2])
    if found is None or amount is None:
        return None
    if field in _IN_TOKENS and (found[3] or "").lower() == "k" and amount < 1024:
        text = _plain(amount * 1024)
        return Hint(f"write `{text}` ({_plain(amount)} x 1024)", text)
    scaled = _in_unit_of(field, amount, found[3] or "", whole)
    if scaled is None:
        return None
    if whole and scaled != scaled.to_integral_value():
        # A part of one is a ratio, not a number that was not rounded.
        return Hint(f"write `{int(scaled)}` or `{int(scaled) + 1}`") if scaled > 1 and not found[1] else None
    text = _plain(-scaled if found[1] else scaled)
    return Hint(f"write `{text}`", text)


def unfilled(value: Any) -> str | None:
    """Return the variable, or the name in a template, that a value still has: `${NODES}`, `{{ nodes }}`, `<nodes>`; None if it has none."""
    if isinstance(value, dict) and len(value) == 1 and next(iter(value.values())) is None:
        # YAML reads the braces of `{nodes}` as a mapping.
        return f"{{{next(iter(value))}}}"
    found = _UNFILLED.search(value) if isinstance(value, str) else None
    return None if found is None else found[0]


def samples(steps: int, document: Document) -> int | None:
    """Return the samples of so many steps by the job's global batch; None where it does not say how many sequences that is."""
    batch, length = document.value(("batch", "global")), document.value(("batch", "sequence"))
    try:
        amount = units.parse_amount(batch) if isinstance(batch, str) else None
    except ValueError:
        return None
    if amount is None:
        return None
    if amount.sequences is None and not (isinstance(length, int) and length and (amount.tokens or 0) % length == 0):
        return None
    return steps * (amount.sequences or (amount.tokens or 0) // length)


def steps_of_tokens(value: Any, document: Document) -> int | None:
    """Return the steps that read so many tokens, `2T tokens`, by the job's global batch; None where that is unknown. A number alone,
    `1e5`, is one of steps."""
    if re.fullmatch(_NUMBER, str(value).strip()):
        return None
    if not re.search(r"tok|[BT]$", str(value)):
        # `10M` is a number of steps.
        return None
    text = _amount(re.sub(r"([0-9])B(?= |$)", r"\1G", str(value).strip())) if _is_plain(value) else None
    length = document.value(("batch", "sequence"))
    tokens = units.parse_amount(text).tokens if text is not None else None
    one = samples(1, document)
    if tokens is None or one is None or not isinstance(length, int) or length <= 0:
        return None
    return max(1, round(tokens / (one * length)))


def _as_number(text: str) -> str:
    """Return the AS number without the letters before it, and that of two halves as one."""
    text = re.sub(r"^AS ?", "", text, flags=re.IGNORECASE)
    halves = re.fullmatch(r"([0-9]{1,5})\.([0-9]{1,5})", text)
    return text if halves is None else str(int(halves[1]) * 65536 + int(halves[2]))


def _word_for_no_number(text: str, whole: bool, field: str) -> Hint | None:
    """Return what to write for a word that means no value, or no limit."""
    if field not in _LIMITED and text in ("none", "null", "nil", "undefined", "-"):
        return Hint("leave it out, or write a number")
    return Hint("write a number, for example `1000`: no word stands for no limit") if whole and text in _NO_LIMIT else None


def _in_unit_of(field: str, amount: Decimal, word: str, whole: bool) -> Decimal | None:
    """Return the number in the unit that the field's name has; None where the word is no unit of it."""
    unit = word.lower()
    if "percent" in field:
        fraction = not unit and 0 < amount < 1
        return amount * 100 if fraction else amount if unit in ("", "%", "percent", "pct") else None
    if word == "m" and field == "cpus":
        # Kubernetes counts cores in thousandths: `94000m`.
        return amount / 1000
    if field.endswith("tflops"):
        # The field's unit is 10^12 already.
        power = _PER_TERA.get(re.sub("flops?(?:/s)?$", "", unit))
        return None if power is None else amount * Decimal(power)
    if unit in ("%", "percent", "pct"):
        return None if whole else amount / 100
    if unit in _TIME_UNITS and (own := next((each for end, each in _TIMES_IN_NAMES.items() if field.endswith(end)), None)):
        name, scale = _TIME_UNITS[unit]
        return amount * Decimal(scale) * _MILLISECONDS[name] / _MILLISECONDS[own]
    if unit in _WORDS_OF_PREFIXES:
        return amount * units.PREFIXES[_WORDS_OF_PREFIXES[unit]]
    if unit in _SUFFIXES and not whole:
        return amount
    # The unit may be the field's own name: `500 steps` of warm-up, `8 gpus`, `4 layers`.
    return amount if unit.rstrip("s") in field or unit in _COUNTED_IN.get(field, _COUNTED) else None


def boolean(value: Any) -> Hint | None:
    """Return the boolean that a text or a number is meant to be: `yes`, `"true"`, `0`."""
    words = {
        **dict.fromkeys(("yes", "on", "true", "1", "y", "enabled", "enable"), "true"),
        **dict.fromkeys(("no", "off", "false", "0", "n", "disabled", "disable", "none"), "false"),
    }
    found = words.get(str(value).strip().lower())
    return None if found is None else Hint(f"write `{found}`", found)


def name(value: Any) -> Hint | None:
    """Return the DNS label nearest to a text: `Llama_70B` becomes `llama-70b`."""
    if not isinstance(value, str):
        return None
    if re.search(r"\.ya?ml$", value.strip()):
        return Hint("write the `name` in that document, not its file")
    stem = value.strip().rpartition("/")[2]
    found = re.sub(r"-{2,}", "-", re.sub(r"[^a-z0-9]+", "-", stem.lower())).strip("-")[:63].strip("-")
    return Hint(f"write `{found}`", flow(found)) if found else None


def variable(value: Any) -> Hint | None:
    """Return the name of a variable nearest to a text: `hf-token` becomes `HF_TOKEN`."""
    if "://" in str(value):
        return Hint(
            "write the name of a variable, for example `RUN_WEBHOOK`, and set it to the address where the job is submitted"
        )
    # Docker's `NAME=VALUE`, and a shell's `$NAME`.
    name = str(value).strip().partition("=")[0]
    # Those of headway's users are in capitals; `hf-token` is Kubernetes' way to write one.
    name = name.upper() if "-" in name and name.islower() else name
    found = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_")
    found = f"_{found}" if found[:1].isdigit() else found
    return Hint(f"write `{found}`", found) if found else None


def version(value: Any) -> Hint | None:
    """Return the version in a text: `v2.7.1+cu128` becomes `2.7.1`."""
    if digits := re.fullmatch(r"(?:cu|cuda)[-_]?([0-9]{2})([0-9])", str(value).strip().lower()):
        return Hint(f'write `"{digits[1]}.{digits[2]}"`', f'"{digits[1]}.{digits[2]}"')
    found = re.search(r"[0-9]{1,4}(?:\.[0-9]{1,5}){1,3}", str(value))
    if found is None:
        return None
    quoted = f'"{found[0]}"' if found[0].count(".") == 1 else found[0]
    return Hint(f"write `{quoted}`", quoted)


def mac(value: Any) -> Hint | None:
    """Return the MAC address in the notation of Linux: `B8-3F-D2-00-00-01` becomes `b8:3f:d2:00:00:01`."""
    digits = re.sub(r"[^0-9a-f]", "", str(value).lower())
    if len(digits) != 12:
        return None
    found = ":".join(digits[at : at + 2] for at in range(0, 12, 2))
    return Hint(f"write `{found}`", flow(found))


def pairs(items: Sequence[Any]) -> dict[str, Any] | None:
    """Return the mapping that Kubernetes writes as a list of names and values, and Compose as a list of `NAME=value`."""
    found: dict[str, Any] = {}
    for item in items:
        if isinstance(item, dict) and item.keys() == {"name", "value"}:
            found[str(item["name"])] = item["value"]
        elif isinstance(item, dict) and len(item) == 1:
            found |= item
        elif isinstance(item, str) and "=" in item:
            name, _, found[name] = item.partition("=")
        else:
            return None
    return found or None


def mount(value: Any) -> dict[str, Any] | None:
    """Return the mount that Docker writes as `/data:/data:ro`."""
    found = re.fullmatch(r"(/[^:\s]*):(/[^:\s]*)(?::(ro|rw))?", str(value))
    if found is None:
        return None
    return {"source": found[1], "target": found[2], **({"read_only": False} if found[3] == "rw" else {})}


def store(value: Any) -> Hint | None:
    """Return the URL of an object store that a text is meant to be: `gcs://bucket`, `S3://bucket`."""
    text = str(value).strip()
    # docs.aws.amazon.com/AmazonS3/latest/userguide/VirtualHosting.html, cloud.google.com/storage/docs/request-endpoints
    text = re.sub(r"^https?://([^./]+)\.s3[.-][^/]*amazonaws\.com/?", r"s3://\1/", text)
    text = re.sub(r"^https?://s3[.-][^/]*amazonaws\.com/", "s3://", text)
    text = re.sub(r"^https?://storage\.(?:googleapis|cloud\.google)\.com/", "gs://", text)
    # One slash of the two.
    text = re.sub(r"^(s3|gs|az):/(?=[^/])", r"\1://", text)
    if text.startswith(("/", "file:/", "./", "~")):
        return Hint("a directory has no URL: it is a tier `kind: shared`, or a storage `kind: posix` with its `path`")
    if re.fullmatch(r"[A-Za-z0-9][-A-Za-z0-9._]*(/[^\s?#]*)?", text):
        return Hint(f"write `s3://{text}`, or `gs://` or `az://` in front", f"s3://{text}")
    found = re.fullmatch(r"([A-Za-z0-9]+)://(.+)", text)
    schemes = {
        "s3a": "s3",
        "s3n": "s3",
        "s3": "s3",
        "gcs": "gs",
        "gs": "gs",
        "az": "az",
        "abfs": "az",
        "abfss": "az",
        "azure": "az",
    }
    if found is None or found[1].lower() not in schemes:
        return None
    url = f"{schemes[found[1].lower()]}://{found[2]}"
    return Hint(f"write `{url}`", flow(url)) if url != value else None


def amount(value: Any) -> str | None:
    """Return the number of sequences or tokens that a text is meant to be; None if unknown."""
    return _amount(str(value).strip()) if _is_plain(value) else None


def bare_time(value: Any, accepts: Callable[[str], bool], examples: Iterable[Any] | None = None) -> Hint | None:
    """Return the times that a number without a unit may mean: of those that the field accepts, those near to its example."""
    if not _is_plain(value) or not re.fullmatch(_NUMBER, str(value).strip()):
        return None
    text = str(value).strip()
    words = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
    fitting = [unit for unit in words if accepts(f"{text}{unit}")]
    if not fitting and accepts(f"{text}ms"):
        return Hint(f"write `{text}ms` for milliseconds", f"{text}ms")
    usual = next((_seconds(str(each)) for each in examples or ()), None)
    if usual:
        far = {unit: abs(math.log((_seconds(f"{text}{unit}") or usual) / usual)) for unit in fitting}
        fitting = sorted((unit for unit in fitting if far[unit] <= math.log(_USUAL_TIME)), key=lambda unit: far[unit]) or fitting
    times, meant = [f"`{text}{unit}`" for unit in fitting], [words[unit] for unit in fitting]
    return Hint(f"write {joined_or(times)} for {joined_or(meant)}") if fitting else None


def _seconds(text: str) -> float | None:
    try:
        return units.parse_seconds(text)
    except ValueError:
        return None


# What a number without a unit may be measured in, and how it is read, by the quantity.
_MEASURES: Mapping[str, tuple[tuple[str, ...], Callable[[str], int]]] = {
    "size": (("B", "KiB", "MiB", "GiB", "TiB"), units.parse_bytes),
    "rate": (("MB/s", "GB/s", "TB/s"), units.parse_bytes_per_second),
    "link speed": (("Mb/s", "Gb/s", "Tb/s"), units.parse_bits_per_second),
}


def units_meant(notation: Notation, value: Any, examples: Iterable[Any] | None, accepts: Callable[[str], bool]) -> list[str]:
    """Return the units that a number without one may have, the likeliest first: of those with which the field accepts it, those that bring
    it near to the field's first example."""
    if not _is_plain(value) or notation.name not in _MEASURES or not re.fullmatch(_NUMBER, str(value).strip()):
        return []
    names, parse = _MEASURES[notation.name]
    if float(str(value).strip().replace(",", "").replace("_", "")) <= 0:
        return []
    texts = {unit: f"{str(value).strip()}{unit}" for unit in names}
    usual = [parse(str(each)) for each in examples or notation.examples]
    near = {
        unit: abs(math.log(parse(text) / usual[0]))
        for unit, text in texts.items()
        if accepts(text) and 1 / _NEAR <= parse(text) / usual[0] <= _NEAR
    }
    # Where one is of the usual size, the others are not meant.
    near = {unit: far for unit, far in near.items() if far <= math.log(_USUAL)} or near
    return sorted(near, key=lambda each: near[each])


def with_a_unit(notation: Notation, value: Any, meant: Sequence[str]) -> Hint:
    """Return the hint for a number without a unit, which these units are meant for."""
    written = [f"{str(value).strip()}{unit}" for unit in meant]
    fix = written[0] if len(written) == 1 and notation.name != "size" else None
    return Hint(f"write {joined_or([f'`{text}`' for text in written])}", fix)


def lists(value: Any, short: str | None, *, is_command: bool) -> Iterator[list[Any]]:
    """Yield the lists that a single value may be meant as, the likeliest first.

    `short` is the field of an item that its text is; a command is a line of a shell.
    """
    if short is not None:
        yield [{short: value}]
    if not isinstance(value, str):
        yield [value]
    elif is_command:
        # Of several lines, the last one starts the training.
        words = value.strip().rpartition("\n")[2].split()
        yield words[1:] if words and _PYTHON.fullmatch(words[0]) else words
    elif value.strip():
        if "\n" in value.strip():
            # Lines of a shell, each an item.
            yield [line.strip() for line in value.strip().split("\n") if line.strip()]
        # The array of a shell: `(a b)`; brackets of which one is missing.
        if bracketed := re.fullmatch(r"[(<]([^()<>\[\]]*)[)>]|\[([^\[\]]*)|([^\[\]]*)\]", value.strip()):
            value = next(each for each in bracketed.groups() if each is not None).strip()
            value = value if "," in value else re.sub(r"\s+", ",", value)
        # The signs of other lists: `+ item`, `1. item`.
        value = re.sub(r"(?:^|(?<=\s))(?:[+*\u2022]|[0-9]{1,2}[.)])\s+(?=\S)", ",", value.strip()).lstrip(",")
        parts = [part for each in _COMMA.split(value) if each.strip() for part in _expanded(each.strip())]
        yield [_typed(part) for part in parts]
        yield list(parts)
        yield [_typed(part) for part in value.split()]


def lists_of_mapping(value: Mapping[str, Any], fields: Sequence[str]) -> Iterator[Any]:
    """Yield what a mapping may be meant as where a list belongs, the likeliest first; `fields` are those of an item, if it has any.

    Names are often written as keys: of the items, or of the only value.
    """
    inside = list(value.values())
    for name in ("name", "kind", "preset"):
        if name in fields and all(isinstance(each, dict) and name not in each for each in inside):
            yield [{name: key, **each} for key, each in value.items()]
    if len(fields) > 1 and fields[0] != "name" and all(isinstance(each, str) for each in inside):
        yield [{fields[0]: key, fields[1]: each} for key, each in value.items()]
    if not fields and len(inside) == 1:
        yield inside[0]
    if len(inside) > 1 and isinstance(inside[0], str) and all(isinstance(each, list) for each in inside[1:]):
        yield [inside[0], *(item for each in inside[1:] for item in each)]
    yield [value]
    yield list(value)


def _expanded(text: str) -> list[str]:
    """Return the names that a range is short for: `n[1-3]`, `10.0.0.[11-14]`, `1..4`."""
    if whole := re.fullmatch(r"range\(([0-9]{1,6})\)", text):
        begin, before, end, after = "0", "", str(int(whole[1]) - 1), ""
    elif numbers := re.fullmatch(r"([0-9]{1,6})\.\.\.?([0-9]{1,6})", text):
        begin, before, end, after = numbers[1], "", numbers[2], ""
    elif (found := re.fullmatch(r"([^\[\]{}]*)[\[{]([0-9]{1,6})(?:-|\.\.)([0-9]{1,6})[\]}]([^\[\]{}]*)", text)) is not None:
        before, begin, end, after = found.groups()
    elif (ends := re.fullmatch(r"(.*?[^0-9])([0-9]{1,6})\s*(?:-|\.\.\.?)\s*\1([0-9]{1,6})", text)) is not None:
        before, begin, end, after = *ends.groups(), ""
    else:
        return [text]
    if not 0 <= int(end) - int(begin) < _LONGEST_RANGE:
        return [text]
    return [f"{before}{number:0{len(begin)}}{after}" for number in range(int(begin), int(end) + 1)]


def plain_number(text: str) -> Any:
    """Return the number in the text as YAML reads it; the text itself if there is none."""
    return _typed(text)


def _typed(text: str) -> Any:
    try:
        return plain_scalar(text)
    except ValueError:
        return text


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool) and len(str(value)) <= 64


def _decimal(text: str) -> Decimal | None:
    """Return the number, thousands between commas or underscores; None for anything else."""
    if re.fullmatch(r"(?:0,[0-9]+|[0-9]+,(?:[0-9]{1,2}|[0-9]{4,}))(?:[eE][+-]?[0-9]{1,3})?", text):
        # A decimal comma.
        text = text.replace(",", ".")
    elif "," in text and not re.fullmatch(r"[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]+)?", text):
        return None
    try:
        found = Decimal(text.replace(",", "").replace("_", ""))
    except InvalidOperation:
        return None
    return found if found < Decimal(10) ** 18 else None


def _plain(amount: Decimal) -> str:
    text = f"{amount:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _measured(text: str) -> tuple[Decimal, str, str] | None:
    """Return the number, the word behind it, and the rest of the text in lower case."""
    found = _MEASURED.fullmatch(text)
    amount = None if found is None else _decimal(found[1])
    return None if found is None or amount is None else (amount, found[2], found[3].strip().lower())


def _accepted(text: str, parse: Callable[[str], Any]) -> str | None:
    """Return the text if the field reads it: no hint leads into the next error."""
    try:
        parse(text)
    except ValueError:
        return None
    return text


def _time(text: str) -> str | Hint | None:
    if slurm := _SLURM_TIME.fullmatch(text):
        days, hours, minutes, seconds = (int(each or 0) for each in slurm.groups())
        return write_parts(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    if clock := _CLOCK.fullmatch(text):
        first, second = clock.groups()
        return Hint(
            f"write `{int(first)}:{int(second):02}:00` for hours and minutes, `0:{int(first) % 60:02}:{int(second):02}` for minutes"
        )
    if colons := re.fullmatch(r"([0-9]{1,4}):([0-9]{1,2}):([0-9]{1,2})", text):
        return _accepted(f"{colons[1]}:{int(colons[2]):02}:{int(colons[3]):02}", units.parse_seconds)
    if (iso := _ISO_TIME.fullmatch(text)) and any(iso.groups()):
        weeks, days, hours, minutes, seconds = (int(each or 0) for each in iso.groups())
        return write_parts((((weeks * 7 + days) * 24 + hours) * 60 + minutes) * 60 + seconds)
    if re.fullmatch(_NUMBER, text):
        words = f"write {joined_or([f'`{text}{unit}`' for unit in 'smhd'])}, for seconds, minutes, hours or days"
        return Hint(words) if re.search("[1-9]", text) else None
    if text.lower() in _NO_LIMIT:
        return Hint("leave it out where there is no limit")
    return _time_parts(text)


def _time_parts(text: str) -> str | None:
    """Return a time that is written as numbers with words: `1 day and 12 hrs`."""
    parts: list[tuple[int, str, Decimal]] = []
    # `15m30` is 15 minutes and 30 seconds.
    if rest := re.fullmatch(r"(?:.*[0-9]\s*)?([dhm])\s*[0-9]{1,2}", text, re.IGNORECASE):
        text = f"{text}{_SMALLER[rest[1].lower()]}"
    at = 0
    while at < len(text):
        found = _TIME_PART.match(text, at)
        amount = None if found is None else _decimal(found[1])
        word = "" if found is None else found[2].lower()
        word = word if word in _TIME_UNITS else _word_like(word, _TIME_UNITS)
        if found is None or amount is None or word not in _TIME_UNITS:
            return None
        unit, scale = _TIME_UNITS[word]
        parts.append((-_MILLISECONDS[unit], unit, amount * Decimal(scale)))
        between = _BETWEEN_PARTS.match(text, found.end())
        at = between.end() if between else found.end()
    # `30m12h`: the larger unit comes first, and each once.
    sums: dict[str, Decimal] = {}
    for _, unit, part in sorted(parts, key=lambda each: each[0]):
        sums[unit] = sums.get(unit, Decimal(0)) + part
    return _accepted("".join(f"{_plain(part)}{unit}" for unit, part in sums.items()), units.parse_seconds)


def _interval(text: str) -> str | Hint | None:
    if text.lower() in _OFTEN:
        return _OFTEN[text.lower()]
    return _steps(re.sub(r"^every\s+", "", text, flags=re.IGNORECASE)) or _time(
        re.sub(r"^every\s+", "", text, flags=re.IGNORECASE)
    )


def _steps(text: str) -> str | None:
    found = _measured(text)
    if found is None:
        return None
    amount, word, rest = found
    word = word if word.lower() in _STEPS or rest else _word_like(word.lower(), _STEPS)
    prefix = ""
    if word.lower() in _WORDS_OF_PREFIXES and (rest in _STEPS or not rest):
        prefix = _WORDS_OF_PREFIXES[word.lower()]
    elif word.lower() not in _STEPS or rest:
        return None
    if prefix in {"M", "G", "T", "P"} and not rest:
        # `5m` and `1M` may be minutes.
        return None
    amount *= units.PREFIXES[prefix]
    return _accepted(f"{_plain(amount)} step{'' if amount == 1 else 's'}", units.parse_steps)


def _amount(text: str) -> str | None:
    if power := re.fullmatch(r"2\s*(?:\^|\*\*)\s*([0-9]{1,2})\s*([a-z]*)", text.lower()):
        prefix = {10: "Ki", 20: "Mi", 30: "Gi"}.get(int(power[1]) // 10 * 10, "")
        text = f"{2 ** (int(power[1]) % 10 if prefix else int(power[1]))}{prefix} {power[2]}"
    if product := re.fullmatch(r"([0-9]{1,6})\s*[x*\u00d7]\s*([0-9]{1,6})", text):
        return _accepted(f"{int(product[1]) * int(product[2])} sequences", units.parse_amount)
    text = re.sub(r"(?<=[0-9])\s*([kKMGT]i?)(?=tok|seq|sam)", r"\1 ", text)
    found = _measured(text)
    if found is None:
        return None
    amount, word, rest = found
    known = _SEQUENCES | _TOKENS
    word, rest = (word if rest else _word_like(word.lower(), known) or word), (rest if rest in known else _word_like(rest, known))
    if word.lower() in _SEQUENCES | _TOKENS:
        word, rest = "", word.lower()
    # `4MiB tokens`: a size's unit where only the prefix is meant.
    prefix = word.lower().removesuffix("b") if len(word) > 1 else "g" if word == "B" and rest in _TOKENS else word.lower()
    if prefix not in _WORDS_OF_PREFIXES:
        return None
    scale = _WORDS_OF_PREFIXES[prefix]
    # No batch has as many sequences.
    is_tokens = not rest and not scale and amount >= _SURELY_TOKENS
    if (rest in _SEQUENCES or (not rest and scale in {"", "k"})) and not is_tokens:
        counted = "sequences"
    elif rest in _TOKENS or not rest:
        counted = "tokens"
    else:
        return None
    if "." in f"{amount:f}" or amount >= 100_000:
        return _accepted(f"{_plain(amount * units.PREFIXES[scale])} {counted}", units.parse_amount)
    return _accepted(f"{_plain(amount)}{scale} {counted}", units.parse_amount)


def _prefixed(word: str, endings: str) -> str | None:
    """Return the prefix of a word that ends in one of the regular expression's endings, or that is a prefix alone."""
    return _WORDS_OF_PREFIXES.get(re.sub(rf"(?:{endings})$", "", word.lower()))


def _size(text: str) -> str | Hint | None:
    found = _measured(text)
    if found is None or found[2]:
        return None
    amount, word, _ = found
    if not word:
        return write_bytes(int(amount)) if amount >= _SURELY_BYTES and amount == amount.to_integral_value() else None
    prefix = _prefixed(word, "bytes?|b|byte")
    if prefix is None:
        return None
    if re.fullmatch("[kKmMgGtTpP]", word):
        decimal, binary = f"{_plain(amount)}{prefix}B", f"{_plain(amount)}{prefix.upper()}iB"
        return Hint(f"write `{binary}` (powers of 1024) or `{decimal}` (powers of 1000)", binary)
    return _accepted(f"{_plain(amount)}{prefix}B", units.parse_bytes)


def _link_speed(text: str) -> str | Hint | None:
    if times := re.fullmatch(r"[0-9]{1,3}\s*[x×*]\s*(.+)", text):
        one = _link_speed(times[1])
        return Hint(f"write `{one}`, the speed of one adapter; `nics` lists them", one) if isinstance(one, str) else one
    infiniband = re.fullmatch(r"(?:ib[- ]?)?([a-z]dr)[0-9]*", text.lower())
    if infiniband and infiniband[1] in _INFINIBAND:
        return f"{_INFINIBAND[infiniband[1]]}Gb/s"
    found = _measured(_PER_SECOND.sub("ps", text))
    if found is None or found[2]:
        return None
    amount, word, _ = found
    if not word and not amount:
        return None
    if not word:
        return write_bits_per_second(int(amount) * (1 if amount >= _SURELY_BYTES else 10**9)) if amount == int(amount) else None
    if re.search(r"B(?:ps)?$|bytes?(?:ps)?$", word):
        scale = _prefixed(word, "bytesps|byteps|bps|bytes?|b")
        bits = "" if scale is None else f"{_plain(amount * 8)}{scale}b/s"
        return Hint(f"`B` is a byte: write `{_plain(amount)}{scale}b/s`, or `{bits}` if bytes are meant") if scale else None
    prefix = _prefixed(word, "bits?ps|bits?|bps|base|be|ps|e|b")
    return None if prefix is None else _accepted(f"{_plain(amount)}{prefix}b/s", units.parse_bits_per_second)


def _rate(text: str) -> str | Hint | None:
    if slow := re.fullmatch(r"(.+?)\s*(?:/|per)\s*(min|minute|h|hour)", text):
        found = _measured(slow[1])
        prefix = None if found is None or found[2] else _prefixed(found[1], "bytes?|b")
        if found is None or prefix is None:
            return None
        second = found[0] * units.PREFIXES[prefix] / (60 if slow[2].startswith("m") else 3600)
        return write_bytes_per_second(int(second))
    found = _measured(_PER_SECOND.sub("ps", text))
    if found is None or found[2]:
        return None
    amount, word, _ = found
    if not word:
        whole = amount >= _SURELY_BYTES and amount == amount.to_integral_value()
        return write_bytes_per_second(int(amount)) if whole else None
    if re.search(r"bits?(?:ps)?$|[kKmMgGtTpP]i?b(?:ps)?$", word):
        prefix = _prefixed(word, "bitsps|bitps|bits?|bps|b")
        return None if prefix is None else _accepted(f"{_plain(amount / 8)}{prefix}B/s", units.parse_bytes_per_second)
    prefix = _prefixed(word, "bytesps|byteps|bytes?|bps|ps|b")
    return None if prefix is None else _accepted(f"{_plain(amount)}{prefix}B/s", units.parse_bytes_per_second)


def _length(text: str) -> str | None:
    found = _measured(text)
    words = {"": "m", **dict.fromkeys(("m", "meter", "meters", "metre", "metres"), "m")}
    words |= dict.fromkeys(("km", "kilometer", "kilometers", "kilometre", "kilometres"), "km")
    if found is not None and not found[2] and found[1].lower() in _METRES:
        return _accepted(f"{_plain(found[0] * _METRES[found[1].lower()])}m", units.parse_metres)
    if found is None or found[2] or found[1].lower() not in words:
        return None
    return _accepted(f"{_plain(found[0])}{words[found[1].lower()]}", units.parse_metres)


_QUANTITIES: Mapping[str, Callable[[str], str | Hint | None]] = {
    "size": _size,
    "link speed": _link_speed,
    "rate": _rate,
    "time": _time,
    "length": _length,
    "number of steps": _steps,
    "interval": _interval,
    "amount": _amount,
}
