"""The node contract: what a Kubernetes node owes, held against a cluster (`make live BACKEND=kind`, or embedded).

The cases that are a manifest and what the API shows of it are in node_contract/; those that need a conversation, such
as a port-forward, are here.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pty
import re
import select
import socket
import struct
import subprocess
import termios
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from helpers.wait import wait_until
from tests.live.contract import LIMIT_S, Case, Cluster, Place, all_cases, place, run_case

pytestmark = [pytest.mark.live, pytest.mark.any_backend]

AT_ONCE = 4  # cases, on two cores
CASES = {case.name: case for case in all_cases()}
READY = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}


# ---- cases in YAML ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def outcomes(kubernetes: Cluster, request: pytest.FixtureRequest) -> Iterator[dict[str, Future]]:
    """The cases of this run, begun, some at a time; those that want to be alone run in their own tests."""
    parameters = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    chosen = [parameter["case"] for parameter in parameters if parameter.get("case") in CASES]
    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        yield {
            case.name: pool.submit(run_case, kubernetes, case)
            for case in (CASES[name] for name in chosen)
            if not case.alone and case.needs <= kubernetes.can
        }
    finally:
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("case", sorted(CASES, key=lambda name: (CASES[name].alone, name)))
def test_case(kubernetes: Cluster, outcomes: dict[str, Future], case: str):
    wanted: Case = CASES[case]
    lacks = wanted.needs - kubernetes.can
    if lacks:
        pytest.skip(f"this cluster lacks {', '.join(sorted(lacks))}")
    if wanted.alone:
        run_case(kubernetes, wanted)
    else:
        outcomes[case].result()


# ---- cases that are conversations ------------------------------------------------------------------------------------


def start(here: Place, command: list[str], image: str = "busybox:1.36", **container: object) -> None:
    """Run Pod `a` and wait until it is ready."""
    container |= {"name": "main", "image": image, "command": command}
    spec = {"terminationGracePeriodSeconds": 1, "containers": [container]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec}
    here.cluster.must("-n", here.namespace, "create", "-f", "-", stdin=json.dumps(pod))
    here.see("pod/a", READY)


@pytest.fixture
def here(kubernetes: Cluster, request: pytest.FixtureRequest) -> Iterator[Place]:
    with place(kubernetes, request.node.name.removeprefix("test_").replace("_", "-")[:40]) as found:
        yield found


def kubectl(here: Place, *arguments: str, **options: object) -> subprocess.Popen:
    """A kubectl that goes on; the caller ends it."""
    return subprocess.Popen(here.cluster.argv("-n", here.namespace, *arguments), **options)


def test_exec_carries_20_megabytes_each_way(here: Place):
    """https://kubernetes.io/docs/reference/kubectl/generated/kubectl_exec/"""
    start(here, ["sleep", "3600"])
    much = os.urandom(20 * 1000 * 1000)
    done = here.kubectl("exec", "-i", "a", "--", "sh", "-c", "cat; cat /proc/self/comm >&2; exit 9", stdin=much)
    assert (done.returncode, len(done.stdout)) == (9, len(much)), done.stderr
    assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(much).digest()
    assert done.stderr.startswith(b"cat\n")


def test_cp_there_and_back(here: Place, tmp_path: Path):
    """https://kubernetes.io/docs/reference/kubectl/generated/kubectl_cp/"""
    start(here, ["sleep", "3600"])
    sent, fetched = tmp_path / "sent", tmp_path / "fetched"
    (sent / "below").mkdir(parents=True)
    (sent / "below" / "some").write_bytes(os.urandom(1_000_000))
    (sent / "name with spaces").write_text("text")
    # our own user is not among those of a user namespace with one user, so no file in there can be made theirs
    owner = [] if "uids" in here.cluster.can else ["--no-preserve"]
    done = here.kubectl("cp", *owner, str(sent), "a:/tmp/there")
    assert done.returncode == 0, done.stderr
    assert here.kubectl("cp", "a:/tmp/there", str(fetched)).returncode == 0
    for path in ("below/some", "name with spaces"):
        assert (fetched / path).read_bytes() == (sent / path).read_bytes()


