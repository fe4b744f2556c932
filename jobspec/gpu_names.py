"""Finds the GPU of the catalogue that another name is meant to be: of nvidia-smi, rocm-smi, Slurm's gres and Kubernetes' labels, and the
types of cloud instances (`catalog/aliases.yaml`)."""

import re

from headway.jobspec import aliases
from headway.jobspec.catalog.gpus import gpus
from headway.jobspec.suggest import Hint, did_you_mean, listed, nearest

_BRANDS = frozenset(("NVIDIA", "AMD", "HGX", "DGX", "INSTINCT", "TESLA", "GPU"))
# Boards on PCI Express, of which the catalogue has none.
_PCIE = frozenset(("PCIE", "NVL", "PCI"))


def meant_gpu(name: str) -> Hint:
    """Return the hint for a GPU that the catalogue does not have: the one of the same chip, if there is one."""
    if len(instance := aliases.values(name, gpus())) == 1:
        return Hint(f"did you mean `{instance[0]}`?", instance[0])
    name = re.sub(r"^[0-9]{1,2}x(?=[A-Za-z])", "", name, flags=re.IGNORECASE)
    words = [each for each in re.split(r"[-_. ]+", name.upper()) if each not in _BRANDS]
    chips = {each.upper().partition("-")[0] for each in gpus()}
    chip = next((each for each in words if each in chips), None)
    same = [each for each in gpus() if each.upper().partition("-")[0] == chip]
    is_pcie = bool(_PCIE & set(words)) and not any(each.startswith(("SXM", "HBM")) for each in words)
    if len(same) == 1 and not is_pcie:
        return Hint(f"did you mean `{same[0]}`?", same[0])
    # `A100-80GB-SXM` has the words of `A100-SXM-80`.
    parts = {each: _words(each) for each in same if not is_pcie}
    alike = [each for each, own in parts.items() if own <= _words(name)]
    # Else the memory size alone decides, if no other board has it.
    sizes = {each: {word for word in own if word.isdecimal()} for each, own in parts.items()}
    alike = alike or [each for each, size in sizes.items() if size and size <= _words(name)]
    if len(alike) == 1:
        return Hint(f"did you mean `{alike[0]}`?", alike[0])
    if same and (is_pcie or nearest(name, same) is None):
        return Hint(f"of this chip the catalogue has {listed(same)}")
    return did_you_mean(name, gpus(), "GPUs")


def _words(name: str) -> set[str]:
    """Return the parts of a GPU's name, as the catalogue writes them: `SXM5` is `SXM`, `80GB` is `80`."""
    return {re.sub(r"^(SXM)\d$", r"\1", re.sub(r"^(\d+)GI?B?$", r"\1", each)) for each in re.split(r"[-_. ]+", name.upper())}
