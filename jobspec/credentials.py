"""Finds credentials in a document, by their issuers' formats and by the names of their fields."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

Path = tuple[str | int, ...]

_TEXT = r"[A-Za-z0-9_-]"
_START = r"(?<![A-Za-z0-9])"

# A part that each form has, what it is, and its whole form as the issuer publishes it (compare
# gitleaks/gitleaks:config/gitleaks.toml). None of them scans a text more than once: a text may have a million
# characters.
_FORMS = (
    ("AKIA", "an AWS access key", rf"{_START}AKIA[A-Z2-7]{{16}}(?![A-Za-z0-9])"),
    ("ASIA", "an AWS access key", rf"{_START}ASIA[A-Z2-7]{{16}}(?![A-Za-z0-9])"),
    ("gh", "a GitHub token", rf"{_START}gh[pousr]_[A-Za-z0-9]{{36}}"),
    ("github_pat_", "a GitHub token", rf"{_START}github_pat_[A-Za-z0-9_]{{22}}"),
    ("glpat-", "a GitLab token", rf"{_START}glpat-{_TEXT}{{20}}"),
    ("hf_", "a Hugging Face token", rf"{_START}hf_[A-Za-z0-9]{{30}}"),
    ("sk-", "an API key", rf"{_START}sk-(?:(?:proj|ant|svcacct|admin)-{_TEXT}{{16}}|[A-Za-z0-9]{{20}})"),
    ("k_live_", "a Stripe key", rf"{_START}[rs]k_live_[A-Za-z0-9]{{16}}"),
    ("nvapi-", "an NVIDIA API key", rf"{_START}nvapi-{_TEXT}{{20}}"),
    ("AIza", "a Google API key", rf"{_START}AIza{_TEXT}{{35}}"),
    ("xox", "a Slack token", rf"{_START}xox[abeoprs]-[A-Za-z0-9-]{{10}}"),
    (":AA", "a Telegram token", rf"{_START}[0-9]{{8,10}}:AA{_TEXT}{{33}}(?!{_TEXT})"),
    ("hooks.slack.com", "a Slack webhook", r"hooks\.slack\.com/services/[A-Za-z0-9/]{20}"),
    ("eyJ", "a signed token", r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,4096}\.eyJ[A-Za-z0-9_-]{8}"),
    ("PRIVATE KEY", "a private key", r"-----BEGIN (?:[A-Z]{2,9} ){0,2}PRIVATE KEY"),
    ("wandb login", "a Weights & Biases key", r"\bwandb login (?:--?[\w-]{1,32}(?:=\S{1,256})? ){0,4}[0-9a-f]{40}"),
    (
        " login ",
        "a password",
        r"\b(?:docker|podman|nerdctl|oras|registry|auth) login (?:[^\s-]\S{0,256} |-u ?\S{1,256} ){0,3}-p ?[^\s$<{]",
    ),
    ("earer ", "a bearer token", r"\b[Bb]earer (?=[A-Za-z_.~+/-]{0,64}[0-9])[A-Za-z0-9_.~+/-]{16}"),
    ("://", "a password in a URL", r"://[^/\s:@]{0,256}:(?![$<{])[^/\s@]{1,256}@"),
)

# Most checks use none of the following patterns: they are compiled when they are used.
# `--api-key=...`, `HF_TOKEN=...`, `?token=...`; the second form is `--api-key ...`.
_ASSIGNMENTS = (
    r"""(?<![\w-])(?P<name>-{0,2}[A-Za-z][\w-]{0,127})=["']?(?P<value>[^\s"'&;]+)"""
    r"""|(?<!\S)(?P<option>--[A-Za-z][\w-]{0,127})[ ]+(?P<word>[^\s-]\S*)"""
)
_OPTION = r"--[A-Za-z][\w-]*"

_WORD = r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+"
_ALWAYS = ("password", "passwd", "passphrase", "secret", "credential", "credentials", "apikey", "secretkey", "accesskey", "dsn")
_ENDINGS = (*_ALWAYS, "token", "key", "pass", "pwd", "auth", "wandb", "dockerconfigjson")
# Before `token`: of a tokenizer's vocabulary, or a count. Before `key`: a field of the data, of a mapping, or public.
_TOKEN_OF = "pad|eos|bos|sep|cls|mask|unk|image|audio|video|vision|special|start|stop|end|begin|prefix|suffix|per|max|min|num"
_KEY_OF = (
    "text|json|data|dataset|sort|group|label|input|output|primary|foreign|public|cache|partition|shard|index|feature|image|target"
    "|source|column|field|name|query|tokenizer|token|answer|prompt|state|model|metric|monitor|row|record|sample|batch|item|topology"
)

# Before `pass`: a number of passes.
_PASS_OF = "one|two|first|second|single|multi|last|num|max|min|per|by|forward|backward|extra|next|each|all"
_PASSES = ("pass", "pgpass", "dbpass", "userpass", "sshpass")
_FOLDERS = ("pwd", "oldpwd")
_SWITCHES = ("true", "false", "yes", "no", "on", "off", "none", "null")
# A key of Weights & Biases; the base64 of a registry's login.
_HEX_KEY = "[0-9a-f]{40}"
_BASE64 = r"(?=[^A-Z]*[A-Z])(?=[^a-z]*[a-z])[A-Za-z0-9+/_-]{20,8192}={0,2}"

