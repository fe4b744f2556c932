"""Brings texts into the forms of their fields: names of hosts, adapters and labels, options and node lists of Slurm."""

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from ipaddress import ip_network
from typing import Any

from headway.jobspec.catalog.nics import nics
from headway.jobspec.catalog.switches import switches
from headway.jobspec.flow import flow
from headway.jobspec.gpu_names import meant_gpu
from headway.jobspec.suggest import Hint, known_in, nearest

# sbatch(1): the short forms of options that headway has fields for.
_SHORT_OPTIONS: Mapping[str, str] = {
    "A": "account",
    "C": "constraint",
    "d": "dependency",
    "p": "partition",
    "q": "qos",
    "x": "exclude",
}
# Short options of sbatch(1) without a field in the document.
_LONG_OPTIONS: Mapping[str, str] = {"M": "clusters", "L": "licenses", "b": "begin"}
# github.com/aws/aws-efa-k8s-device-plugin; Mellanox/k8s-rdma-shared-dev-plugin names its resources itself.
_RESOURCES: Mapping[str, str] = {
    **dict.fromkeys(("efa", "aws/efa", "amazonaws.com/efa"), "vpc.amazonaws.com/efa"),
    **dict.fromkeys(("hca_shared_devices_a", "rdma_shared_device_a", "hca"), "rdma/hca_shared_devices_a"),
}
# Those that headway sets, and the field of the document that determines each.
_SET_OPTIONS: Mapping[str, str] = {
    "N": "`nodes` of the job is their number",
    "n": "headway starts one process on each GPU",
    "c": "headway divides the cores of a node among its ranks",
    "G": "`gpus` of the node group is their number",
    "t": "`limits.attempt.time` of the job is the time",
    "J": "`name` of the job is its name",
    "o": "headway keeps the output in the run's directory",
    "e": "headway keeps the output in the run's directory",
    "D": "the job runs where it is submitted",
}
_MOST = 64
# The cages of the largest switches of the catalogue; EOS numbers further ports on.
_CAGES = 64
_IPV4 = 4
_TYPOGRAPHIC = str.maketrans(
    {"\u201c": "", "\u201d": "", "\u201e": "", "\u2018": "", "\u2019": "", "\u2212": "-", "\u2013": "--", "\u2014": "--"}
)


def option(value: Any) -> Hint | None:
    """Return a long option: `mail-type=FAIL`, `--mail-type FAIL` and `#SBATCH --mail-type=FAIL` are `--mail-type=FAIL`."""
    text = re.sub(r"^#\s*SBATCH\s+", "", str(value).strip())
    if bound := re.fullmatch(r"(?:-B|--bind|-v|--volume|--mount)[ =]?(/[^:\s,]+):(/[^:\s,]+)(?::(ro|rw))?", text):
        writable = ", read_only: false" if bound[3] == "rw" else ""
        return Hint(
            f"leave it out, and write `mounts: [{{source: {bound[1]}, target: {bound[2]}{writable}}}]` at the top of the job"
        )
    if (short := re.fullmatch(r"-([A-Za-z])[ =]?(\S+)", text)) and short[1] in _SHORT_OPTIONS:
        return Hint(f"leave it out, and set `{_SHORT_OPTIONS[short[1]]}: {short[2]}`")
    if (short := re.fullmatch(r"-([A-Za-z])[ =]?(?:\S.*)?", text)) and short[1] in _SET_OPTIONS:
        return Hint(f"leave it out: {_SET_OPTIONS[short[1]]}")
    if (short := re.fullmatch(r"-([A-Za-z])[ =]?(\S+)", text)) and short[1] in _LONG_OPTIONS:
        return _written(f"--{_LONG_OPTIONS[short[1]]}={short[2]}")
    found = re.fullmatch(r"(?:-{1,2}|\u2013|\u2014)?([a-z][a-z0-9_-]+)(?:\s*[=\s]\s*(\S+))?", text)
    return None if found is None else _written(f"--{found[1]}={found[2]}" if found[2] else f"--{found[1]}")


def option_name(value: Any) -> Hint | None:
    """Return the name of an option without its dashes and its value."""
    found = re.fullmatch(r"-*([a-z][a-z0-9-]*)(?:=.*)?", str(value).strip())
    return None if found is None else _written(found[1])


