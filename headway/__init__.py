"""Import name of every package: `jobspec`, `templates`, `infra` and `runner` are symbolic links to
the folders of those names at the top level of the repository.

Start reading: `cli/main.py` for the command, `checkpoint.py` for the library, docs/architecture.md
for the map.
"""
