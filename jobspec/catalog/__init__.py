"""Published facts by name: GPUs, adapters, switches, models, software versions.

In: the YAML tables in this folder, each row with its source; a Hugging Face config.json.
Out: frozen records such as `Gpu`, `Nic`, `Switch`, `Preset` and `Compatibility`.
Start reading: `gpus.yaml` and `gpus.py`; to add hardware or a model, see CONTRIBUTING.md ("Add a GPU, or change an estimate").
"""
