"""A cluster with Pods that reach far, and a computer that notices nothing; Pods that see nothing of it either.

Not tried is what a privileged Pod could do, or one that mounts the very place as a hostPath: as anywhere in Kubernetes,
who may make such Pods is trusted with the machine (Pod Security Standards, level "privileged").
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from helpers.cluster.embedded.layout import Layout, Machine
from helpers.rayhost.hosts import Hosts
from helpers.state import cache_dir
from helpers.wait import wait_until
from tests.live.embedded import Cluster, cgroups, files, host, is_alive, sockets_on_the_host

pytestmark = [pytest.mark.live, pytest.mark.skipif(sys.platform != "linux", reason="the embedded cluster needs Linux")]
IS_ROOT = os.geteuid() == 0
WHAT = ["network cards", "routes", "mounts", "cgroups", "host name", "/etc", "HOME", "kernel settings"]
WHAT += ["network rules"] if IS_ROOT else []
MACHINES = [Machine("cpu-a"), Machine("cpu-b")]
# in files, names and environments that are one's own; another cluster's on this computer is no finding
MARK = f"seen-by-nobody-else-{uuid.uuid4()}"
KUBE_PROXY = 10249  # the port of its metrics, on loopback of what hostNetwork is: the cluster's own network
RAY = "ray start --head --num-cpus=1 --object-store-memory=80000000 --include-dashboard=false"

PODS = f"""
apiVersion: v1
kind: Pod
metadata: {{name: web, labels: {{app: web}}}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {{name: main, image: "python:3.11-slim", command: [python, -m, http.server, "8080"]}}
---
apiVersion: v1
kind: Service
metadata: {{name: web}}
spec: {{type: NodePort, selector: {{app: web}}, ports: [{{port: 80, targetPort: 8080, nodePort: 30472}}]}}
---
apiVersion: v1
kind: Pod
metadata: {{name: greedy}}
spec:
  restartPolicy: Never
  containers:
  - name: main
    image: python:3.11-slim
    # it keeps what it has taken: without root the runtime looks at its memory from time to time
    command: [python, -c, "import time; held = [bytearray(1 << 20) for _ in range(200)]; time.sleep(1000)"]
    resources: {{limits: {{memory: 64Mi}}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: writer}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, "echo hello > /shared/file; exec sleep 1000"]
    volumeMounts: [{{name: shared, mountPath: /shared}}]
  volumes: [{{name: shared, hostPath: {{path: "%(shared)s", type: Directory}}}}]
---
apiVersion: v1
kind: Pod
metadata: {{name: owner}}
spec:
  nodeName: cpu-a
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: python:3.11-slim
    command: [sh, -c, "echo {MARK} | tee /own/{MARK} > /etc/{MARK}; exec sleep 1000"]
    env: [{{name: OWN, value: {MARK}}}]
    volumeMounts: [{{name: own, mountPath: /own}}]
  volumes: [{{name: own, emptyDir: {{}}}}]
"""
STRANGER = """
---
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  nodeName: cpu-a
  terminationGracePeriodSeconds: 1
  %s: true
  containers:
  - {name: main, image: "python:3.11-slim", command: [sleep, "1000"]}
"""
STRANGERS = {"plain": "automountServiceAccountToken", "processes": "hostPID", "network": "hostNetwork"}

# what a stranger tries: every process's files, by names that only the owner of a secret has
LOOK = """
import glob, json, os, sys
found, looked = [], 0
for process in [*glob.glob("/proc/[0-9]*"), *glob.glob("/proc/[0-9]*/task/[0-9]*")]:
    for path in json.loads(sys.argv[1]):
        for way in ("", "/root", "/cwd"):
            place = (process + way if way else "") + path
            looked += 1
            try:
                os.stat(place)
            except OSError:
                continue
            found.append(place)
    try:
        environment = open(process + "/environ", "rb").read()
        found += [process + "/environ" for text in json.loads(sys.argv[2]) if text.encode() in environment]
    except OSError:
        pass
print(json.dumps({"looked": looked, "found": sorted(set(found))}))
"""
WALK = """
import json, os, sys
found, looked = [], 0
for directory, directories, names in os.walk("/"):
    if directory == "/":
        directories.remove("proc")
    looked += len(names)
    found += [os.path.join(directory, name) for name in (*directories, *names) if name in json.loads(sys.argv[1])]
print(json.dumps({"looked": looked, "found": found}))
"""
REACH = """
import json, socket, sys
reached = []
for address in json.loads(sys.argv[1]):
    abstract = isinstance(address, str)
    with socket.socket(socket.AF_UNIX if abstract else socket.AF_INET) as client:
        client.settimeout(2)
        try:
            client.connect("\\0" + address if abstract else tuple(address))
            reached.append(address)
        except OSError:
            pass
print(json.dumps(reached))
"""


# ---- what runs beside the cluster ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Docker:
    """An engine, with a container that runs in it."""

    socket: Path
    container: str

    def say(self, *words: str) -> str:
        command = ["docker", f"--host=unix://{self.socket}", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()

    def state(self) -> dict[str, str]:
        engine = "{{.ID}} {{.Driver}} {{.CgroupDriver}} {{.Containers}} {{.ContainersRunning}} {{.Images}}"
        return {
            "engine": self.say("info", "--format", engine),
            "networks": self.say("network", "ls", "--no-trunc"),
            "bridge": self.say("network", "inspect", "bridge"),
            "container": self.say("inspect", self.container, "--format", "{{json .State}} {{json .NetworkSettings}}"),
        }


@contextlib.contextmanager
def a_docker(directory: Path) -> Iterator[Docker]:
    """One of the test's own, that leaves nothing. It takes part in the host's network, as Docker does."""
    rules, cards = _tables(), set(psutil.net_if_addrs())
    options = [f"--data-root={directory}/data", f"--exec-root={directory}/exec", f"--pidfile={directory}/pid"]
    options += [f"--host=unix://{directory}/socket", "--ip-forward=false"]
    environment = os.environ | {"HOME": str(directory), "DOCKER_CONFIG": str(directory)}
    with open(directory / "log", "wb") as log:
        engine = subprocess.Popen(["dockerd", *options], stdout=log, stderr=log, cwd=directory, env=environment)
    made = Docker(directory / "socket", "beside")
    try:
        wait_until(lambda: answers(made), 60, what="dockerd", fix=f"See {directory}/log.")
        empty = subprocess.run(["tar", "-c", "-T", "/dev/null"], capture_output=True, check=True).stdout
        command = ["docker", f"--host=unix://{made.socket}", "import", "-", "nothing"]
        subprocess.run(command, input=empty, capture_output=True, check=True)
        programs = [f"--volume={path}:{path}:ro" for path in ("/usr", "/bin", "/lib", "/lib64") if Path(path).exists()]
        made.say("run", "--detach", "--name=beside", *programs, "nothing", "/bin/sleep", "100000")
        wait_until(lambda: have_addresses(set(psutil.net_if_addrs()) - cards), 30, what="the addresses of its cards")
        yield made
        made.say("rm", "--force", "beside")
    finally:
        engine.terminate()
        engine.wait(60)
        for table in _tables() - rules:
            subprocess.run(["nft", "delete", "table", *table.split()], check=True)
        for card in set(psutil.net_if_addrs()) - cards:
            subprocess.run(["ip", "link", "delete", card], check=True)


def answers(docker: Docker) -> bool:
    try:
        return bool(docker.say("info", "--format", "{{.ID}}"))
    except subprocess.CalledProcessError as error:
        raise AssertionError(error.stderr) from None


def have_addresses(cards: set[str]) -> bool:
    """For `wait_until`: new network cards have the IPv6 addresses that the kernel gives them after a while."""
    found = {}
    for line in Path("/proc/net/if_inet6").read_text().splitlines():
        *_, flags, card = line.split()
        found[card] = int(flags, 16)
    tentative = 0x40  # linux/if_addr.h
    asked = {card for card in cards if Path(f"/proc/sys/net/ipv6/conf/{card}/disable_ipv6").read_text().strip() == "0"}
    missing = [card for card in asked if card not in found or found[card] & tentative]
    assert not missing, f"not yet: {', '.join(missing)}"
    return True


def _tables() -> set[str]:
    said = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True).stdout
    return {line.removeprefix("table ") for line in said.splitlines()}


def why_no_docker() -> str:
    if not IS_ROOT:
        return "only root may start a Docker engine"
    missing = [name for name in ("dockerd", "docker", "iptables", "ip", "nft") if not shutil.which(name)]
    if missing:
        return f"{', '.join(missing)} is not installed here (Debian: `apt-get install -y docker.io`)"
    said = subprocess.run(["iptables", "--version"], capture_output=True, text=True).stdout
    if "nf_tables" not in said:
        return f"the rules of {said.strip()} are not those that nft lists"
    if "docker0" in psutil.net_if_addrs() or _tables() & {"ip nat", "ip filter"}:
        return "another engine or a firewall is at work here, which a second engine would change"
    return ""


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Docker | None]:
    with contextlib.ExitStack() as stack:
        yield None if why_no_docker() else stack.enter_context(a_docker(tmp_path_factory.mktemp("docker")))


@pytest.fixture(scope="module")
def ray(home: Path) -> Iterator[Hosts]:
    """A Ray cluster of another lab, that shares the computer's network and processes with all others."""
    hosts = Hosts(f"01-{os.getpid()}-beside", log=home / "state" / "beside.log", separate=False)
    try:
        hosts.add("head").run(RAY, quiet=True)
        yield hosts
    finally:
        hosts.close()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The learner's HOME, with a file that is nobody else's business. The programs that were built are kept."""
    directory, cache = tmp_path_factory.mktemp("home"), cache_dir().parent
    (directory / MARK).write_text(MARK)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(directory))
        patch.setenv("XDG_STATE_HOME", str(directory / "state"))
        patch.setenv("XDG_CACHE_HOME", str(cache))
        patch.setenv("KUBECACHEDIR", str(directory / "state" / "kubectl"))  # kubectl is not the cluster
        yield directory


# ---- the cluster -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Before:
    """How things were."""

    host: dict[str, object]
    home: dict[str, tuple]
    ray: list[psutil.Process]
    docker: dict[str, str]
    cgroups: set[str]


@pytest.fixture(scope="module")
def before(home: Path, ray: Hosts, docker: Docker | None) -> Before:
    (home / "state").mkdir(exist_ok=True)
    own = Path("/proc/self/cgroup").read_text().splitlines()
    beside = ray.members(ray.by_name["head"])
    assert len(beside) > 3
    return Before(host(), files_of(home), beside, docker.state() if docker else {}, set(own))


def files_of(home: Path) -> dict[str, tuple]:
    """All of a HOME but the state directory, where the cluster and Ray have theirs."""
    return {path: facts for path, facts in files(home).items() if not path.startswith(str(home / "state"))}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def cluster(home: Path, before: Before, shared: Path) -> Iterator[Cluster]:
    """Two machines, and Pods that do what may reach the host."""
    made = Cluster(Layout(home / "state" / "ray-course" / "embedded"))
    try:
        made.up(MACHINES, kuberay_wanted=False)
        strangers = "".join(STRANGER % pair for pair in STRANGERS.items())
        made.kubectl("apply", "-f", "-", given=PODS % {"shared": shared} + strangers)
        running = ["pod/web", "pod/writer", "pod/owner", *(f"pod/{name}" for name in STRANGERS)]
        made.kubectl("wait", "--for=condition=Ready", *running, "--timeout=120s")
        ended = "jsonpath={.status.containerStatuses[0].state.terminated.reason}"
        made.kubectl("wait", f"--for={ended}=OOMKilled", "pod/greedy", "--timeout=120s")
        yield made
    finally:
        made.down(wipe=True)


def inside(cluster: Cluster, pod: str, code: str, *words: str) -> dict | list:
    """What Python code in a Pod prints as JSON."""
    return json.loads(cluster.kubectl("exec", pod, "--", "python", "-c", code, *words))


# ---- while it runs ---------------------------------------------------------------------------------------------------


def test_the_pods_do_reach_far(cluster, shared):
    assert (shared / "file").read_text() == "hello\n"
    address = cluster.kubectl("get", "node", "cpu-b", "-o", "jsonpath={.status.addresses[0].address}")
    web = [["web", 80], [address, 30472]]
    assert inside(cluster, "plain", REACH, json.dumps(web)) == web
    # the machine's processes are all there, but those of others are no more than names
    assert int(cluster.kubectl("exec", "processes", "--", "sh", "-c", "ls -d /proc/[0-9]* | wc -l")) > 8
    proxy = [["127.0.0.1", KUBE_PROXY]]
    assert inside(cluster, "network", REACH, json.dumps(proxy)) == proxy
    assert inside(cluster, "plain", REACH, json.dumps(proxy)) == []


@pytest.mark.parametrize("what", WHAT)
def test_while_it_runs_the_host_is_as_before(cluster, before, what):
    assert host()[what] == before.host[what]


def test_home_is_as_before_but_for_the_state_directory(cluster, before, home):
    assert files_of(home) == before.home


def test_it_has_one_port_of_the_host(cluster):
    found = sockets_on_the_host(cluster.processes())
    assert found == {("127.0.0.1", cluster.port)}


def test_its_processes_are_in_cgroups_of_its_own_or_where_it_was_started(cluster, before):
    seen = set()
    for process in cluster.processes():
        with contextlib.suppress(OSError):
            seen |= set(Path(f"/proc/{process.pid}/cgroup").read_text().splitlines())
    assert {line for line in seen - before.cgroups if f":/ray-course/{cluster.layout.id}/" not in line} == set()
    assert bool(seen - before.cgroups) == bool(cgroups(cluster)) == IS_ROOT


def test_another_ray_minds_nothing(cluster, before, ray):
    beside(ray, before)


def beside(ray: Hosts, before: Before) -> None:
    assert all(map(is_alive, before.ray))
    assert "1.0 CPU" in ray.by_name["head"].run("ray status", quiet=True).output


def test_a_docker_engine_minds_nothing(cluster, before, docker):
    if not docker:
        pytest.skip(why_no_docker())
    assert docker.state() == before.docker
    assert docker.say("exec", docker.container, "/bin/echo", "alive") == "alive"


# ---- what a Pod does not see -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Secrets:
    """Paths of what is no stranger's business, as the host, the machine and another Pod see them."""

    cluster: list[str]
    pod: list[str]


@pytest.fixture(scope="module")
def secrets(cluster: Cluster, home: Path) -> Secrets:
    uid = cluster.kubectl("get", "pod", "owner", "-o", "jsonpath={.metadata.uid}")
    volume = Path("machines/cpu-a/kubelet/pods", uid, "volumes/kubernetes.io~empty-dir/own", MARK)
    assert (cluster.layout.root / volume).read_text().strip() == MARK
    keys = [file.relative_to(cluster.layout.root) for file in cluster.layout.root.rglob("*.key")]
    assert len(keys) > 10
    # no walk may come by the directory of a key or of the control socket: their names are also another cluster's
    for directory in {key.parent for key in keys} | {Path("control.sock").parent}:
        (cluster.layout.root / directory / MARK).touch()
    roots = [cluster.layout.root, cluster.layout.inside.root]
    within = [*keys, Path("kubeconfig"), Path("control.sock"), volume]
    return Secrets([str(home / MARK), *(str(root / path) for root in roots for path in within)], [f"/own/{MARK}"])


@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_pod_sees_no_key_and_no_home_by_any_process(cluster, secrets, stranger):
    said = inside(cluster, stranger, LOOK, json.dumps(secrets.cluster), "[]")
    assert said["found"] == []
    assert said["looked"] >= 3 * len(secrets.cluster)


@pytest.mark.parametrize("stranger", ["plain", "network"])  # with hostPID it does, as anywhere: see runtime/README.md
def test_a_pod_sees_nothing_of_another_one_by_any_process(cluster, secrets, stranger):
    words = (LOOK, json.dumps(secrets.pod), json.dumps([MARK]))
    assert inside(cluster, stranger, *words)["found"] == []
    found = inside(cluster, "owner", *words)["found"]  # so it can be found
    assert {f"/proc/1/root{secrets.pod[0]}", "/proc/1/environ"} <= set(found)


@pytest.mark.parametrize("stranger", STRANGERS)
@pytest.mark.usefixtures("secrets")
def test_a_pod_sees_no_secret_wherever_it_looks(cluster, stranger):
    said = inside(cluster, stranger, WALK, json.dumps([MARK]))
    assert said["found"] == []
    assert said["looked"] > 1000
    assert f"/own/{MARK}" in inside(cluster, "owner", WALK, json.dumps([MARK]))["found"]


@pytest.fixture(scope="module")
def doors() -> Iterator[list[list | str]]:
    """Where programs of the host listen: on loopback, on every address, and under a name without a file."""
    name = f"course-test-{os.getpid()}"
    with contextlib.ExitStack() as stack:
        loopback = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        everywhere = stack.enter_context(socket.create_server(("0.0.0.0", 0)))
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind(f"\0{name}")
        abstract.listen()
        addresses = [
            address.address
            for card in psutil.net_if_addrs().values()
            for address in card
            if address.family == socket.AF_INET
        ]
        port = everywhere.getsockname()[1]
        yield [["127.0.0.1", loopback.getsockname()[1]], *([address, port] for address in addresses), name]


@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_pod_reaches_nothing_of_the_host(cluster, doors, stranger):
    port = [["127.0.0.1", cluster.port]]
    assert inside(cluster, stranger, REACH, json.dumps([*doors, *port])) == []
    on_the_host = subprocess.run([sys.executable, "-c", REACH, json.dumps(doors)], capture_output=True, check=True)
    assert json.loads(on_the_host.stdout) == doors  # so they can be reached


# ---- afterwards ------------------------------------------------------------------------------------------------------


def test_afterwards_everything_is_as_before(cluster, before, home, ray, docker, shared):
    running = cluster.processes()
    assert cluster.down(wipe=True)
    assert [process for process in running if is_alive(process)] == []
    after = host()
    assert {what for what in WHAT if after[what] != before.host[what]} == set()
    assert files_of(home) == before.home
    assert cgroups(cluster) == [] and not cluster.layout.root.exists()
    assert [path.name for path in shared.iterdir()] == ["file"]  # a hostPath is the host's
    beside(ray, before)
    if docker:
        assert docker.state() == before.docker
