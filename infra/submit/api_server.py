"""Sends requests to a Kubernetes API server, as the user of a kubeconfig or of a pod's service account."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from headway.infra.submit.shell import CommandError

Object = dict[str, Any]

# To connect, to answer.
_TIMEOUT_S = (5.0, 30.0)
_JSON = "application/json"
# Metadata without content, and the columns that kubectl prints (kubernetes.io/docs/reference/using-api/api-concepts): the pods of a large
# job repeat its files in each of their annotations.
_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1"


class ApiRefusalError(CommandError):
    """The API server has answered that it does not do this. `status` is HTTP's, `reason` Kubernetes' word for it, such as AlreadyExists."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


class NoApiServerError(Exception):
    """There is no client, or no kubeconfig that names the API server."""


class ListedRow(Struct, frozen=True):
    """An object of a list: its metadata, empty if they were not asked for, and kubectl's columns by their names in lower case."""

    metadata: Object
    columns: Mapping[str, str]


class ApiServer:
    """The API server of a context of the user's kubeconfig; without `context` the current one, and in a pod without kubeconfig the pod's
    own. Raises NoApiServerError.

    Each request raises ApiRefusalError, and CommandError without an answer.
    """

    def __init__(self, context: str | None, namespace: str) -> None:
        try:
            # Only clusters of Kubernetes need the client; it is untyped.
            from kubernetes import client, config  # type: ignore[import-untyped]  # noqa: PLC0415
        except ImportError:
            raise NoApiServerError("Kubernetes needs its client; install headway with its extra `kubernetes`") from None
        self._client, self.namespace = client, namespace
        found = client.Configuration()
        try:
            # The client reads KUBECONFIG only when it is imported.
            config.load_kube_config(os.environ.get("KUBECONFIG"), context=context, client_configuration=found)
        except config.ConfigException as error:
            try:
                if context is not None:
                    raise
                config.load_incluster_config(client_configuration=found)
            except config.ConfigException:
                raise NoApiServerError(f"no kubeconfig for the context `{context or 'that is current'}`: {error}") from None
        self.address: str = found.host
        self._api = client.ApiClient(found)
        self._options = [f"--namespace={namespace}", *([] if context is None else [f"--context={context}"])]

    def kubectl(self, *words: str) -> str:
        """Return the command of kubectl with the same effect, for people."""
        return " ".join(["kubectl", *self._options, *words])

    def core(self, *path: str) -> str:
        """Return the path of objects of the core API in the namespace."""
        return "/".join(["/api/v1/namespaces", self.namespace, *path])

    def group(self, group: str, *path: str) -> str:
        """Return the path of objects of an API group with its version, such as `batch/v1`, in the namespace."""
        return "/".join(["/apis", group, "namespaces", self.namespace, *path])

    def get(self, path: str) -> Object | None:
        """Return an object; None if there is none."""
        try:
            return self._ask("GET", path)
        except ApiRefusalError as error:
            if error.status == 404 and error.reason == "NotFound":
                return None
            raise

    def create(self, path: str, body: Object, dry_run: bool = False) -> Object:
        """Create an object, whose unknown fields are refused."""
        query = [("fieldValidation", "Strict"), ("fieldManager", "headway"), *([("dryRun", "All")] if dry_run else [])]
        return self._ask("POST", path, query, body)

    def replace(self, path: str, body: Object) -> Object:
        """Replace an object, if it still has the `resourceVersion` of `body`."""
        return self._ask("PUT", path, [("fieldManager", "headway")], body)

    def patch(self, path: str, body: Object) -> Object:
        """Merge `body` into an object; null removes a field."""
        return self._ask("PATCH", path, [("fieldManager", "headway")], body, content="application/merge-patch+json")

    def delete(self, path: str, uid: str) -> None:
        """Delete an object of this uid; it stays until all that it owns has ended."""
        self._ask("DELETE", path, body={"propagationPolicy": "Foreground", "preconditions": {"uid": uid}})

    def metadata(self, path: str, selector: str) -> list[Object]:
        """Return the metadata of objects."""
        items: list[Object] = self._ask("GET", path, [("labelSelector", selector)], accept=_METADATA)["items"] or []
        return [item["metadata"] for item in items]

    def rows(self, path: str, query: Mapping[str, str], with_metadata: bool) -> list[ListedRow]:
        """Return objects as kubectl lists them."""
        include = "Metadata" if with_metadata else "None"
        table = self._ask("GET", path, [*query.items(), ("includeObject", include)], accept=_TABLE)
        names = [column["name"].lower() for column in table["columnDefinitions"]]
        return [
            ListedRow(
                (row.get("object") or {}).get("metadata", {}),
                {name: "" if cell is None else str(cell) for name, cell in zip(names, row["cells"], strict=True)},
            )
            for row in table.get("rows") or ()
        ]

    def text(self, path: str, query: Sequence[tuple[str, str]]) -> Iterator[bytes]:
        """Yield pieces of a text as they come, for example of a log; without `follow` in the query it ends soon."""
        import urllib3  # noqa: PLC0415 (a dependency of the client)

        response = self._send("GET", path, query, timeout_s=(_TIMEOUT_S[0], None))
        try:
            yield from response.stream()
        except urllib3.exceptions.HTTPError as error:
            raise CommandError(f"{self.address}: {error}") from error
        finally:
            response.release_conn()

    def _ask(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]] = (),
        body: Object | None = None,
        accept: str = _JSON,
        content: str = _JSON,
    ) -> Object:
        response = self._send(method, path, query, body, accept, content)
        try:
            found: Object = json.loads(response.data)
        except ValueError as error:
            raise CommandError(f"{self.address}{path}: not an answer of an API server: {error}") from error
        return found

    def _send(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]],
        body: Object | None = None,
        accept: str = _JSON,
        content: str = _JSON,
        timeout_s: tuple[float, float | None] = _TIMEOUT_S,
    ) -> Any:
        import urllib3  # noqa: PLC0415 (a dependency of the client, which lets urllib3's errors through)

        try:
            return self._api.call_api(
                path,
                method,
                query_params=list(query),
                header_params={"Accept": accept, "Content-Type": content},
                body=body,
                auth_settings=["BearerToken"],
                _return_http_data_only=True,
                _preload_content=False,
                _request_timeout=timeout_s,
            )
        except self._client.ApiException as error:
            raise _refusal(error.status, error.reason, error.body, self.address) from error
        except urllib3.exceptions.HTTPError as error:
            raise CommandError(f"{self.address} does not answer: {_cause(error)}") from error


def _refusal(status: int, reason: str, body: Any, address: str) -> CommandError:
    try:
        said = json.loads(body)
        message, word = said["message"], said.get("reason") or ""
    except (TypeError, ValueError, KeyError):
        message, word = f"{address}: {status} {reason}", ""
    if status >= 500 or status in (408, 429):
        return CommandError(f"{address}: {message}")
    return ApiRefusalError(status, word, message)


def _cause(error: BaseException) -> str:
    # urllib3 puts the cause behind the number of its tries.
    return str(getattr(error, "reason", None) or error)