_LOGIN = re.compile(r"(?:ssh://)?(?:([^@\s/]+)@)?([A-Za-z0-9][-A-Za-z0-9.]*)(?::([0-9]+))?/?")


def brackets(value: Any) -> Hint | None:
    """Return the text with the bracket closed that is open at its end, and without blanks."""
    # Names with a comma between them, features with `&`.
    text = re.sub(r"\s+and\s+", "&", str(value).strip())
    text = re.sub(r"(?<=[\w\]])\s+(?=\w)", ",", text)
    text = re.sub(r"\s+", "", text)
    inside = re.search(r"\[([^\[\]]*)$", text)
    if inside is None:
        return _written(text) if text != str(value) else None
    # A name after a comma is outside of the bracket.
    head, comma, name = inside[1].rpartition(",")
    opened = text[: inside.start(1)]
    closed = f"{opened}{head}],{name}" if comma and re.match(r"[A-Za-z]", name) and head else f"{text}]"
    return _written(closed)


def commit(value: Any) -> Hint | None:
    """Return how to find the whole hash of a short one."""
    text = str(value).strip().lower()
    return Hint(f"write the whole hash, which `git rev-parse {text}` prints") if re.fullmatch(r"[0-9a-f]{4,39}", text) else None


def resource(value: Any) -> Hint | None:
    """Return the whole name of the resource that a device plugin calls so."""
    found = _RESOURCES.get(str(value).strip().lower())
    return None if found is None else _written(found)


def host(value: Any) -> Hint | None:
    """Return the address in `ssh://root@10.0.0.11`, or each of `10.0.0.[11-18]`."""
    ranged = re.fullmatch(r"([A-Za-z0-9][-A-Za-z0-9.]*)[\[{]([0-9]{1,5})(?:-|\.\.)([0-9]{1,5})[\]}]", str(value).strip())
    if ranged is not None and 0 < int(ranged[3]) - int(ranged[2]) < _MOST:
        width = len(ranged[2]) if ranged[2].startswith("0") else 0
        names = [f"{ranged[1]}{number:0{width}}" for number in range(int(ranged[2]), int(ranged[3]) + 1)]
        return Hint(f"write each host: `{', '.join(names)}`")
    text = re.sub(r"^([0-9.]+)/[0-9]{1,2}$", r"\1", str(value).strip())
    found = re.fullmatch(r"(?:[a-z]+://)?(?:([^@\s/]+)@)?([A-Za-z0-9][-A-Za-z0-9.]*(?::[0-9]+)?)/?", text)
    if found is None or found[2] == value:
        return None
    user = f"the user is `user` of `provider.options`: `user: {found[1]}`" if found[1] else None
    return Hint(f"write `{found[2]}`", flow(found[2]), after=user)


def login_host(value: Any) -> Hint | None:
    """Return the fields in `trainer@login.example.com:2222`."""
    found = _LOGIN.fullmatch(str(value).strip())
    if found is None or not (found[1] or found[3]):
        return None
    return Hint(f"write `{flow(_of_login(found)).strip('{}')}`")


def login(value: Any) -> str | None:
    """Return the section that `trainer@login.example.com:2222` is short for."""
    found = _LOGIN.fullmatch(str(value).strip())
    return None if found is None else flow(_of_login(found))


def _of_login(found: re.Match[str]) -> dict[str, Any]:
    fields = {"host": found[2], "port": found[3] and int(found[3]), "user": found[1]}
    return {key: each for key, each in fields.items() if each}


# sbatch(1), `--dependency`.
_CONDITIONS = ("after", "afterany", "afterburstbuffer", "aftercorr", "afternotok", "afterok", "singleton")


def dependency(value: Any) -> Hint | None:
    """Return the condition that jobs alone mean, `1234` is `afterok:1234`, and the one that is misspelt: `after_ok:1234`."""
    text = str(value).strip()
    found = re.fullmatch(r"[0-9]{1,12}([,: ]+[0-9]{1,12})*", text)
    if found is not None:
        return _written("afterok:" + ":".join(re.findall("[0-9]+", found[0])))
    parts = []
    for part in re.split(r"\s*[,;]\s*|\s+(?=[A-Za-z])", text):
        one = re.fullmatch(r"([A-Za-z_-]+)((?:[:= ]+[0-9_+]+)*)", part)
        name = None if one is None else nearest(re.sub("[_-]", "", one[1]), _CONDITIONS)
        if one is None or name is None:
            return None
        if not one[2] and name != "singleton":
            return Hint(f"write the number of the job behind it, for example `{name}:1234`")
        parts.append(name + "".join(f":{job}" for job in re.findall(r"[0-9_+]+", one[2])))
    return _written(",".join(parts))


