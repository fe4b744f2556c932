"""Starts a separate Kubernetes control plane for a test: etcd, API server, controller manager, scheduler and the real JobSet controller.

    with ControlPlane() as plane:               # fixture `control_plane`, one per session; 8 s, then ready for JobSets
        plane.kubeconfig                        # Path: administrator, https://127.0.0.1:FREE-PORT; for kubectl, clients, `submit`
        plane.env                               # variables for such a client: KUBECONFIG, and PATH with this release's kubectl
        plane.kubectl("get", "nodes")           # -> str; KubectlError with its standard error
        plane.dry_run(manifest)                 # text -> the objects to be stored, list[dict]; unknown fields, webhooks, RBAC for real
        plane.apply(manifest)                   # server-side apply of text
        plane.objects("pods", "-n", "x")        # -> list[dict], as `kubectl get -o json` has them
        plane.namespace()                       # `with plane.namespace() as name:` a new one, and all in it deleted at the end
        plane.wait(what, read, accept, 30)      # polls; KubernetesError with pods and events after the time
        plane.wait_condition("jobset/x", "Completed", "True", 30, namespace)      # `kubectl wait` fails where there is none yet

The fixture `real_nodes` (node.py) adds two nodes that run pods. Without it pods stay Pending; everything else is the same.
Everything is in a network namespace, so only one loopback port of this machine is used, and no other port, address or device.
Another controller is another `Controller`: see JOBSET.
"""

import base64
import json
import os
import secrets
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import yaml

from tests.real.slurm.machine import leashed
from tests.real.slurm.scratch import Scratch

from .host import IDLE, Host
from .programs import SEARCH_PATH, control_plane_programs, manifests

T = TypeVar("T")
Object = dict[str, Any]

POLL_S = 0.1
START_S = 60.0
EVENTS_SHOWN = 20
RELAY = Path(__file__).with_name("relay.py")

# in the network namespace, hence free; a Service's addresses begin where kubeadm's do
SERVICES = "10.96.0.0/16"
API_SERVER = "10.96.0.1"
DNS = "10.96.0.10"
GATEWAY = "10.240.0.1"
WIRE = "wire"

NETWORK = f"""
set -e
hostname "$0"
ip link set lo up
ip address add {API_SERVER}/32 dev lo
ip address add {DNS}/32 dev lo
ip link add {WIRE} type bridge
ip address add {GATEWAY}/24 dev {WIRE}
ip link set {WIRE} up
echo 1 >/proc/sys/net/ipv4/ip_forward
"""


class KubernetesError(Exception):
    """The cluster did not reach an awaited state; the message ends with its pods and events."""


class KubectlError(KubernetesError):
    """kubectl failed; the message is its standard error."""


@dataclass(frozen=True)
class Controller:
    """A controller in addition to the control plane: program NAME-controller, manifests NAME-crds.yaml and NAME-webhooks.yaml.

    `sample`, created by dry run, is for `is_defaulted` once the API server calls the webhooks. Uses three ports from `port` on.
    """

    name: str
    port: int
    configuration: Mapping[str, object]
    sample: Mapping[str, object]
    is_defaulted: Callable[[Object], bool]


JOBSET = Controller(
    name="jobset",
    port=9443,
    configuration={"apiVersion": "config.jobset.x-k8s.io/v1alpha1", "internalCertManagement": {"enable": False}},
    sample={
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "sample"},
        "spec": {
            "replicatedJobs": [
                {"name": "a", "template": {"spec": {"template": {"spec": {"containers": [{"name": "a", "image": "a"}]}}}}}
            ]
        },
    },
    is_defaulted=lambda jobset: jobset["spec"]["replicatedJobs"][0]["template"]["spec"].get("completionMode") == "Indexed",
)


