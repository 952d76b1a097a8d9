"""`Lab` on a real embedded cluster: what a notebook asks of it, and what goes wrong meanwhile."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from helpers import lab as lab_module
from helpers import versions
from helpers.cluster.session import cleanup
from helpers.errors import CourseError
from helpers.lab import Lab
from helpers.state import cache_dir, state_dir
from helpers.wait import wait_until
from tests.live.embedded import Cluster
from tests.live.tools import Program, processes_of

pytestmark = [pytest.mark.live, pytest.mark.skipif(sys.platform != "linux", reason="the embedded cluster needs Linux")]
KERNEL = "from helpers import Lab\n"
# a RayCluster that KubeRay works on as on any other, in which no Ray runs: it is ready in seconds
SLEEPER = """
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: NAME, annotations: {ray.io/overwrite-container-cmd: "true"}}
spec:
  rayVersion: "2.60.0"
  headGroupSpec:
    rayStartParams: {}
    template:
      spec:
        terminationGracePeriodSeconds: 1
        containers:
        - name: ray-head
          image: rayproject/ray:2.60.0-py311
          command: [sleep, infinity]
          env: [{name: COLOUR, value: red}]
          resources: {limits: {cpu: "1", memory: 1Gi}, requests: {cpu: "1", memory: 1Gi}}
          readinessProbe: {exec: {command: ["true"]}, periodSeconds: 1}
          livenessProbe: {exec: {command: ["true"]}}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME, labels: {app: NAME}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: python:3.11
    command: [sh, -c, "COMMAND"]
"""
WEB = POD.replace("COMMAND", "echo NAME > name; exec python -m http.server 8000") + (
    "    workingDir: /tmp\n    ports: [{containerPort: 8000, name: http}]\n"
    "    readinessProbe: {tcpSocket: {port: 8000}, periodSeconds: 1}\n"
)
SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {kind: web}, ports: [{port: 8877, targetPort: http}]}
"""


def sleeper(name: str) -> str:
    return SLEEPER.replace("NAME", name)


def pod(name: str, command: str = "sleep 3600", text: str = POD) -> str:
    return text.replace("NAME", name).replace("COMMAND", command)


@pytest.fixture(scope="module", autouse=True)
def home() -> Iterator[Path]:
    """A HOME and a state directory of its own for this module; the programs of the cluster stay where they are."""
    # not pytest's own temporary directory: containers that run as other users pass through it
    directory = Path(tempfile.mkdtemp(prefix="course-live-"))
    directory.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache_dir().parent))
        patch.setenv("HOME", str(directory))
        patch.setenv("XDG_STATE_HOME", str(directory / "state"))
        for name in ("KUBECONFIG", "KUBECACHEDIR", "COURSE_BACKEND", "PATH"):
            patch.setenv(name, os.environ.get(name, ""))  # so that what a lab sets is undone
        patch.setattr(lab_module, "_running", {})
        patch.setattr(lab_module, "_started_in", [])
        yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def cluster(home: Path) -> Iterator[Cluster]:
    """The learner's cluster; the first `Lab.start` brings it up."""
    embedded = Cluster()
    yield embedded
    embedded.down(wipe=True)


@pytest.fixture(scope="module")
def started(cluster: Cluster) -> str:
    """What the first `Lab.start` says, while there is no cluster yet."""
    code = KERNEL + 'Lab.start("03").clean_up()'
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout


@pytest.fixture
def new_lab(started: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Lab]:
    """A new kernel's lab; nothing of it is left behind."""
    monkeypatch.chdir(tmp_path)
    made = Lab.start("03")
    yield made
    made._close()


@pytest.fixture(scope="module")
def shared_lab(started: str) -> Iterator[Lab]:
    """To make and remove a namespace takes seconds, so the tests after those of beginning and end share one."""
    made = Lab.start("03")
    yield made
    made._close()


@pytest.fixture
def lab(shared_lab: Lab) -> Iterator[Lab]:
    """The shared lab; what a test has put into it is gone after it."""
    yield shared_lab
    kubectl("delete", "rayclusters,pods", "--all", "--timeout=60s")
    kubectl("delete", "service", "web", "--ignore-not-found")