def before_colon(value: Any) -> Hint | None:
    """Return the device of `mlx5_0:1`, whose port `ibstat` names, or of the alias `eno1:0`."""
    numbered = re.fullmatch(r"([A-Za-z0-9][-A-Za-z0-9_.]*)\[([0-9]{1,3})-([0-9]{1,3})\]", str(value).strip())
    if numbered is not None and 0 < int(numbered[3]) - int(numbered[2]) < _MOST:
        names = [f"{numbered[1]}{number}" for number in range(int(numbered[2]), int(numbered[3]) + 1)]
        return Hint(f"write each name: `{', '.join(names)}`")
    if "*" in str(value):
        return Hint("write each name; patterns are not expanded")
    found = re.fullmatch(r"([A-Za-z0-9][-A-Za-z0-9_.]*):[0-9]+", str(value).strip())
    return None if found is None else _written(found[1])


def label(value: Any) -> Hint | None:
    """Return the text with hyphens in place of what a label cannot have."""
    domain, slash, name = str(value).strip().rpartition("/")
    return _written(f"{domain}{slash}{re.sub(r'[^A-Za-z0-9_.-]+', '-', name).strip('-_.')}")


def pod_memory(value: Any) -> Hint | None:
    """Return a whole number in the next smaller unit: `1.8Ti` is `1843Gi`, and `1.5T` is `1500G`."""
    found = re.fullmatch(r"([0-9]+\.[0-9]{1,6})\s*([MGT])(i?)B?", str(value).strip())
    if found is None:
        return None
    whole = int(Fraction(found[1]) * (1024 if found[3] else 1000))
    smaller = {"M": "K" if found[3] else "k", "G": "M", "T": "G"}[found[2]]
    return _written(f"{whole}{smaller}{found[3]}") if whole else None


def absolute(value: Any) -> Hint | None:
    """Return the path from the root that `mnt/data/` and `/local/head way` are meant to be."""
    text = re.sub(r"/{2,}", "/", str(value).strip())
    if text.startswith(("~", "$")):
        return Hint("write the whole path, from `/` on: `~` and `$` are not expanded")
    if re.match(r"[a-z]+:/|[A-Za-z]:", text):
        return None
    text = re.sub(r"^(?:\./|\.\./)+", "", text)
    # A name alone does not show its directory.
    if not re.match(r"/?[A-Za-z0-9_]+[^/]*/", text) and not text.startswith("/"):
        return None
    whole = "/" + re.sub(r"\s+", "-", text).strip("/")
    # Where a relative path begins, only its author knows.
    return (
        _written(whole)
        if text.startswith("/")
        else Hint(f"write the whole path from `/` on, as the nodes have it: `/...{whole}`")
    )


def guid(value: Any) -> Hint | None:
    """Return the GUID in the notation of `ibswitches`."""
    digits = re.sub(r"[^0-9a-f]", "", str(value).lower().removeprefix("0x"))
    return _written(f"0x{digits}") if len(digits) == 16 else None


def dns_name(value: Any) -> Hint | None:
    """Return the text in small letters, with hyphens in place of what a DNS name cannot have."""
    found = re.sub(r"[^a-z0-9.]+", "-", str(value).strip().lower()).strip("-.")
    return _written(found) if found and "://" not in str(value) and "=" not in str(value) else None