class ControlPlane:
    """`with ControlPlane() as plane:` gives a ready API server; afterwards no process, mount or file remains."""

    def __init__(self, controllers: Sequence[Controller] = (JOBSET,)) -> None:
        self.programs = control_plane_programs()
        self.token = secrets.token_hex(16)
        self._controllers = controllers
        self._started = ExitStack()
        self._scratch: Scratch | None = None
        self._host: Host | None = None
        self._namespaces = 0

    # --- start and stop -----------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._scratch = Scratch("headway-kubernetes-")
            stack.callback(self._scratch.remove)
            for folder in ("log", "pki", "conf"):
                (self.root / folder).mkdir()
            self._host = Host("control-plane", NETWORK + IDLE, [], self.root / "log")
            stack.callback(self.host.kill)
            self.host.boot()
            self._write_credentials()
            self._write_kubeconfig(self.kubeconfig, f"https://127.0.0.1:{self._start_relay(stack)}")
            self._write_kubeconfig(self.inner_kubeconfig, f"https://{API_SERVER}")
            self._start_core()
            for controller in self._controllers:
                self._start_controller(controller)
            self.wait("default ServiceAccount", lambda: self._succeeds("get", "serviceaccount", "default"), bool, START_S)
            self._started = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._started.close()

    def _write_credentials(self) -> None:
        """One key serves every daemon, and signs the service accounts' tokens."""
        names = f"subjectAltName=IP:127.0.0.1,IP:{API_SERVER},DNS:localhost"
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", str(self._key)]
        about = ["-out", str(self.certificate), "-days", "30", "-subj", "/CN=headway-tests", "-addext", names]
        subprocess.run(leashed(["openssl", "req", "-x509", *key, *about]), check=True, capture_output=True)
        (self.root / "pki/tokens.csv").touch(mode=0o600)
        (self.root / "pki/tokens.csv").write_text(f"{self.token},admin,admin,system:masters\n")

    def _write_kubeconfig(self, path: Path, server: str) -> None:
        certificate = base64.b64encode(self.certificate.read_bytes()).decode()
        cluster = {"server": server, "certificate-authority-data": certificate}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": self.token}}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "admin"}}],
            "current-context": "tests",
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(document))

    def _start_relay(self, stack: ExitStack) -> int:
        """This machine's loopback port that leads to the API server."""
        with socket.create_server(("127.0.0.1", 0)) as listening, (self.root / "log/relay.log").open("wb") as log:
            relay = [sys.executable, str(RELAY), str(listening.fileno()), API_SERVER, "443"]
            process = subprocess.Popen(
                leashed([*self.host.network(), *relay]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[listening.fileno()],
                start_new_session=True,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            port: int = listening.getsockname()[1]
        return port

    def _start_core(self) -> None:
        etcd = "http://127.0.0.1:2379"
        urls = {"listen-client-urls": etcd, "advertise-client-urls": etcd, "listen-peer-urls": "http://127.0.0.1:2380"}
        self._start("etcd", {"data-dir": self.root / "etcd", "unsafe-no-fsync": "true", **urls})
        self.host.wait_http("etcd", 2379, "/health", START_S)
        self._start("kube-apiserver", self._apiserver_flags(etcd))
        self.host.wait_daemon("kube-apiserver", lambda: self._succeeds("get", "--raw=/readyz"), START_S)
        client: dict[str, object] = {"kubeconfig": self.inner_kubeconfig, "leader-elect": "false", "bind-address": "127.0.0.1"}
        signing = {"service-account-private-key-file": self._key, "root-ca-file": self.certificate}
        # a lost node is noticed after 8 s, not after 50
        patience = {"node-monitor-grace-period": "8s", "node-monitor-period": "1s"}
        speed = {"kube-api-qps": "500", "kube-api-burst": "500"}
        self._start("kube-controller-manager", client | signing | patience | speed | {"use-service-account-credentials": "true"})
        self._start("kube-scheduler", client | speed)

    def _apiserver_flags(self, etcd: str) -> dict[str, object]:
        # without a default route it finds no address to advertise
        serving: dict[str, object] = {"bind-address": "0.0.0.0", "advertise-address": GATEWAY, "secure-port": 443}
        serving |= {"tls-cert-file": self.certificate, "tls-private-key-file": self._key}
        tokens: dict[str, object] = {"service-account-key-file": self.certificate, "service-account-signing-key-file": self._key}
        tokens |= {"service-account-issuer": "https://kubernetes.default.svc", "token-auth-file": self.root / "pki/tokens.csv"}
        return {
            "etcd-servers": etcd,
            **serving,
            **tokens,
            "authorization-mode": "RBAC",
            "kubelet-preferred-address-types": "InternalIP",
            "service-cluster-ip-range": SERVICES,
            "allow-privileged": "true",
        }

    def _start(self, name: str, flags: Mapping[str, object]) -> None:
        self.host.start(name, [str(self.programs[name]), *(f"--{flag}={value}" for flag, value in flags.items())])

    def _succeeds(self, *arguments: str) -> bool:
        try:
            self.kubectl(*arguments)
        except KubectlError:
            return False
        return True

    def _start_controller(self, controller: Controller) -> None:
        name = f"{controller.name}-controller"
        folder = manifests()
        self.kubectl("apply", "--server-side", "-f", str(folder / f"{controller.name}-crds.yaml"))
        self.kubectl("create", "namespace", f"{controller.name}-system")
        # kubectl ends at once where there are no conditions yet
        self.wait(
            "CustomResourceDefinitions",
            lambda: self._succeeds("wait", "--for=condition=Established", "crd", "--all"),
            bool,
            START_S,
        )
        configuration = self.root / "conf" / f"{controller.name}.yaml"
        configuration.write_text(json.dumps(self._configuration(controller)))
        argv = [str(self.programs[name]), f"--config={configuration}"]
        self.host.start(name, argv, {"POD_NAMESPACE": f"{controller.name}-system", "KUBECONFIG": str(self.inner_kubeconfig)})
        self.host.wait_http(name, controller.port + 2, "/readyz", START_S)
        self.apply(self._webhooks(controller, (folder / f"{controller.name}-webhooks.yaml").read_text()))
        self.wait(f"webhooks of `{name}`", lambda: self._sample(controller), lambda found: found == "defaulted", START_S)

    def _configuration(self, controller: Controller) -> Object:
        return {
            "kind": "Configuration",
            "webhook": {"port": controller.port, "certDir": str(self.root / "pki")},
            "metrics": {"bindAddress": f"127.0.0.1:{controller.port + 1}"},
            "health": {"healthProbeBindAddress": f"127.0.0.1:{controller.port + 2}"},
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"qps": 500, "burst": 500},
            **controller.configuration,
        }

    def _webhooks(self, controller: Controller, text: str) -> str:
        """The manifests for a controller that is not a pod: the API server finds it by URL, not by Service."""
        authority = base64.b64encode(self.certificate.read_bytes()).decode()
        documents = [document for document in yaml.safe_load_all(text) if document]
        for document in documents:
            document["metadata"]["name"] = f"{controller.name}-{document['metadata']['name']}"
            for hook in document["webhooks"]:
                url = f"https://127.0.0.1:{controller.port}{hook['clientConfig']['service']['path']}"
                hook["clientConfig"] = {"url": url, "caBundle": authority}
        return yaml.safe_dump_all(documents)

    def _sample(self, controller: Controller) -> str:
        # a controller answers on its port before it has its webhooks' paths, and the API server learns of webhooks late
        try:
            (stored,) = self.dry_run(json.dumps(controller.sample))
        except KubectlError as error:
            return str(error)
        return "defaulted" if controller.is_defaulted(stored) else "not defaulted"

    # --- clients ------------------------------------------------------------------------------------------------------

    @property
    def root(self) -> Path:
        """The folder of everything the cluster writes; raises RuntimeError before the start."""
        if self._scratch is None:
            raise RuntimeError("the control plane is not started; enter it with `with`")
        return self._scratch.path

    @property
    def host(self) -> Host:
        """Where the daemons run; raises RuntimeError before the start."""
        if self._host is None:
            raise RuntimeError("the control plane is not started; enter it with `with`")
        return self._host

    @property
    def kubeconfig(self) -> Path:
        """For clients on this machine."""
        return self.root / "conf/kubeconfig"

    @property
    def inner_kubeconfig(self) -> Path:
        """For clients in the cluster's network."""
        return self.root / "conf/inner-kubeconfig"

    @property
    def certificate(self) -> Path:
        return self.root / "pki/tls.crt"

    @property
    def _key(self) -> Path:
        return self.root / "pki/tls.key"

    @property
    def env(self) -> dict[str, str]:
        """This process's environment for a client of the cluster, which keeps its caches with the cluster's files."""
        path = f"{self.programs['kubectl'].parent}{os.pathsep}{SEARCH_PATH}"
        cache = str(self.root / "kubectl-cache")
        return {**os.environ, "PATH": path, "KUBECONFIG": str(self.kubeconfig), "KUBECACHEDIR": cache}

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout_s: float = 60.0) -> str:
        """The output of `kubectl ARGUMENTS`; raises KubectlError if it fails, TimeoutExpired after `timeout_s`."""
        done = subprocess.run(
            leashed([str(self.programs["kubectl"]), *arguments]),
            check=False,
            env=self.env,
            input=stdin or "",
            timeout=timeout_s,
            text=True,
            capture_output=True,
        )
        if done.returncode != 0:
            raise KubectlError(f"kubectl {shlex.join(arguments)}:\n{done.stderr}{done.stdout}")
        return done.stdout

    def apply(self, manifest: str, *options: str) -> None:
        """Server-side apply, which refuses unknown fields and names them."""
        self.kubectl("apply", "--server-side", *options, "--filename=-", stdin=manifest)

    def dry_run(self, manifest: str, *options: str) -> list[Object]:
        """The objects that the API server would store: schema, defaults, admission and webhooks are real; nothing is kept.

        Raises KubectlError for an unknown field, as for everything else that the API server refuses.
        """
        strict = ("--dry-run=server", "--validate=strict", "--output=json")
        return _items(self.kubectl("create", *strict, *options, "--filename=-", stdin=manifest))

    def objects(self, *arguments: str) -> list[Object]:
        """`kubectl get ARGUMENTS`, one record per object."""
        return _items(self.kubectl("get", *arguments, "--output=json"))

    @contextmanager
    def namespace(self) -> Iterator[str]:
        """A new namespace's name, once its default ServiceAccount exists; at the end everything in it is deleted."""
        self._namespaces += 1
        name = f"test-{self._namespaces}"
        self.kubectl("create", "namespace", name)
        try:
            self.wait(f"ServiceAccount of `{name}`", lambda: self.objects("serviceaccounts", "-n", name), bool, START_S)
            yield name
        finally:
            self.kubectl("delete", "namespace", name, "--wait=false")

    def wait(self, what: str, read: Callable[[], T], accept: Callable[[T], bool], timeout_s: float) -> T:
        """The first value that `accept` approves; raises KubernetesError after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while not accept(value := read()):
            if time.monotonic() > deadline:
                raise KubernetesError(f"waited {timeout_s:g} s for {what}, found {value!r}\n{self.situation()}")
            time.sleep(POLL_S)
        return value

    def wait_condition(self, name: str, condition: str, status: str, timeout_s: float, namespace: str = "default") -> None:
        """Wait until the object (`node/n1`) has the condition with that status (`True`, `False`, `Unknown`)."""

        def conditions() -> dict[str, str]:
            (found,) = self.objects(name, f"--namespace={namespace}")
            return {line["type"]: line["status"] for line in found.get("status", {}).get("conditions", [])}

        self.wait(f"`{condition}` of `{name}`", conditions, lambda found: found.get(condition) == status, timeout_s)

    def situation(self) -> str:
        """The nodes, the pods and the last events, for diagnosis."""
        tables = [self.kubectl("get", kind, "-A", "-o", "wide") for kind in ("nodes", "pods")]
        events = self.kubectl("get", "events", "-A", "--sort-by=.metadata.creationTimestamp").splitlines()
        return "\n".join([*tables, *events[-EVENTS_SHOWN:]])


def _items(text: str) -> list[Object]:
    """One object, a List of them, or several in succession, as kubectl's verbs print them."""
    decoder, at = json.JSONDecoder(), 0
    found: list[Object] = []
    while at < len(text):
        value, at = decoder.raw_decode(text, at)
        found += value["items"] if value["kind"] == "List" else [value]
        at += len(text[at:]) - len(text[at:].lstrip())
    return found