@pytest.fixture
def run_program(started: str) -> Iterator[Callable[[str], Program]]:
    """Another kernel, which a test may kill."""
    programs: list[Program] = []

    def run(code: str) -> Program:
        programs.append(Program(KERNEL + code))
        return programs[-1]

    yield run
    for program in programs:
        program.kill()
        for pipe in (program.process.stdin, program.process.stdout, program.process.stderr):
            pipe.close()


def kubectl(*words: str) -> str:
    """As a cell of the notebook would run it."""
    done = subprocess.run(["kubectl", *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@contextlib.contextmanager
def stopped(cluster: Cluster, component: str) -> Iterator[None]:
    """A component that says nothing for as long as the block runs."""
    process = psutil.Process(cluster.status()[component].pid)
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def in_background(work: Callable[[], None]) -> Iterator[list[BaseException]]:
    """Work in a thread until the end of the block; what it raises is in the list then."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield raised
    finally:
        thread.join(120)
        assert not thread.is_alive()


class Said:
    """All that was printed until now."""

    def __init__(self, capsys: pytest.CaptureFixture):
        self.capsys, self.text = capsys, ""

    def __str__(self) -> str:
        out, err = self.capsys.readouterr()
        assert not err
        self.text += out
        return self.text

    def has(self, words: str) -> bool:
        assert words in str(self), f"it has not said {words!r}"
        return True


@pytest.fixture
def said(capsys: pytest.CaptureFixture) -> Said:
    return Said(capsys)


# ---- beginning and end -----------------------------------------------------------------------------------------------


def test_a_lesson_brings_the_cluster_up_and_says_so(started):
    assert "No cluster runs yet: the embedded one is started now" in started
    lines = started.splitlines()
    backend = next(line for line in lines if line.startswith("Backend"))
    assert "embedded: Kubernetes 1.36.3, KubeRay 1.6.2, Ray 2.60.0; 3 Kubernetes nodes with 48 of 48 CPUs" in backend
    assert "4 of 4 GPUs free" in backend
    assert "✔ deleted the namespace lesson-03" in started


def test_five_lines_and_what_the_kernel_gets(started, said, home):
    lab = Lab.start("03")
    lines = str(said).splitlines()[-5:]
    assert [line.split()[0] for line in lines] == ["Lesson", "Backend", "Machine", "Creates", "Log"]
    assert lab.namespace == "lesson-03"
    kubeconfig = Path(os.environ["KUBECONFIG"])
    assert kubeconfig.is_relative_to(state_dir()) and kubeconfig.stat().st_mode & 0o777 == 0o600
    where = Path(shutil.which("kubectl"))
    assert where.is_symlink() and list(where.parent.iterdir()) == [where]
    assert kubectl("config", "view", "--minify", "-o", "jsonpath={..namespace}") == "lesson-03"
    kubectl("get", "pods")
    assert not (home / ".kube").exists()
    lab._close()


def test_clean_up_twice_and_what_comes_after(new_lab, said):
    new_lab.apply(pod("one"))
    new_lab.clean_up()
    new_lab.clean_up()
    told = str(said)
    assert "✔ deleted the namespace lesson-03 (1 Pod)" in told and "✔ nothing is left to clean up" in told
    assert "lesson-03" not in kubectl("get", "namespaces", "-o", "name")
    for call in (
        lambda: new_lab.apply(pod("one")),
        lambda: new_lab.wait("pod/one"),
        new_lab.pods,
        lambda: new_lab.forward("pod/one", 1),
    ):
        with pytest.raises(CourseError, match=r"This lab has been cleaned up\. Run the notebook again"):
            call()


def test_a_second_start_in_one_kernel(new_lab, said):
    new_lab.apply(pod("one"))
    again = Lab.start("03")
    assert "This notebook's earlier run of lesson 03: ✔ deleted the namespace lesson-03 (1 Pod)" in str(said)
    assert not len(again.pods())
    assert "Client Version" in kubectl("version", "--client")  # a link, found by way of itself the second time
    again._close()


def test_a_second_notebook_at_the_same_time(new_lab, said, run_program):
    new_lab.apply(pod("one"))
    other = run_program("""
lab = Lab.start("03")
tell(pods=[row.name for row in lab.pods()])
lab.clean_up()
""")
    assert other.facts()["pods"] == ["one"]
    assert other.end() == ""
    told = "".join([*other.said, other.process.stdout.read() if not other.process.stdout.closed else ""])
    assert "Another notebook of this lesson is at work in lesson-03: both see the same objects." in told
    assert [row.name for row in new_lab.pods()] == ["one"]  # the other's clean_up has left it
    new_lab.clean_up()
    assert "✔ deleted the namespace lesson-03" in str(said)


def test_a_kernel_that_was_killed(run_program, said):
    first = run_program(f"""
lab = Lab.start("03")
lab.apply({pod("one")!r})
tell()
input()
""")
    first.facts()
    first.kill()
    lab = Lab.start("03")
    assert "An earlier run left the namespace lesson-03 (1 Pod): removed." in str(said)
    assert not len(lab.pods())
    lab._close()


def test_a_kernel_that_ends_without_clean_up(run_program, cluster):
    first = run_program(f"""
lab = Lab.start("03")
lab.apply({pod("one")!r})
tell()
""")
    first.facts()
    assert first.end() == ""
    left = cluster.kubectl("get", "namespace", "lesson-03", "--ignore-not-found", "-o", "jsonpath={.status.phase}")
    assert left in ("", "Terminating")


def test_a_namespace_of_somebody_else(new_lab, cluster):
    new_lab._close()
    cluster.kubectl("create", "namespace", "lesson-03")
    try:
        with pytest.raises(CourseError, match="has a namespace lesson-03 that is not the course's"):
            Lab.start("03")
    finally:
        cluster.kubectl("delete", "namespace", "lesson-03", "--timeout=60s")


def test_a_namespace_that_hangs_on_a_finalizer(new_lab, said, cluster, monkeypatch):
    monkeypatch.setattr(cleanup, "PATIENCE_S", 3.0)
    job = "apiVersion: ray.io/v1\nkind: RayJob\nmetadata: {name: hung, finalizers: [ray.io/rayjob-finalizer]}\nspec:\n"
    cluster_spec = sleeper("x").partition("spec:\n")[2].replace("\n", "\n  ").rstrip()
    job += (
        "  entrypoint: 'true'\n  suspend: true\n  shutdownAfterJobFinishes: true\n  rayClusterSpec:\n  " + cluster_spec
    )
    with stopped(cluster, "kuberay-operator"):
        new_lab.apply(job)
        new_lab.clean_up()
    told = str(said)
    assert "rayjob/hung hung on its finalizer ray.io/rayjob-finalizer, which its controller had not taken off" in told
    assert "lesson-03" not in cluster.kubectl("get", "namespaces", "-o", "name")
    wait_until(cluster.is_ready, 120, what="the cluster")


# ---- apply -----------------------------------------------------------------------------------------------------------


def test_apply_says_what_is_new_and_what_stays_as_it_is(lab, said):
    lab.apply(sleeper("demo"))
    lab.wait("raycluster/demo", 60)
    (before,) = lab.pods("raycluster/demo")
    lab.apply(sleeper("demo"))
    told = str(said)
    assert "✔ raycluster/demo created" in told and told.endswith("✔ raycluster/demo unchanged\n")
    assert "✔ raycluster/demo is settled: the head and 0 worker Pods are ready" in told
    bigger = sleeper("demo").replace('cpu: "1"', 'cpu: "2"')
    lab.apply(bigger)
    remark = f"accepted, but running Pods stay as they are ({before.name}); apply(…, replace=True) replaces them"
    assert str(said).endswith(f"✔ raycluster/demo changed\n  · {remark}\n")
    lab.apply(bigger)
    assert str(said).endswith(f"✔ raycluster/demo unchanged\n  · {remark}\n")  # it holds still
    lab.apply(bigger, replace=True)
    assert str(said).endswith(f"  · deleted, so that KubeRay makes them anew: {before.name}\n")
    lab.wait("raycluster/demo", 60)
    (after,) = lab.pods("raycluster/demo")
    assert after.name != before.name
    assert lab.get(f"pod/{after.name}")["spec"]["containers"][0]["resources"]["limits"]["cpu"] == "2"
    lab.apply(bigger.replace('cpu: "2"', "cpu: 2000m"))
    assert "stay as they are" not in str(said).partition(after.name)[2]  # the same amount


def test_what_is_taken_out_of_a_template(lab, said):
    lab.apply(sleeper("demo"))
    lab.wait("raycluster/demo", 60)
    lab.apply(sleeper("demo").replace("          env: [{name: COLOUR, value: red}]\n", ""))
    assert "running Pods stay as they are" in str(said)


def test_fields_of_another_manager_are_taken_over_with_a_sentence(lab, said):
    lab.apply(sleeper("demo"))
    kubectl("patch", "raycluster", "demo", "--type=merge", '-p={"spec": {"rayVersion": "2.59.0"}}')
    lab.apply(sleeper("demo"))
    assert "  · spec.rayVersion was last written by kubectl-patch, and is the manifest's now" in str(said)
    assert lab.get("raycluster/demo")["spec"]["rayVersion"] == "2.60.0"


def test_replicas_are_the_autoscalers(lab, said):
    group = "  workerGroupSpecs:\n  - groupName: cpu\n    replicas: 1\n    maxReplicas: 5\n"
    group += "    template: {spec: {containers: [{name: w, image: 'rayproject/ray:2.60.0'}]}}\n"
    on = "spec:\n  enableInTreeAutoscaling: true\n  suspend: true\n  ray"  # so that no autoscaler runs
    text = sleeper("demo").replace("spec:\n  ray", on, 1) + group
    lab.apply(text)
    scale = '[{"op": "replace", "path": "/spec/workerGroupSpecs/0/replicas", "value": 3}]'
    kubectl("patch", "raycluster", "demo", "--type=json", f"-p={scale}")  # as the autoscaler does
    lab.apply(text.replace("maxReplicas: 5", "maxReplicas: 6"))
    (found,) = lab.get("raycluster/demo")["spec"]["workerGroupSpecs"]
    assert (found["replicas"], found["maxReplicas"]) == (3, 6)
    assert "✔ raycluster/demo changed\n  · `replicas` of group cpu stays 3, not 1: the autoscaler is on" in str(said)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            sleeper("demo").replace('rayVersion: "2.60.0"', 'rayVersion: "2.9.0"'),
            r"wants Ray 2\.9\.0 \(rayVersion\), and this cluster has Ray 2\.60\.0 only: the host is the image\.",
        ),
        (sleeper("demo").replace("2.60.0-py311", "2.9.0"), r"wants Ray 2\.9\.0 \(the image rayproject/ray:2\.9\.0\)"),
        (sleeper("x" * 60), "has a name of 60 characters, and KubeRay takes at most 53"),
        (sleeper("demo").replace("headGroupSpec", "headGroup"), r"\.spec\.headGroup: there is no such field"),
        (
            sleeper("demo").replace("limits:", "limitz:"),
            r"containers\[name=\"ray-head\"\]\.resources\.limitz: there is no",
        ),
        (sleeper("demo").replace("rayStartParams: {}", "rayStartParams: {num-cpus: 0}"), "num-cpus.*string"),
        (pod("demo").replace("name: demo,", "name: demo, namespace: default,"), "names the namespace default"),
        ("apiVersion: v1\nkind: Namespace\nmetadata: {name: x}\n", "namespace/x lies in no namespace"),
        ("apiVersion: v1\nkind: Nope\nmetadata: {name: x}\n", "The cluster knows no kind Nope in v1"),
        (
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: {a: 1}\n",
            r"\.data\.a: expected string, got 1\.",
        ),
    ],
)
def test_what_is_refused(lab, text, words):
    with pytest.raises(CourseError, match=words):
        lab.apply(pod("first") + "---\n" + text)
    assert not len(lab.pods())  # the object before it was not applied either


# ---- wait ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            pod("much", "true") + "    resources: {requests: {memory: 900Gi}}\n",
            "no Kubernetes node takes it: 0/3 nodes are available.*FailedScheduling on pod/much",
        ),
        (pod("strange").replace("python:3.11", "none.invalid/x:1"), "waits: (ErrImagePull|ImagePullBackOff)"),
        # without the probe it would be ready for the moment that it runs
        (
            pod("broken", "exit 3") + "    readinessProbe: {exec: {command: ['false']}}\n",
            "CrashLoopBackOff; the last time it ended with status 3|main ended with status 3",
        ),
    ],
)
def test_a_pod_that_does_not_become_ready(lab, text, words):
    lab.apply(text)
    first = words.partition(".*")[0]
    wait_until(lambda: re.search(first, str(lab.pods())), 60, what="the Pod to come so far", every_s=0.5)
    with pytest.raises(CourseError, match=words) as failed:
        lab.wait(f"pod/{text.partition('name: ')[2].partition(',')[0]}", 3)
    assert failed.value.what.startswith("Waited 3 s for pod/") and "`lab.events(" in failed.value.fix


def test_a_worker_that_fits_nowhere(lab):
    group = (
        "  workerGroupSpecs:\n  - groupName: big\n    replicas: 1\n    template: {spec: {containers: [{name: w, image: "
    )
    group += "'rayproject/ray:2.60.0', resources: {requests: {memory: 900Gi}}}]}}\n"
    lab.apply(sleeper("demo") + group)
    with pytest.raises(CourseError, match=r"demo-big-worker-\w+: no Kubernetes node takes it.*Insufficient memory"):
        lab.wait("raycluster/demo", 20)


def test_a_spec_that_kuberay_refuses_is_said_at_once(lab):
    one = 'rayStartParams: {num-cpus: "1"'  # a map whose last key an apply takes out becomes null, and is refused
    lab.apply(sleeper("demo").replace("rayStartParams: {", one + ", labels: a=b"))
    with pytest.raises(CourseError, match="KubeRay refuses raycluster/demo: .*labels") as refused:
        lab.wait("raycluster/demo", 300)
    assert "The API server has stored it" in refused.value.fix
    lab.apply(sleeper("demo").replace("rayStartParams: {", one))
    lab.wait("raycluster/demo", 60)


def test_what_is_deleted_while_it_is_waited_for(lab, said):
    lab.apply(pod("slow") + "    readinessProbe: {exec: {command: [test, -f, /tmp/go]}, periodSeconds: 1}\n")
    with in_background(lambda: lab.wait("pod/slow", 300)) as raised:
        wait_until(lambda: said.has("waiting for pod/slow"), 60, what="the wait to show itself")
        kubectl("delete", "pod", "slow")
    assert re.fullmatch(r"pod/slow (is being|was) deleted while it was waited for\..*", str(raised[0]))


def test_the_api_server_is_stopped_under_a_waiting_cell(lab, said, cluster):
    lab.apply(pod("slow") + "    readinessProbe: {exec: {command: [test, -f, /tmp/go]}, periodSeconds: 1}\n")
    with in_background(lambda: lab.wait("pod/slow", 300)) as raised:
        wait_until(lambda: said.has("waiting for pod/slow"), 60, what="the wait to show itself")
        with stopped(cluster, "kube-apiserver"):
            wait_until(lambda: said.has("The API server does not answer"), 60, what="the cell to notice")
        wait_until(cluster.is_ready, 120, what="the cluster")
        kubectl("exec", "slow", "--", "touch", "/tmp/go")
    assert not raised and "✔ pod/slow is ready: it runs on " in str(said)


def test_the_cluster_goes_and_comes_back_at_another_port(lab, said, cluster):
    lab.apply(pod("one"))
    before = cluster.port
    cluster.down()
    with pytest.raises(CourseError, match=r"The API server does not answer \(.*\)\. See `course status`; `course up`"):
        lab.pods()
    with socket.create_server(("127.0.0.1", before)):
        cluster.up()
        lab.wait("pod/one", 120)
        assert cluster.port != before and kubectl("get", "pods", "-o", "name") == "pod/one"


def test_what_there_is_not(lab):
    lab.apply(pod("one"))
    for call, words in {
        lambda: lab.wait("pod/two"): r"There is no pod/two\. There are: one\.",
        lambda: lab.get("raycluster/x"): r"There is no raycluster/x\. There is no RayCluster in lesson-03 yet\.",
        lambda: lab.get("pod"): '"pod" names no object. Write kind and name',
        lambda: lab.wait("configmap/kube-root-ca.crt"): "does not know when configmap/kube-root-ca.crt has settled",
        lambda: lab.run_on_head("x", "1"): "There is no raycluster/x",
        lambda: lab.forward("pod/two", 1): "There is no pod/two",
    }.items():
        with pytest.raises(CourseError, match=words):
            call()


def test_events_of_what_is_gone(lab):
    lab.apply(sleeper("demo"))
    lab.wait("raycluster/demo", 60)
    (first,) = lab.pods("raycluster/demo")
    lab.delete(f"pod/{first.name}")
    lab.wait("raycluster/demo", 60)
    told = {(row.reason, row.on) for row in lab.events("raycluster/demo")}
    assert {("CreatedHeadPod", "raycluster/demo"), ("Started", f"pod/{first.name}")} <= told
    assert "CreatedHeadPod" in lab.events("raycluster/demo")._repr_html_()


# ---- deleting --------------------------------------------------------------------------------------------------------


def test_delete_waits_for_all_that_it_owns(lab, said):
    lab.apply(sleeper("demo"))
    lab.wait("raycluster/demo", 60)
    lab.delete("raycluster/demo")
    assert not len(lab.pods())
    lab.delete("raycluster/demo")
    assert "✔ raycluster/demo deleted\n" in str(said) and "· there is no raycluster/demo, so nothing is deleted" in str(
        said
    )


# ---- ports -----------------------------------------------------------------------------------------------------------


def read(url: str) -> str:
    with urllib.request.urlopen(f"{url}/name", timeout=60) as answer:
        return answer.read().decode().strip()


def web(name: str) -> str:
    return pod(name, text=WEB).replace("labels: {", "labels: {kind: web, ")


def test_forward_survives_its_pod_and_says_so(lab, said):
    lab.apply(web("web-1") + "---" + SERVICE)
    lab.wait("pod/web-1", 60)
    with lab.forward("svc/web", 8877) as port:
        assert port.url == f"http://127.0.0.1:{port.port}" and read(port.url) == "web-1"
        lab.apply(web("web-2"))
        lab.wait("pod/web-2", 60)
        lab.delete("pod/web-1")
        assert read(port.url) == "web-2"
        assert "· service/web port 8877 leads to web-2 now; web-1 was replaced" in str(said)
    kubeconfig = str(lab._kubernetes.kubeconfig)
    assert not [line for line in processes_of(kubeconfig) if "port-forward" in line]  # kubectl has ended
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port.port), timeout=5)


def test_a_port_that_is_taken_and_ports_that_there_are_not(lab, said):
    lab.apply(web("web-1") + "---" + SERVICE)
    lab.wait("pod/web-1", 60)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        lab.apply(SERVICE.replace("8877", str(number)))
        with lab.forward("svc/web", number) as port:
            assert port.port != number and read(port.url) == "web-1"
    assert f"· port {number} of this machine is taken, so service/web has port {port.port} here" in str(said)
    with pytest.raises(CourseError, match=rf"service/web has no port 80\. Its ports are: {number} \(no name\)\."):
        lab.forward("svc/web", 80)
    lab.delete("pod/web-1")
    with pytest.raises(CourseError, match=r"No Pod of service/web is ready; there are: none"):
        lab.forward("svc/web", number)


def test_a_forward_ends_with_a_killed_kernel(run_program):
    program = run_program(f"""
import urllib.request
lab = Lab.start("03")
lab.apply({web("web-1")!r})
lab.wait("pod/web-1", 60)
port = lab.forward("pod/web-1", 8000)
urllib.request.urlopen(port.url)
tell(kubeconfig=str(lab._kubernetes.kubeconfig))
input()
""")
    kubeconfig = program.facts()["kubeconfig"]
    assert any("port-forward" in line for line in processes_of(kubeconfig))
    program.kill()
    wait_until(lambda: not [p for p in processes_of(kubeconfig) if "port-forward" in p], 10, what="kubectl to end")


# ---- a real Ray ------------------------------------------------------------------------------------------------------

RAY = """
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: demo}
spec:
  rayVersion: "2.60.0"
  headGroupSpec:
    rayStartParams: {num-cpus: "2"}
    template:
      spec:
        terminationGracePeriodSeconds: 1
        containers:
        - name: ray-head
          image: rayproject/ray:2.60.0-py311
          resources: {limits: {cpu: "2", memory: 4Gi}, requests: {cpu: "2", memory: 4Gi}}
"""


def test_a_rayservice_is_waited_for_until_it_answers(lab):
    lab.apply((Path(__file__).parent / "kuberay" / "service.yaml").read_text())
    lab.wait("rayservice/greeter", 400)
    address = lab.forward("svc/greeter-serve-svc", versions.PORT_SERVE)
    with urllib.request.urlopen(f"{address.url}/?name=Ada", timeout=60) as answer:
        assert answer.read() == b"Hello, Ada"
    lab.delete("rayservice/greeter")


def test_python_on_the_head_and_a_job(lab, said, tmp_path):
    lab.apply(RAY)
    lab.wait("raycluster/demo", 400)

    def where(word, times=1):
        import socket

        import ray

        print("on the way")

        @ray.remote
        def host():
            return socket.gethostname()

        return {"word": word * times, "host": ray.get(host.remote()), "cpus": ray.cluster_resources()["CPU"]}

    (head,) = lab.pods("raycluster/demo")
    assert lab.run_on_head("demo", where, "ab", times=2) == {"word": "abab", "host": head.name, "cpus": 2.0}
    assert re.search("on the way *\n", str(said))  # it is written over a line that said how long it takes
    printed = lab.run_on_head("demo", "import sys; print(sys.argv[1:])\nprint()", 1, "b")
    assert printed == repr(printed) == "['1', 'b']\n\n"

    def fails():
        raise KeyError("a thing")

    with pytest.raises(KeyError, match="a thing") as raised:
        lab.run_on_head("demo", fails)
    assert "On the head:" in raised.value.__notes__[0]
    with pytest.raises(CourseError, match="`where` uses something that cannot be sent to the head"):
        lab.run_on_head("demo", where, threading.Lock())
    with pytest.raises(CourseError, match="cannot leave the head"):
        lab.run_on_head("demo", lambda: __import__("threading").Lock())
    with pytest.raises(CourseError, match="took longer than 3 s, and was ended"):
        lab.run_on_head("demo", "import time; time.sleep(4731)", timeout_s=3)
    with pytest.raises(CourseError, match="was ended by SystemExit: 3"):
        lab.run_on_head("demo", "import sys; sys.exit(3)")
    ended = "import os; os.system('true'); os._exit(1)"
    with pytest.raises(CourseError, match="the text did not end on demo-head"):
        lab.run_on_head("demo", ended)

    job = lab.submit("demo", "python jobs/where.py")
    assert job.wait(200) == job.status == "SUCCEEDED" and job.logs().strip()
    (tmp_path / "fails.py").write_text("raise SystemExit('for a reason')")
    failing = lab.submit("demo", "python fails.py", working_dir=tmp_path)
    assert failing.wait(200) == "FAILED" and "for a reason" in failing.logs()
    assert "✘ `python fails.py` FAILED" in str(said)

    begun = "import time; open('/tmp/begun', 'w').close(); time.sleep(4732)"
    with in_background(lambda: lab.run_on_head("demo", begun)) as broken:
        look = "import os; print(os.path.exists('/tmp/begun'))"
        wait_until(lambda: lab.run_on_head("demo", look).strip() == "True", 60, what="the program to begin")
        kubectl("delete", "pod", head.name)
    assert "the text did not end on demo-head" in str(broken[0])
