"""The embedded cluster with its real components: up, kills, power loss, down, and a host that notices nothing."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest

from helpers.cluster.embedded import pki
from helpers.cluster.embedded.layout import GPU_TAINT, Layout, Machine
from helpers.cluster.embedded.status import Status
from helpers.errors import CourseError
from helpers.state import course_root
from helpers.wait import wait_until
from tests.live.embedded import Cluster, cgroups, host, is_alive
from tests.live.tools import processes_of

pytestmark = [pytest.mark.live, pytest.mark.skipif(sys.platform != "linux", reason="the embedded cluster needs Linux")]
CONTROL_PLANE = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "coredns", "kube-proxy"]
CONTROL_PLANE += ["forwarder"]
MACHINE = Machine("cpu-a", cpu=8, memory_gib=16, labels={"group": "cpu"})
POD = """
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, "%s"]
"""


def namespaces(pids: Iterable[int | str]) -> set[str]:
    """The network, mount and process namespaces of processes; of one that has ended there are none."""
    found = set()
    for pid in pids:
        for kind in ("net", "mnt", "pid"):
            with contextlib.suppress(OSError):
                found.add(os.readlink(f"/proc/{pid}/ns/{kind}"))
    return found


def listening() -> set[tuple[str, int]]:
    """TCP addresses on which this computer listens; those of namespaces of others are not among them."""
    return {tuple(c.laddr) for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN}


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Cluster]]:
    """Makes clusters that are not there yet, and ends them with the module."""
    made = []

    def make_one() -> Cluster:
        made.append(Cluster(Layout(tmp_path_factory.mktemp("a state directory") / "embedded")))
        return made[-1]

    yield make_one
    for cluster in made:
        cluster.down(wipe=True)


@pytest.fixture(scope="module")
def cluster(make: Callable[[], Cluster]) -> Cluster:
    """One with one machine, that the tests share; each leaves it ready."""
    shared = make()
    status = shared.up([MACHINE], kuberay_wanted=False)
    assert status.is_ready, str(status)
    return shared


# ---- what a learner sees ---------------------------------------------------------------------------------------------


def test_kubectl_works_from_the_host(cluster):
    assert cluster.kubectl("auth", "whoami", "-o", "jsonpath={.status.userInfo.username}") == "kubernetes-admin"
    assert cluster.works()


def test_a_pod_may_be_made_at_once(cluster):
    # without the default ServiceAccount the API server refuses Pods
    cluster.kubectl("create", "--dry-run=server", "-f", "-", given=POD % ("dry", "true"))


def test_the_status_names_every_process(cluster):
    status = cluster.status()
    assert [component.name for component in status.components] == [
        *CONTROL_PLANE, "cpu-a", "cpu-a.runtime", "cpu-a.kubelet",
    ]  # fmt: skip
    for component in status.components:
        words = " ".join(psutil.Process(component.pid).cmdline())
        assert component.name.partition(".")[2] or component.name.partition("-")[0] in words
        assert component.memory_bytes > 2**20 and component.restarts == 0 and component.age_s > 0
    assert status["kube-apiserver"].version == status["cpu-a.kubelet"].version == "1.36.3"


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="capability: the kernel has no autogroups")
def test_pods_cannot_starve_what_keeps_the_cluster_together(cluster, pod):
    """A head of Ray is dozens of sessions, among which the kernel shares the CPUs fairly."""

    def share(process: psutil.Process) -> str:
        return Path(f"/proc/{process.pid}/autogroup").read_text().partition(" ")[2].strip()

    first = "nice -10" if os.geteuid() == 0 else "nice 0"
    shares = {one.name: share(psutil.Process(one.pid)) for one in cluster.status().components if one.name != "cpu-a"}
    assert shares == dict.fromkeys(shares, first)
    [program] = [one for one in cluster.processes() if one.name() == "sleep"]
    assert share(program) == "nice 0"


def test_another_process_sees_the_same(cluster):
    code = "import sys; from pathlib import Path; from helpers.cluster.embedded.cluster import EmbeddedCluster as E"
    code += (
        "; from helpers.cluster.embedded.layout import Layout; print(E(Layout(Path(sys.argv[1]))).status()['etcd'].pid)"
    )
    command = [sys.executable, "-c", code, str(cluster.layout.root)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=course_root())
    assert int(done.stdout) == cluster.status()["etcd"].pid


def test_a_second_up_says_that_it_runs(cluster):
    before = {component.name: component.pid for component in cluster.status().components}
    status = cluster.up()
    assert status.remarks == ("The cluster ran already.",)
    assert {component.name: component.pid for component in status.components} == before


def test_logs_of_a_component(cluster):
    assert any("Starting" in line for line in cluster.logs("kube-scheduler"))
    with pytest.raises(CourseError, match="There is no log of kube-schedule. There are logs of: .*kube-scheduler"):
        cluster.logs("kube-schedule")


def test_the_default_machines_names_are_those_of_the_kubernetes_nodes(cluster):
    assert cluster.kubectl("get", "nodes", "-o", "name") == "node/cpu-a"


# ---- what it keeps to itself -----------------------------------------------------------------------------------------


def test_keys_are_for_the_owner_only(cluster):
    root = cluster.layout.root
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert stat.S_IMODE(cluster.layout.kubeconfig.stat().st_mode) == 0o600
    keys = list(root.rglob("*.key"))
    assert len(keys) > 10
    assert {stat.S_IMODE(file.stat().st_mode) for file in keys} == {0o600}


def test_nothing_of_it_listens_but_one_port_on_loopback(cluster):
    port = cluster.port
    assert ("127.0.0.1", port) in listening()
    networks = {os.readlink(f"/proc/{process.pid}/ns/net") for process in cluster.processes()}
    assert len(networks) == 1
    assert networks != {os.readlink("/proc/self/ns/net")}  # what they listen on is not on the host


def test_without_a_certificate_nothing_is_told(cluster):
    status = cluster.status()
    command = ["curl", "-sk", f"{status.server}/api/v1/secrets"]
    assert json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["code"] == 403


# ---- kills -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONTROL_PLANE)
def test_a_component_that_is_killed_comes_back(cluster, name):
    cluster.kubectl("create", "configmap", f"before-{name}")
    before = cluster.status()[name]
    os.kill(before.pid, signal.SIGKILL)

    def is_back() -> bool:
        after = cluster.status()[name]
        assert after.pid not in (0, before.pid), f"{name} is {after.state}"
        assert after.restarts == before.restarts + 1
        return cluster.is_ready()

    wait_until(is_back, 120, what=f"{name} to come back")
    wait_until(cluster.works, 120, what="the cluster to work again", every_s=0.5)
    cluster.kubectl("get", "configmap", f"before-{name}")
    others = {c.name: c.restarts for c in cluster.status().components if c.name not in CONTROL_PLANE}
    assert set(others.values()) == {0}  # no machine minds


# ---- machines --------------------------------------------------------------------------------------------------------


@pytest.fixture
def pod(cluster: Cluster) -> Iterator[Callable[[], tuple[str, str]]]:
    """A Pod that runs; called, it says its restarts and its container."""
    cluster.kubectl("apply", "-f", "-", given=POD % ("runs", "exec sleep 1000"))
    cluster.kubectl("wait", "--for=condition=Ready", "pod/runs", "--timeout=120s")
    path = "jsonpath={.status.containerStatuses[0]['restartCount','containerID']}"
    yield lambda: tuple(cluster.kubectl("get", "pod", "runs", "-o", path).split())
    cluster.kubectl("delete", "pod", "runs", "--ignore-not-found", "--timeout=120s")


def test_a_pod_runs_and_knows_names(cluster, pod):
    assert cluster.kubectl("exec", "runs", "--", "hostname") == "runs"
    found = cluster.kubectl("exec", "runs", "--", "getent", "hosts", "kubernetes.default")
    assert found.split() == ["10.96.0.1", "kubernetes.default.svc.cluster.local"]
    cluster.kubectl("exec", "runs", "--", "getent", "hosts", "example.com", fails=True)


@pytest.mark.parametrize("service", ["runtime", "kubelet"])
def test_a_service_of_a_machine_that_is_killed_comes_back_and_no_pod_minds(cluster, pod, service):
    before, seen = pod(), cluster.status()[f"cpu-a.{service}"]
    os.kill(seen.pid, signal.SIGKILL)

    def is_back() -> bool:
        after = cluster.status()[f"cpu-a.{service}"]
        assert after.restarts == seen.restarts + 1 and after.is_ready, f"it is {after.state}"
        return cluster.kubectl("exec", "runs", "--", "hostname") == "runs"

    wait_until(is_back, 120, what=f"the {service} to come back", every_s=0.5)
    assert pod() == before


def test_a_machine_that_is_killed_is_lost_until_it_is_booted_again(cluster, pod):
    _, container = pod()
    os.kill(cluster.status()["cpu-a"].pid, signal.SIGKILL)
    wait_until(lambda: cluster.status()["cpu-a"].state == "lost", 10, what="the machine to be lost")
    assert not [c for c in cluster.status().components if c.name.startswith("cpu-a.")]
    cluster.kubectl("wait", "--for=condition=Ready=Unknown", "node/cpu-a", "--timeout=120s")
    cluster.add_machine(MACHINE)
    assert cluster.is_ready()
    assert cluster.kubectl("get", "node", "cpu-a", "-o", "jsonpath={.spec.providerID}") == "process://cpu-a"
    cluster.kubectl("delete", "pod", "runs", "--ignore-not-found", "--timeout=120s")


def test_machines_come_and_go(cluster):
    cluster.add_machine(Machine("late", cpu=32, memory_gib=128, gpus=4, taints=(GPU_TAINT,), labels={"group": "gpu"}))
    path = "jsonpath={.status.allocatable.cpu} {.status.allocatable['nvidia\\.com/gpu']} {.metadata.labels.group}"
    assert cluster.kubectl("get", "node", "late", "-o", path) == "32 4 gpu"
    assert cluster.kubectl("get", "node", "late", "-o", "jsonpath={.spec.taints[*].key}") == "nvidia.com/gpu"
    cluster.remove_machine("late")
    cluster.kubectl("delete", "node", "late")
    assert "late" not in [component.name for component in cluster.status().components]
    assert not cluster.layout.machine("late").disk.exists()
    with pytest.raises(CourseError, match="There is no machine late. The machines are: cpu-a."):
        cluster.remove_machine("late")


# ---- Pods that cannot be ---------------------------------------------------------------------------------------------

MAIN = {"name": "main", "image": "busybox:1.36", "command": ["sleep", "1000"]}
VOLUME = {"volumes": [{"name": "v"}], "containers": [MAIN | {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}]}


def with_volume(**source: object) -> dict:
    return VOLUME | {"volumes": [{"name": "v", **source}]}


def with_main(**fields: object) -> dict:
    return {"containers": [MAIN | fields]}


HOPELESS = {
    "64-gi": (
        with_main(resources={"requests": {"memory": "64Gi"}}),
        "FailedScheduling", "Insufficient memory",
    ),
    "unknown-image": (
        with_main(image="example.invalid/no/such:1"),
        "Failed", 'Failed to pull image "example.invalid/no/such:1": .*',
    ),
    "claim": (
        with_volume(persistentVolumeClaim={"claimName": "unbound"}),
        "FailedScheduling", "pod has unbound immediate PersistentVolumeClaims",
    ),
    "csi": (
        with_volume(csi={"driver": "example.invalid"}),
        "FailedMount", "driver name example.invalid not found in the list of registered CSI drivers",
    ),
    "nfs": (
        with_volume(nfs={"server": "10.88.255.1", "path": "/"}),
        "FailedMount", 'MountVolume.SetUp failed for volume "v" : mount failed: .*nfs',
    ),
    "host-port": (
        with_main(ports=[{"containerPort": 80, "hostPort": 8080}]),
        "FailedCreatePodSandBox", "does not support hostPort .*: use a Service of type NodePort",
    ),
    "recursive-read-only": (
        with_main(volumeMounts=[{"name": "v", "mountPath": "/v", "readOnly": True, "recursiveReadOnly": "Enabled"}])
        | {"volumes": [{"name": "v", "emptyDir": {}}]},
        "Failed", "requested recursive read-only mode, but it is not supported by the runtime",
    ),
}  # fmt: skip
UNBOUND = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "unbound"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}


@pytest.fixture(scope="module")
def hopeless(cluster: Cluster) -> Iterator[None]:
    """Pods that ask for what is not there, all at once."""
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": spec | {"terminationGracePeriodSeconds": 0},
        }
        for name, (spec, _, _) in HOPELESS.items()
    ]
    cluster.kubectl(
        "apply", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": [UNBOUND, *pods]})
    )
    yield
    cluster.kubectl("delete", "pod", *HOPELESS, "--timeout=120s")
    cluster.kubectl("delete", "pvc", "unbound", "--timeout=120s")


@pytest.mark.parametrize("name", HOPELESS)
def test_a_pod_that_cannot_be_says_why_in_an_event(cluster, hopeless, name):
    _, reason, message = HOPELESS[name]

    def is_said() -> bool:
        found = json.loads(
            cluster.kubectl("get", "events", f"--field-selector=involvedObject.name={name}", "-o", "json")
        )
        said = [f"{event['reason']}: {event['message']}" for event in found["items"] if event["type"] == "Warning"]
        assert any(re.search(f"^{reason}: .*{message}", text, re.DOTALL) for text in said), "; ".join(said)
        return True

    wait_until(is_said, 120, what=f"the Pod {name} to say why", every_s=0.5)
    assert cluster.kubectl("get", "pod", name, "-o", "jsonpath={.status.phase}") == "Pending"


# ---- power loss and down ---------------------------------------------------------------------------------------------


@pytest.fixture
def fresh(make: Callable[[], Cluster]) -> Iterator[Cluster]:
    cluster = make()
    yield cluster
    cluster.down(wipe=True)


def test_power_loss_loses_no_object(cluster):
    cluster.kubectl("create", "configmap", "kept", "--from-literal=answer=42")
    uid = cluster.kubectl("get", "configmap", "kept", "-o", "jsonpath={.metadata.uid}")
    cluster.power_loss()
    assert not cluster.status().is_up
    status = cluster.up()
    assert status.is_ready and not status.remarks, str(status)
    assert cluster.kubectl("get", "configmap", "kept", "-o", "jsonpath={.metadata.uid}") == uid
    assert cluster.works()


def test_down_leaves_nothing_and_wipe_no_file(fresh):
    before = host()
    fresh.up([MACHINE], kuberay_wanted=False)
    fresh.kubectl("apply", "-f", "-", given=POD % ("runs", "exec sleep 1000"))
    fresh.kubectl("wait", "--for=condition=Ready", "pod/runs", "--timeout=120s")
    assert host() == before
    running = fresh.processes()
    # a network; mounts and processes of the cluster and of the machine: which end with who is in them
    assert len(namespaces(process.pid for process in running) - namespaces(["self"])) >= 5
    assert bool(cgroups(fresh)) == (os.geteuid() == 0)
    assert fresh.down() is True
    assert [process for process in running if is_alive(process)] == []
    assert host() == before
    assert cgroups(fresh) == []
    assert fresh.layout.etcd.is_dir()
    assert fresh.down(wipe=True) is False
    assert not fresh.layout.root.exists()


def test_a_port_that_is_taken_is_said_and_the_kubeconfig_follows(fresh):
    fresh.up([], kuberay_wanted=False)
    port = fresh.port
    fresh.down()
    with socket.create_server(("127.0.0.1", port)):
        status = fresh.up()
    assert status.remarks == (f"Port {port} is taken by another program, so the API server has another one now.",)
    assert not status.server.endswith(f":{port}")
    assert fresh.works()


def test_a_component_that_cannot_start_is_named_with_what_it_says(fresh):
    fresh.up([], kuberay_wanted=False)
    fresh.down()
    shutil.rmtree(fresh.layout.etcd)
    fresh.layout.etcd.write_text("no directory")
    with pytest.raises(CourseError, match="^etcd ends again and again; it says: .*"):
        fresh.up()


def test_certificates_that_have_ended_are_made_anew_and_it_is_said(fresh):
    fresh.up([MACHINE], kuberay_wanted=False)
    fresh.down()
    shutil.rmtree(fresh.layout.pki)
    pki.Pki(fresh.layout.pki).ensure(now=datetime.now(UTC) - timedelta(days=500))
    status = fresh.up()
    assert status.remarks == ("Certificates were about to end, or of another time: new ones were made.",)
    assert status.is_ready and fresh.works()


def said_in_a_world(cluster: Cluster, *preparation: str) -> str:
    """What `up` says in a world of its own, which the shell lines prepare."""
    script = "; ".join(["set -e", *preparation, 'exec "$@"'])
    code = "import sys; from pathlib import Path; from helpers.cluster.embedded.cluster import EmbeddedCluster as E"
    code += "; from helpers.cluster.embedded.layout import Layout; from helpers.errors import CourseError\n"
    code += "cluster = E(Layout(Path(sys.argv[1])))\ntry: print(cluster.up([], kuberay_wanted=False))\n"
    code += "except CourseError as error: print(error)"
    own = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    command = [*own, "sh", "-c", script, "sh", sys.executable, "-c", code, str(cluster.layout.root)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=course_root(), timeout=200)
    return done.stdout + done.stderr


def test_a_file_system_that_cannot_hold_containers_is_named(make, tmp_path):
    cluster = Cluster(Layout(tmp_path / "merged" / "embedded"))
    for name in ("merged", "parts"):
        (tmp_path / name).mkdir()
    said = said_in_a_world(
        cluster,
        f"mount -t tmpfs none {tmp_path}/parts",
        f"cd {tmp_path}/parts",
        "mkdir lower upper work",
        f"mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work none {tmp_path}/merged",
    )
    assert f"The file system of {cluster.layout.root} cannot hold the writable files of containers" in said
    assert "Set XDG_STATE_HOME to a directory on a local disk" in said


def test_the_setting_that_forbids_namespaces_is_named(make):
    # the setting is that of a user namespace of the test's own
    inner = 'unshare --user --map-root-user sh -c \'echo 0 > /proc/sys/user/max_net_namespaces; exec "$@"\' sh "$@"'
    said = said_in_a_world(make(), inner, "exit")
    assert "user.max_net_namespaces is 0. Run `sudo sysctl -w user.max_net_namespaces=15000`" in said


def test_a_disk_that_is_small_is_named(tmp_path):
    cluster = Cluster(Layout(tmp_path / "disk" / "embedded"))
    (tmp_path / "disk").mkdir()
    said = said_in_a_world(cluster, f"mount -t tmpfs -o size=100m none {tmp_path}/disk")
    assert "100 MiB are free at" in said and "and the cluster needs 512. Free some space there" in said


def test_a_full_tmp_is_nothing_to_it():
    directory = Path(tempfile.mkdtemp(prefix="course-live-", dir="/var/tmp"))  # not below /tmp itself
    cluster = Cluster(Layout(directory / "embedded"))
    fill = "mount -t tmpfs -o size=64k none /tmp; cat /dev/zero > /tmp/full 2>/dev/null || true"
    try:
        assert "The embedded cluster is up" in said_in_a_world(cluster, fill, "! echo x > /tmp/more 2>/dev/null")
        assert cluster.works()
    finally:
        cluster.down(wipe=True)
        directory.rmdir()


def test_without_root_too(as_user):
    """A user of this machine who may not become root, with the default machines."""
    home = Path(next(word for word in as_user if word.startswith("HOME=")).removeprefix("HOME="))
    find = "from helpers.cluster.embedded import tools; print(tools.binary('kubectl'))"

    def run(*command: str, given: str = "") -> str:
        done = subprocess.run([*as_user, *command], input=given, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    course = (sys.executable, "-m", "helpers.cli")
    kubectl = (run(sys.executable, "-c", find), f"--kubeconfig={home}/state/ray-course/embedded/kubeconfig")
    try:
        assert "✔ ready" in run(*course, "up")
        run(*kubectl, "apply", "-f", "-", given=POD % ("runs", "exec sleep 1000"))
        run(*kubectl, "wait", "--for=condition=Ready", "pod/runs", "--timeout=120s")
        assert run(*kubectl, "exec", "runs", "--", "id", "-u") == "0"  # of its user namespace
        found = run(*kubectl, "exec", "runs", "--", "getent", "hosts", "kubernetes.default")
        assert found.startswith("10.96.0.1 ")
    finally:
        assert "✔ The embedded cluster is down." in run(*course, "down", "--wipe")
    assert not (home / "state" / "ray-course" / "embedded").exists()


def test_two_ups_at_once_make_one_cluster(fresh):
    code = "import sys; from pathlib import Path; from helpers.cluster.embedded.cluster import EmbeddedCluster as E"
    code += "; from helpers.cluster.embedded.layout import Layout"
    code += "; E(Layout(Path(sys.argv[1]))).up([], kuberay_wanted=False)"
    command = [sys.executable, "-c", code, str(fresh.layout.root)]
    both = [subprocess.Popen(command, cwd=course_root(), stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait(120) for process in both] == [0, 0]
    assert len(processes_of(str(fresh.layout.root))) == 1  # one supervisor: the others have shorter names for it


def test_the_commands_of_the_command_line(tmp_path):
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path / "state"), "COLUMNS": "200"}

    def course(*words: str) -> str:
        command = [sys.executable, "-m", "helpers.cli", *words]
        done = subprocess.run(command, env=environment, cwd=course_root(), capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        return done.stdout

    try:
        assert "✔ ready" in course("up")
        assert "The cluster ran already." in course("up")
        table: Status | str = course("status")
        assert all(name in table for name in [*CONTROL_PLANE, "cpu-a", "cpu-b.kubelet", "gpu-a.runtime"])
        assert "KUBECONFIG=" in table and "PVC" in table
        assert course("logs", "etcd")
    finally:
        assert "✔ The embedded cluster is down." in course("down", "--wipe")
    assert "The embedded cluster is down." in course("status")
