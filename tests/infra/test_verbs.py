"""`up`, `preview` and `down` report these errors before they reach any host."""

import os
from pathlib import Path

import pytest

from headway.cli.main import main

CLUSTER = """
apiVersion: headway/v1alpha1
kind: Cluster
name: lab
scheduler: {{kind: slurm}}
{provider}
node_groups:
  - {{name: n, count: 2, cpus: 8, gpu: H100-SXM-80, gpus: 1, nics: [mlx5_0], hosts: [127.0.0.1, 127.0.0.2]}}
fabrics:
  - name: rails
    role: scale-out
    transport: roce
    classes: [{{name: roce, carries: collectives, dscp: 26, priority: 3, lossless: true}}]
storage:
  - {{name: runs, kind: posix, path: runs, shared: true}}
"""
ONPREM = "provider: {kind: onprem}"
VERBS = (("preview",), ("up", "--yes"), ("down", "--yes"))


def outcome(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    provider: str = ONPREM,
) -> tuple[int, str]:
    """Return the exit code and standard error; standard output must be empty."""
    file = tmp_path / "cluster.yaml"
    file.write_text(CLUSTER.format(provider=provider))
    code = main([words[0], str(file), *words[1:]])
    shown = capsys.readouterr()
    assert shown.out == ""
    return code, shown.err


@pytest.mark.parametrize("words", VERBS, ids=lambda words: words[0])
def test_missing_engine_is_reported_with_its_source(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    code, message = outcome(tmp_path, capsys, words)
    assert code == 3
    assert message.startswith("error: Pulumi's engine, the program `pulumi`, is not on PATH; see https://")
    assert not (tmp_path / ".headway").exists()


@pytest.mark.parametrize("words", VERBS, ids=lambda words: words[0])
def test_cluster_without_a_provider_is_rejected(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outcome(tmp_path, capsys, words, provider="") == (
        1,
        "error: `lab` has no `provider`, so its hosts cannot be reached\n",
    )


@pytest.mark.parametrize(
    "options", ["{users: root}", "{user: Root}", "{identity: 3}", "{known_hosts: ''}"], ids=["key", "user", "type", "empty"]
)
def test_mistakes_in_the_options_are_shown_at_their_position(
    options: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, message = outcome(tmp_path, capsys, ("preview",), provider=f"provider: {{kind: onprem, options: {options}}}")
    assert code == 1
    assert "cluster.yaml:6:" in message