def model_name(value: Any) -> Hint | None:
    """Return the name of a model with hyphens for blanks; of Slurm's `h100:8` and `gpu:h100:8`, what each part is."""
    text = str(value).strip()
    if gres := re.fullmatch(r"(?:gpu:)?([A-Za-z0-9][-A-Za-z0-9_.]*):([0-9]{1,2})", text):
        return Hint(f"write `gpu: {gres[1]}` and `gpus: {gres[2]}`")
    if times := re.fullmatch(
        r"([0-9]{1,2})\s*[x*\u00d7]\s*([A-Za-z][-A-Za-z0-9_. ]*)|([A-Za-z][-A-Za-z0-9_. ]*?)\s*[x*\u00d7]\s*([0-9]{1,2})", text
    ):
        name = re.sub(r"\s+", "-", (times[2] or times[3]).strip())
        return Hint(f"write `gpu: {name}` and `gpus: {times[1] or times[4]}`")
    known = meant_gpu(text) if re.search("[0-9]", text) else None
    if known is not None and known.fix is not None:
        return known
    if (part := known_in(text, (*nics(), *switches()))) is not None:
        return part
    found = re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-")
    return _written(found) if found and found != text else None


def preset(value: Any) -> str:
    """Return the name of a published model as the catalogue writes it: `meta-llama/Llama-3.1-70B-Instruct` is `llama-3.1-70b`."""
    stem = re.sub(r"[-_](instruct|chat|base|hf|it|v0\.[0-9])(?=[-_]|$)", "", str(value).strip().lower().rpartition("/")[2])
    return stem.removeprefix("meta-")


def user_name(value: Any) -> Hint | None:
    """Return the name of a user in small letters, and the one before the `@` of a host."""
    found = re.sub(r"[^a-z0-9_-]+", "-", str(value).strip().partition("@")[0].lower()).strip("-")
    return _written(found) if re.match("[a-z_]", found) else None


def jump(value: Any) -> Hint | None:
    """Return the hosts on the way with commas between them, without `ssh://`."""
    found = re.sub(r"\s*[,;]\s*|\s+", ",", re.sub(r"ssh://|/$", "", str(value).strip())).strip(",")
    return _written(found) if found else None


def sonic_port(value: Any) -> Hint | None:
    """Return SONiC's name of a port."""
    found = re.fullmatch(r"(?:ethernet|eth|et)?[ -]?([0-9]{1,4})", str(value).strip().lower())
    if found is not None:
        return _written(f"Ethernet{found[1]}")
    # SONiC counts lanes, eight to a cage, and Cumulus Linux cages from 1.
    cage = re.fullmatch(r"swp([1-9][0-9]{0,2})", str(value).strip())
    return _other_port(value, f"Ethernet{(int(cage[1]) - 1) * 8 if cage else 512}")


def cumulus_port(value: Any) -> Hint | None:
    """Return the name of a port of Cumulus Linux."""
    found = re.fullmatch(r"(?:swp|sw|port)?[ -]?([0-9]{1,3}(?:s[0-7])?)", str(value).strip().lower())
    lane = re.fullmatch(r"Ethernet([0-9]{1,4})", str(value).strip())
    of_lane = f"swp{int(lane[1]) // 8 + 1}" if lane and int(lane[1]) % 8 == 0 else "swp65"
    return _written(f"swp{found[1]}") if found is not None else _other_port(value, of_lane)


def eos_port(value: Any) -> Hint | None:
    """Return EOS' name of a port: `Et1/1` is `Ethernet1/1`."""
    found = re.fullmatch(r"(?:ethernet|eth|et)?[ -]?([0-9]{1,3}(?:/[0-9]{1,2}){0,2})", str(value).strip().lower())
    # Ports above the cages are the small ones next to them, with one lane.
    cage = re.fullmatch(r"swp([1-9][0-9]{0,2})", str(value).strip())
    own = f"Ethernet{cage[1]}" if cage and int(cage[1]) > _CAGES else f"Ethernet{cage[1] if cage else 33}/1"
    return _written(f"Ethernet{found[1]}") if found is not None else _other_port(value, own)


def _other_port(value: Any, example: str) -> Hint:
    """Return the hint for the name of a port of another operating system."""
    other = next((name for form, name in _PORTS if re.fullmatch(form, str(value).strip(), re.IGNORECASE)), None)
    theirs = f"`{value}` is a port of {other}; " if other is not None else ""
    return Hint(f"{theirs}write a port of this system, for example `{example}`")


# Names of ports, by the operating system.
_PORTS = ((r"swp[0-9]+(s[0-9])?", "Cumulus Linux"), (r"Ethernet[0-9]+", "SONiC"), (r"Ethernet[0-9]+/[0-9]+", "EOS"))


