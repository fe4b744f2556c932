"""Tests a chain in a namespace of a real API server: the contract of every store, and the additions of Kubernetes."""

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.runner.checkpoint.chain import Chain
from headway.runner.checkpoint.stores import Store, StoreError, open_store
from tests.support.store_contract import StoreContract

from .control_plane import ControlPlane, KubectlError

pytest.importorskip("kubernetes", reason="run `pip install 'headway[kubernetes]'`")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared(control_plane: ControlPlane) -> Iterator[str]:
    """A new namespace."""
    with control_plane.namespace() as name:
        yield name


@pytest.fixture
def namespace(shared: str, control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The namespace without any record, and an environment in which clients find it."""
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield shared
    control_plane.kubectl("delete", "configmaps", "--selector=headway-chain", "-n", shared)


class TestKubernetesStore(StoreContract):
    @pytest.fixture
    def store(self, namespace: str) -> Store:
        return open_store(f"kubernetes://{namespace}/run-1")


def test_a_record_is_an_immutable_config_map_without_an_owner(namespace: str, control_plane: ControlPlane) -> None:
    Chain(open_store(f"kubernetes://{namespace}/run-1"), "run-1").claim(None, 0, "coordinator")
    (found,) = control_plane.objects("configmaps", "-n", namespace, "-l", "headway-chain=run-1")
    assert found["metadata"]["name"] == "run-1-000000001.json"
    assert (found["immutable"], found["metadata"].get("ownerReferences")) == (True, None)
    patch = json.dumps({"binaryData": {"record": ""}})
    with pytest.raises(KubectlError, match="immutable"):
        control_plane.kubectl("patch", "configmap", "run-1-000000001.json", "-n", namespace, "-p", patch)


def test_two_runs_in_one_namespace_are_isolated(namespace: str) -> None:
    one, other = open_store(f"kubernetes://{namespace}/run"), open_store(f"kubernetes://{namespace}/run-1")
    assert (one.create("x", b"1"), other.create("x", b"2")) == (True, True)
    assert (one.names(), other.names(), one.read("x"), other.read("x")) == (["x"], ["x"], b"1", b"2")


def test_names_beyond_one_page_are_all_listed(namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.runner.checkpoint.stores.kubernetes._PAGE", 3)
    store = open_store(f"kubernetes://{namespace}/run-1")
    for number in range(10):
        store.create(f"{number}", b"")
    assert sorted(store.names()) == [str(number) for number in range(10)]


def test_writing_to_a_missing_namespace_raises_os_error(control_plane: ControlPlane, namespace: str) -> None:
    with pytest.raises(OSError, match="kubernetes://absent/run-1/x: 404 Not Found"):
        open_store("kubernetes://absent/run-1").create("x", b"")


def test_an_unavailable_server_raises_os_error(
    namespace: str, control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Bound and not listening: every connection is refused.
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        away = re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{taken.getsockname()[1]}", control_plane.kubeconfig.read_text())
        (tmp_path / "kubeconfig").write_text(away)
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        store = open_store(f"kubernetes://{namespace}/run-1")
        for ask in (lambda: store.create("x", b""), lambda: store.read("x"), store.names):
            with pytest.raises(OSError, match=f"kubernetes://{namespace}/run-1/"):
                ask()


@pytest.mark.parametrize(
    ("url", "name"), [("kubernetes://ns", ""), ("kubernetes://NS/run", "NS"), ("kubernetes://ns/" + "a" * 64, "a" * 64)]
)
def test_a_name_that_kubernetes_rejects_is_refused(url: str, name: str) -> None:
    with pytest.raises(StoreError, match=f"`{name}` is not a valid name; expected at most 63"):
        open_store(url)