# Placeholders for a value: a variable, an argument's `{name}`, `<token>`, stars.
_STAND_IN = r"\$\w+|\$?\{[^{}]*\}|\$\([^()]*\)|<[^<>]*>|\[[^\[\]]*\]|\*+|x{3,}|\.{3}"
_PATH = r"(?:~|\.{1,2})?(?:/[\w.@-]{1,32})+/?"
STARS = "********"
# A field of a mapping, in a line of YAML. A name is looked for where one begins: a line may be a word of a megabyte.
_YAML = r"""(?P<key>(?<![A-Za-z_-])(?P<name>[A-Za-z][\w-]{0,127})["']?: *["']?)(?P<value>[^\s"',{}`]+)"""
_COMMENT = re.compile(r"(?:^|\s)#")
# In a longer text only the forms are looked for.
_LONGEST = 8192


def find_credentials(data: Any) -> dict[Path, str]:
    """Return the scalars of the document's data that are credentials or hold one, and what each looks like."""
    return dict(_walk((), data))


def is_of_secret(name: str) -> bool:
    """Return whether a variable of this name has a secret as its value."""
    return _is_secret(name, "0a" * 20)


def find_in_comment(line: str) -> tuple[int, int, str] | None:
    """Return the first and last column of the first text of an issuer's form in the line's comment, and what it looks like."""
    comment = _COMMENT.search(line)
    if comment is None:
        return None
    for part, kind, form in _FORMS:
        found = re.compile(rf"{form}[^\s\"'`]*").search(line, comment.start()) if part in line else None
        if found is not None:
            return found.start(), found.end(), kind
    return None


def starred(text: str, values: Iterable[str] = ()) -> str:
    """`text` with stars in place of these values, of what has a credential's form, and of what a line of YAML gives a secret's name."""
    for value in values:
        text = text.replace(value, STARS)
    for part, _, form in _FORMS:
        if part in text:
            text = re.sub(rf"{form}[^\s\"'`]*", STARS, text)
    return re.sub(_YAML, lambda found: found["key"] + STARS if _is_secret(found["name"], found["value"]) else found[0], text)


def _walk(path: Path, value: Any) -> Iterator[tuple[Path, str]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _walk((*path, key), item)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _walk((*path, index), item)
            if index and _is_option(value[index - 1]) and isinstance(item, str) and _is_secret(value[index - 1], item):
                yield (*path, index), f"the value of `{value[index - 1]}`"
    elif isinstance(value, str | int) and not isinstance(value, bool):
        kind = _form(str(value)) or _of_place(path, str(value)) or _assigned(str(value))
        if kind is not None:
            yield path, kind


def _form(text: str) -> str | None:
    return next((kind for part, kind, form in _FORMS if part in text and re.search(form, text)), None)


def _of_place(path: Path, text: str) -> str | None:
    """Return why what is at the path is a secret; a field of an entry of `secrets` names one."""
    if path[-1:] == ("webhook_env",) and "://" in text:
        return "the address of a webhook"
    if path[:1] == ("secrets",) and len(path) > 2:
        return None
    return _named(path[-1] if path else "", text)


def _named(name: str | int, text: str) -> str | None:
    return "by its name" if isinstance(name, str) and _is_secret(name, text) else None


def _assigned(text: str) -> str | None:
    """Return the first of the text's own options and variables that takes a secret."""
    if len(text) > _LONGEST or not any(ending in text.lower() for ending in _ENDINGS):
        return None
    given = ((found["name"] or found["option"], found["value"] or found["word"]) for found in re.finditer(_ASSIGNMENTS, text))
    return next((f"the value of `{name}`" for name, value in given if _is_secret(name, value)), None)


def _is_option(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(_OPTION, value) is not None


def _is_secret(name: str, value: str) -> bool:
    """Return whether the name is that of a secret, and the value is no placeholder."""
    if not name.lower().endswith(_ENDINGS) or not 0 < len(value) <= _LONGEST:
        return False
    if value.startswith("--") or re.fullmatch(_STAND_IN, value) or re.fullmatch(_PATH, value):
        return False
    words = [word.lower() for word in re.findall(_WORD, name)]
    before, last = words[-2] if len(words) > 1 else "", words[-1]
    if last.endswith(_ALWAYS):
        return True
    if value.isdigit() or value.lower() in _SWITCHES or (last == "key" and not before):
        return False
    if last in _PASSES or last.endswith("pwd"):
        return name.lstrip("-").lower() not in _FOLDERS and (
            last != "pass" or (before != "" and not re.fullmatch(_PASS_OF, before))
        )
    if last == "wandb":
        return re.fullmatch(_HEX_KEY, value) is not None
    if last in {"auth", "dockerconfigjson"}:
        return re.fullmatch(_BASE64, value) is not None
    if last == "key":
        return not re.fullmatch(_KEY_OF, before)
    # `--token=eos` names a token of the vocabulary.
    return last.endswith("token") and not re.fullmatch(_TOKEN_OF, before) and not re.fullmatch(_TOKEN_OF, value.lower())