def lanes(value: Any) -> Hint | None:
    """Return numbers with commas and no blanks between them; `0-7` is each of them."""
    text = str(value).strip().strip("[]")
    if ends := re.fullmatch(r"([0-9]{1,4})\s*(?:-|\.\.)\s*([0-9]{1,4})", text):
        numbers = range(int(ends[1]), int(ends[2]) + 1)
        return _quoted(",".join(map(str, numbers))) if 0 < len(numbers) <= _MOST else None
    found = re.findall(r"[0-9]+", text)
    return _quoted(",".join(found)) if found and re.fullmatch(r"[0-9\s,;]+", text) else None


def _quoted(text: str) -> Hint:
    return Hint(f'write `"{text}"`', f'"{text}"')


def network(value: Any) -> Hint | None:
    """Return the network of an address with its mask: `10.10.0.0/255.255.0.0` is `10.10.0.0/16`."""
    text = re.sub(r"\s+(?:mask|netmask)?\s*|\s*/\s*", "/", str(value).strip())
    try:
        found = ip_network(text, strict=False)
    except ValueError:
        return None
    return _written(str(found)) if found.version == _IPV4 and "/" in text else None


def word(value: Any) -> Hint | None:
    """Return the text with hyphens for blanks, without the `@` of a name."""
    # An option of Slurm with its value, and the mark of sinfo at the default partition.
    text = re.sub(r"^(?:--[a-z-]+[= ]|-[A-Za-z] )\s*", "", str(value).strip()).rstrip("*")
    text = re.sub(r"\s+", "-", re.sub(r"\s*,\s*", ",", text.lstrip("@")))
    return _written(text) if text != value else None


def plain(text: str) -> str | None:
    """Return the text without typographic quotes and with hyphens for dashes at its beginning; None if it has none of them."""
    begin = re.match(r"[\u2212\u2013\u2014]", text)
    if begin is None and not re.search(r"^[\u201c\u201e\u2018].*[\u201d\u201c\u2019]$", text, re.DOTALL):
        return None
    return text.translate(_TYPOGRAPHIC)


def _written(text: str) -> Hint:
    return Hint(f"write `{text}`", flow(text))


REPAIRS: Mapping[str, Callable[[Any], Hint | None]] = {
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$": resource,
    r"^(singleton|[a-z]+(:[0-9_+]+)+)([,?](singleton|[a-z]+(:[0-9_+]+)+))*$": dependency,
    r"^--[a-z][a-z0-9_-]*(=[^\x00-\x1f\x7f]*)?$": option,
    r"^[a-z][a-z0-9-]*$": option_name,
    r"^([A-Za-z0-9_][A-Za-z0-9_.-]*|[0-9A-Fa-f]*(:[0-9A-Fa-f.]*){2,})$": login_host,
    r"^[A-Za-z0-9][-A-Za-z0-9.]*(:[0-9]+)?$": host,
    r"^[A-Za-z0-9][-A-Za-z0-9_.]{0,62}$": before_colon,
    r"^[^\s/:]{1,15}$": before_colon,
    r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$": label,
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$": label,
    r"^0x[0-9a-f]{16}$": guid,
    r"^/": absolute,
    r"^(/([.]?[^/.][^/]*)?)+$": absolute,
    r"^(/[A-Za-z0-9_.+-]+)+$": absolute,
    r"^[A-Za-z0-9_][A-Za-z0-9_.,@+-]*$": word,
    r"^[1-9][0-9]*(([KMGT]i|[kMGT])B?)?$": pod_memory,
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$": dns_name,
    r"^[A-Za-z0-9][-A-Za-z0-9_.]*$": model_name,
    r"^[a-z_][-a-z0-9_]*$": user_name,
    r"^([A-Za-z_][-A-Za-z0-9_.]*)?$": user_name,
    r"^[A-Za-z0-9_.:@,\[\]-]+$": jump,
    r"^Ethernet[0-9]{1,4}$": sonic_port,
    r"^swp[0-9]{1,3}(s[0-7])?$": cumulus_port,
    r"^Ethernet[0-9]{1,3}(/[0-9]{1,2}){0,2}$": eos_port,
    r"^[0-9]+(,[0-9]+)*$": lanes,
    r"^[0-9.]+/[0-9]{1,2}$": network,
}
"""How a text is brought into its form, by the form's regular expression (`forms.FORMS`)."""