def test_exec_with_a_terminal(here: Place):
    """https://kubernetes.io/docs/tasks/debug/debug-application/get-shell-running-container/"""
    start(here, ["sleep", "3600"])
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 101, 0, 0))
    process = kubectl(here, "exec", "-it", "a", "--", "sh", stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        # the size comes on a stream of its own, which the shell may be ahead of
        os.write(ours, b"until stty size | grep '33 1''01'; do sleep 0.2; done\n")
        read_until(ours, rb"33 101\r\n")
        os.write(ours, b"test -t 0 && echo a-$((1+1))-terminal; exit 5\n")
        read_until(ours, rb"a-2-terminal")
        assert process.wait(LIMIT_S) == 5
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def read_until(descriptor: int, pattern: bytes) -> bytes:
    said, end = b"", time.monotonic() + LIMIT_S
    while not re.search(pattern, said):
        ready, _, _ = select.select([descriptor], [], [], max(0.0, end - time.monotonic()))
        assert ready, f"no {pattern!r} in {said!r}"
        try:
            more = os.read(descriptor, 65536)
        except OSError:  # a terminal whose other end was closed
            more = b""
        assert more, f"no {pattern!r} in {said!r}"
        said += more
    return said


def test_attach_reaches_the_first_process(here: Place):
    """https://kubernetes.io/docs/reference/kubectl/generated/kubectl_attach/"""
    start(here, ["sh", "-c", "while read line; do echo got $line; done; echo no more; exec sleep 3600"], stdin=True)
    process = kubectl(here, "attach", "-i", "a", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        process.stdin.write(b"one\n")
        process.stdin.flush()
        read_until(process.stdout.fileno(), b"got one\n")
        process.stdin.write(b"two\n")
        process.stdin.flush()
        read_until(process.stdout.fileno(), b"got two\n")
    finally:
        process.kill()
        process.communicate()
    # the container goes on, and its log has what was attached to
    here.see("pod/a", {"status": {"containerStatuses": [{"restartCount": 0, "ready": True}]}})
    assert here.kubectl("logs", "a").stdout.startswith("got one\ngot two\n")


def test_port_forward(here: Place):
    """https://kubernetes.io/docs/tasks/access-application-cluster/port-forward-access-application-cluster/"""
    # it listens on the Pod's loopback only, so the forward must come out inside the Pod
    start(here, ["python", "-m", "http.server", "8080", "--bind", "127.0.0.1"], image="python:3.11-slim")
    process = kubectl(here, "port-forward", "pod/a", ":8080", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        said = read_until(process.stdout.fileno(), rb"127\.0\.0\.1:(\d+) -> 8080")
        port = int(re.search(rb"127\.0\.0\.1:(\d+)", said).group(1))

        def answers() -> bool:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as answer:
                    return answer.status == 200
            except OSError as error:  # the server may not listen yet; kubectl then ends the one connection
                raise AssertionError(str(error)) from error

        wait_until(answers, LIMIT_S, what="the forwarded port")
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(b"GET /etc/hostname HTTP/1.0\r\n\r\n")
            assert connection.makefile("rb").read().strip().endswith(b"a")
    finally:
        process.kill()
        process.communicate()


def test_logs_follow_to_the_end(here: Place):
    """https://kubernetes.io/docs/reference/kubectl/generated/kubectl_logs/"""
    start(here, ["sh", "-c", "echo begun; while ! test -e /tmp/go; do sleep 0.1; done; echo on; exec sleep 3600"])
    process = kubectl(here, "logs", "-f", "a", stdout=subprocess.PIPE)
    try:
        read_until(process.stdout.fileno(), b"begun\n")
        assert here.kubectl("exec", "a", "--", "touch", "/tmp/go").returncode == 0
        read_until(process.stdout.fileno(), b"on\n")
        assert here.kubectl("delete", "pod", "a").returncode == 0
        process.wait(LIMIT_S)  # the log has an end
    finally:
        process.kill()
        process.communicate()


def test_kubernetes_nodes_report(kubernetes: Cluster):
    """https://kubernetes.io/docs/reference/node/node-status/ and https://kubernetes.io/docs/concepts/architecture/leases/"""
    nodes = kubernetes.get("api/v1/nodes")["items"]
    assert nodes
    for node in nodes:
        name = node["metadata"]["name"]
        conditions = {c["type"]: (c["status"], c["reason"]) for c in node["status"]["conditions"]}
        assert conditions["Ready"] == ("True", "KubeletReady")
        assert all(conditions[f"{what}Pressure"][0] == "False" for what in ("Memory", "Disk", "PID"))
        assert {"InternalIP", "Hostname"} <= {address["type"] for address in node["status"]["addresses"]}
        assert {"cpu", "memory", "pods", "ephemeral-storage"} <= set(node["status"]["allocatable"])
        assert node["metadata"]["labels"]["kubernetes.io/hostname"] == name
        assert node["status"]["nodeInfo"]["kubeletVersion"].startswith("v1.")
        lease = f"apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{name}"
        before = kubernetes.get(lease)["spec"]["renewTime"]

        def renewed(lease: str = lease, before: str = before) -> bool:
            return kubernetes.get(lease)["spec"]["renewTime"] > before

        wait_until(renewed, LIMIT_S, what=f"a renewed lease of {name}")


def test_drain(kubernetes: Cluster, here: Place):
    """https://kubernetes.io/docs/tasks/administer-cluster/safely-drain-node/"""
    if "node_drain" not in kubernetes.can:
        pytest.skip("this cluster lacks node_drain")
    deployment = here.kubectl(
        "create", "deployment", "a", "--image=busybox:1.36", "--replicas=2", "--", "sleep", "3600"
    )
    assert deployment.returncode == 0, deployment.stderr
    here.see("deployment/a", {"status": {"readyReplicas": 2}})
    pods = kubernetes.get(here.url("pod"))["items"]
    node = pods[0]["spec"]["nodeName"]
    try:
        done = kubernetes.ask(
            "drain", node, "--pod-selector=app=a", "--force", "--ignore-daemonsets", "--grace-period=1"
        )
        assert done.returncode == 0, done.stderr
        assert kubernetes.get(f"api/v1/nodes/{node}")["spec"]["unschedulable"] is True
        here.see("deployment/a", {"status": {"readyReplicas": 2, "replicas": 2}})
        left = [pod for pod in kubernetes.get(here.url("pod"))["items"] if not pod["metadata"].get("deletionTimestamp")]
        assert node not in {pod["spec"]["nodeName"] for pod in left}
    finally:
        kubernetes.must("uncordon", node)
