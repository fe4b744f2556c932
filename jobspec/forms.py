"""Describes in words which texts a field accepts, by the regular expression that checks them."""

from collections.abc import Mapping

FORMS: Mapping[str, str] = {
    r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$": (
        "DNS label: lower-case letters, digits and hyphens, 63 at most, with a letter or digit at both ends"
    ),
    r"^(s3|gs|az)://[A-Za-z0-9][-A-Za-z0-9._]*(/[^\s?#]*)?$": (
        "URL of an object store: `s3://`, `gs://` or `az://`, then the bucket and a prefix"
    ),
    r"^HW[0-9]{3}$": "code of a problem: `HW` and three digits",
    r"^[0-9]{1,4}(\.[0-9]{1,5}){1,3}$": "version: two to four numbers separated by dots",
    r"^[A-Za-z_][A-Za-z0-9_]*$": "name of a variable: letters, digits and `_`, not starting with a digit",
    r"^[A-Za-z0-9][-A-Za-z0-9.]*(:[0-9]+)?$": "host name or IPv4 address, with `:PORT` unless it is 22",
    r"^[A-Za-z0-9][-A-Za-z0-9_.]{0,62}$": (
        "name of an adapter: letters, digits, `-`, `_` and `.`, 63 at most, starting with a letter or digit"
    ),
    r"^[A-Za-z0-9][-A-Za-z0-9_.]{0,14}$": (
        "name of a network interface: letters, digits, `-`, `_` and `.`, 15 at most, starting with a letter or digit"
    ),
    r"^[A-Za-z0-9][-A-Za-z0-9_.]{0,254}$": "name: letters, digits, `-`, `_` and `.`, starting with a letter or digit",
    r"^[A-Za-z0-9][-A-Za-z0-9_.]*$": "name of a model: letters, digits, `-`, `_` and `.`, starting with a letter or digit",
    r"^[A-Za-z0-9][-A-Za-z0-9_/.:]{0,62}$": "name of a port: letters, digits, `-`, `_`, `/`, `.` and `:`, 63 at most",
    r"^[^\s/:]{1,15}$": "name of a kernel interface: 15 characters at most, without blanks, `/` and `:`",
    r"^Ethernet[0-9]{1,4}$": "name of a port of SONiC: `Ethernet` and a number",
    r"^swp[0-9]{1,3}(s[0-7])?$": "name of a port of Cumulus Linux: `swp33`, or `swp33s1` for a part of a cage",
    r"^Ethernet[0-9]{1,3}(/[0-9]{1,2}){0,2}$": "name of a port of EOS: `Ethernet65` or `Ethernet33/1`",
    r"^[0-9]+(,[0-9]+)*$": "list of numbers with commas and no blanks between them",
    (
        r"^([A-Za-z0-9_(!][A-Za-z0-9_.,:&|*()!+-]*|\[[A-Za-z0-9_.,:&|*()!+-]+\][A-Za-z0-9_.,:&|*()!+-]*)"
        r"(\[[A-Za-z0-9_.,:&|*()!+-]+\][A-Za-z0-9_.,:&|*()!+-]*)*$"
    ): "Slurm constraint: names of features with `&`, `|`, `*`, `,` and brackets",
    (
        r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(\[[0-9]+([,-][0-9]+)*\][A-Za-z0-9_.-]*)*"
        r"(,[A-Za-z0-9_][A-Za-z0-9_.-]*(\[[0-9]+([,-][0-9]+)*\][A-Za-z0-9_.-]*)*)*$"
    ): "Slurm node list: names with commas and ranges in brackets, `n[1-4],n9`",
    r"^[A-Za-z0-9_][A-Za-z0-9_.,@+-]*$": "word of letters, digits, `_`, `.`, `,`, `@`, `+` and `-`",
    r"^--[a-z][a-z0-9_-]*(=[^\x00-\x1f\x7f]*)?$": "long option: `--name` or `--name=value`",
    r"^(singleton|[a-z]+(:[0-9_+]+)+)([,?](singleton|[a-z]+(:[0-9_+]+)+))*$": (
        "Slurm dependency: `singleton`, `afterok:JOB` or several with commas"
    ),
    r"^[a-z][a-z0-9-]*$": "name of an option without its dashes",
    r"^[a-z_][-a-z0-9_]*$": "name of a user: lower-case letters, digits, `_` and `-`",
    r"^/[A-Za-z0-9_./-]*$": "absolute path of letters, digits, `_`, `.`, `-` and `/`",
    r"^[^\x00]*$": "text without a NUL character",
    r"^[^\s]+$": "text without blanks",
    r"^[!-~]([ -~]{0,126}[!-~])?$": "text of up to 128 ASCII characters, without a blank at either end",
    r"^[0-9.]+/[0-9]{1,2}$": "network: an IPv4 address, `/` and the length of its prefix",
    r"^(/([.]?[^/.][^/]*)?)+$": "path that begins with `/` and has no `.` and `..` in it",
    r"^0x[0-9a-f]{16}$": "GUID: `0x` and 16 lower-case hexadecimal digits",
    r"^[0-9a-f]{2}(:[0-9a-f]{2}){5}$": "MAC address: six pairs of lower-case hexadecimal digits with colons between them",
    r"^(HEAD|[0-9a-f]{40})$": "Git commit: `HEAD` or a whole hash of 40 hexadecimal digits",
    r"^[A-Za-z0-9./_][-A-Za-z0-9._/:@#+]*$": "name of an image, by its digest (`NAME@sha256:...`), or the path of an image file",
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$": "DNS name: lower-case letters, digits, hyphens and dots",
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$": (
        "extended resource of Kubernetes: a domain, `/` and a name, `rdma/hca_shared_devices_a`"
    ),
    r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$": (
        "label's value: up to 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends"
    ),
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$": (
        "label's key: a name of up to 63 characters, after a domain and `/` or alone"
    ),
    r"^(/[A-Za-z0-9_.+-]+)+$": "path that begins with `/`, of letters, digits, `_`, `.`, `+` and `-`",
    r"^([A-Za-z0-9_][A-Za-z0-9_.-]*|[0-9A-Fa-f]*(:[0-9A-Fa-f.]*){2,})$": "host: its name, its address, or its name in ~/.ssh/config",
    r"^([A-Za-z_][-A-Za-z0-9_.]*)?$": "name of a user: letters, digits, `_`, `-` and `.`, not starting with a digit",
    r"^[A-Za-z0-9_.:@,\[\]-]+$": "list of hosts, each `[user@]host[:port]`, with commas between them",
    r"^/": "path that begins with `/`",
    r"^[1-9][0-9]*(([KMGT]i|[kMGT])B?)?$": "whole number with `k`, `M`, `G`, `T`, `Ki`, `Mi`, `Gi` or `Ti`, with `B` or without",
}
"""The text's kind and characters, by the regular expression that checks it."""


def form(pattern: object) -> str | None:
    """Return the form in words with its article, `a version: ...`; None if there are none for the pattern."""
    words = FORMS.get(str(pattern))
    if words is None or words.startswith("text"):
        return words
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"
