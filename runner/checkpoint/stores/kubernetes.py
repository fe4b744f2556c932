"""Implements the store in a Kubernetes namespace: a name is an immutable ConfigMap, which etcd creates once.

The ConfigMaps have no owner: a run's chain must outlive its JobSet, and the garbage collector deletes objects whose
owner is gone (kubernetes.io/docs/concepts/architecture/garbage-collection).
"""

import base64
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headway.runner.checkpoint.stores import StoreError

CHAIN_LABEL = "headway-chain"
_KEY = "record"
# Objects per page of a listing, as kubectl requests (kubernetes.io/docs/reference/using-api/api-concepts, chunks).
_PAGE = 500
# To connect, to answer.
_TIMEOUT_S = (5.0, 10.0)
# The limits of a label's value (63 characters) and an object's name
# (kubernetes.io/docs/concepts/overview/working-with-objects).
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")


class KubernetesStore:
    """Names are ConfigMaps `<chain>-<name>` of `namespace`, labelled `headway-chain: <chain>`.

    In a pod, requests use the pod's service account, which must be allowed to create, get and list ConfigMaps;
    elsewhere they use kubeconfig. Raises StoreError when a name does not fit, the client is not installed, or the
    client finds no cluster.
    """

    def __init__(self, namespace: str, chain: str) -> None:
        self._namespace, self._chain = namespace, chain
        for name in (namespace, chain):
            if not _NAME.fullmatch(name):
                raise StoreError(
                    f"{self}: `{name}` is not a valid name; expected at most 63 lower-case letters, digits, `-` and `.`"
                )
        try:
            # Only runs that keep their chain in Kubernetes need the client; it is untyped.
            from kubernetes import client, config  # type: ignore[import-untyped]  # noqa: PLC0415
        except ImportError:
            raise StoreError(
                f"{self} needs Kubernetes' client, which is not installed: pip install 'headway[kubernetes]'"
            ) from None
        self._client = client
        self._core = client.CoreV1Api(client.ApiClient(_configuration(client, config, str(self))))

    def __str__(self) -> str:
        return f"kubernetes://{self._namespace}/{self._chain}"

    def create(self, name: str, data: bytes) -> bool:
        labels = {CHAIN_LABEL: self._chain, "app.kubernetes.io/managed-by": "headway"}
        metadata = self._client.V1ObjectMeta(name=f"{self._chain}-{name}", labels=labels)
        content = {_KEY: base64.b64encode(data).decode()}
        made = self._client.V1ConfigMap(metadata=metadata, binary_data=content, immutable=True)
        with self._errors(name):
            try:
                self._core.create_namespaced_config_map(self._namespace, made, _request_timeout=_TIMEOUT_S)
            except self._client.ApiException as error:
                if error.status == 409 and "AlreadyExists" in str(error.body):
                    return False
                raise
        return True

    def read(self, name: str) -> bytes | None:
        with self._errors(name):
            try:
                found = self._core.read_namespaced_config_map(
                    f"{self._chain}-{name}", self._namespace, _request_timeout=_TIMEOUT_S
                )
            except self._client.ApiException as error:
                if error.status == 404:
                    return None
                raise
        return base64.b64decode((found.binary_data or {}).get(_KEY, ""))

    def names(self) -> list[str]:
        asked: dict[str, Any] = {"label_selector": f"{CHAIN_LABEL}={self._chain}", "limit": _PAGE, "_request_timeout": _TIMEOUT_S}
        names: list[str] = []
        more = ""
        with self._errors(""):
            while True:
                page = self._core.list_namespaced_config_map(self._namespace, _continue=more, **asked)
                names += [item.metadata.name.removeprefix(f"{self._chain}-") for item in page.items]
                if not (more := page.metadata._continue):
                    return names

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        import urllib3  # noqa: PLC0415  a dependency of the client, which lets urllib3's errors through

        try:
            yield
        except self._client.ApiException as error:
            raise OSError(f"{self}/{name}: {error.status} {error.reason}: {error.body}") from error
        except urllib3.exceptions.HTTPError as error:
            raise OSError(f"{self}/{name}: {error}") from error


def _configuration(client: Any, config: Any, store: str) -> Any:
    found = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=found)
    except config.ConfigException:
        try:
            # The client reads KUBECONFIG only when it is imported.
            config.load_kube_config(os.environ.get("KUBECONFIG"), client_configuration=found)
        except config.ConfigException as error:
            raise StoreError(f"{store}: neither a pod's service account nor a kubeconfig was found: {error}") from None
    return found
