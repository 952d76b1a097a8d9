"""critest, the validation suite of the container runtime interface, against the process runtime.

A machine with a runtime, without kubelet or control plane; critest runs on it as the kubelet would. Images are
commands of this host: where critest wants busybox, busybox is first on the container's PATH. What is left out is named
in critest_left_out.yaml, with its reason; all else must pass.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import select
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from helpers.cluster.embedded import control, machines, tools
from helpers.cluster.embedded.boot import Boot, Component, DeclaredMachine
from helpers.cluster.embedded.layout import NODE_NETWORK, POD_GATEWAY, RUN
from helpers.cluster.embedded.network import HAIRPIN_TABLE
from helpers.state import course_root
from helpers.wait import wait_until

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(sys.platform != "linux", reason="containers need Linux"),
    pytest.mark.skipif(os.geteuid() != 0, reason="critest sets users and mounts as root"),
]

MACHINE = "critest"
LIMIT_S = 900
E2E, STAGING = "registry.k8s.io/e2e-test-images/", "gcr.io/k8s-staging-cri-tools/"

LEFT_OUT = {
    name: reason
    for reason, names in yaml.safe_load((Path(__file__).parent / "critest_left_out.yaml").read_text()).items()
    for name in names
}
PREFIX = "[k8s.io] "  # of all specs


@dataclass(frozen=True)
class Outcome:
    """What critest said: state ("passed", "failed", "skipped", …) and reason of each spec by its full name."""

    states: dict[str, str]
    reasons: dict[str, str]
    output: str


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    # not pytest's own temporary directory, which other users may not pass through
    path = Path(tempfile.mkdtemp(prefix="critest-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def outcome(directory: Path) -> Iterator[Outcome]:
    root = directory / "root"
    for part in (root, root / "logs", root / "runtime", directory / "tmp"):
        part.mkdir()
    plan = write_files(directory, root)
    start(root)

    def done() -> bool:
        with control.connect(root, 10) as connection:
            (machine,) = control.ask(connection, op="status")["machines"]
        if machine["state"] == "lost":
            pytest.fail(f"the machine is lost: {(root / 'logs' / f'{MACHINE}.init.log').read_text()}")
        return Path(plan["done"]).exists()

    try:
        wait_until(done, LIMIT_S, what="critest", every_s=1)
        yield read_report(directory)
    finally:
        with control.connect(root, 60) as connection, open(os.pidfd_open(control.supervisor_pid(connection))) as ended:
            with contextlib.suppress(OSError):  # it may end before it has answered
                control.ask(connection, op="stop")
            select.select([ended], [], [], 60)
        machines.remove_cgroups(directory.name)


def write_files(directory: Path, root: Path) -> dict:
    """Everything the machine reads; returns critest's plan."""
    run, disk = RUN / MACHINE, root / "runtime"
    skips = (f"-ginkgo.skip={re.escape(PREFIX + name)}$" for name in LEFT_OUT)
    plan = {
        "argv": [
            str(tools.binary("critest")), "-runtime-endpoint", f"unix://{run}/cri.sock", "-ginkgo.no-color",
            f"-ginkgo.json-report={directory}/report.json", *skips,
        ],
        "socket": f"{run}/cri.sock", "descriptor": str(descriptor()), "pod_network": "10.88.1.0/24",
        "output": str(directory / "output"), "done": str(directory / "done"), "tmp": str(directory / "tmp"),
    }  # fmt: skip
    runtime = {
        "socket": f"{run}/cri.sock", "init_socket": f"{run}/init.sock", "disk": str(disk),
        "descriptor": str(descriptor()), "machine": MACHINE,
        # a spec wants a pull to take longer than a millisecond
        "images": images(directory), "pull_delay_s": 0.05, "pod_gateway": str(POD_GATEWAY),
        "hairpin_table": HAIRPIN_TABLE,
    }  # fmt: skip
    python = [sys.executable, "-m"]
    services = [
        {"name": "runtime", "argv": [*python, "helpers.cluster.embedded.runtime", str(root / "runtime.json")]},
        {"name": "critest", "argv": [*python, "tests.live.critest_service", str(root / "plan.json")]},
    ]
    services[1]["after"] = f"{run}/cri.sock"
    machine = {
        "name": MACHINE, "hostname": MACHINE, "run": str(run), "disk": str(disk), "socket": f"{run}/init.sock",
        "cgroup": f"ray-course/{directory.name}/{MACHINE}",
        "services": [one | {"env": environment(), "log": f"{root}/logs/{one['name']}.log"} for one in services],
        "view": {"hidden": [str(root)], "visible": [str(directory / "bin"), sys.prefix, sys.base_prefix]},
    }  # fmt: skip
    # a supervisor wants a component, after which machines boot
    boot = Boot(
        root=root, env=environment(), nft=shutil.which("nft") or "nft",
        components=(Component("nothing", (shutil.which("sleep"), "infinity")),), machines_after="nothing",
        init=(*python, "helpers.cluster.embedded.runtime.init"),
        machines=(DeclaredMachine(MACHINE, NODE_NETWORK[11], root / "machine.json"),),
    )  # fmt: skip
    for name, data in {"plan": plan, "runtime": runtime, "machine": machine}.items():
        (root / f"{name}.json").write_text(json.dumps(data))
    (root / "boot.json").write_text(boot.as_text())
    return plan


def descriptor() -> Path:
    return tools.binary("kubelet").parent / "cri.pb"


def environment() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": "/", "LANG": "C.UTF-8", "PYTHONPATH": str(course_root())}


def start(root: Path) -> None:
    """Start the supervisor, in namespaces of its own."""
    reader, writer = os.pipe()
    with open(root / "lock", "w") as lock, open(root / "logs" / "supervisor.log", "w") as log:
        argv = [sys.executable, "-m", "helpers.cluster.embedded.supervisor", str(root / "boot.json")]
        process = subprocess.Popen(
            [*argv, str(lock.fileno()), str(writer)], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            env=environment(), pass_fds=(lock.fileno(), writer), start_new_session=True,
        )  # fmt: skip
    os.close(writer)
    with open(reader) as report:
        assert report.read() == "[]"
    process.wait()  # it has split off what goes on


def read_report(directory: Path) -> Outcome:
    output = (directory / "output").read_text()
    assert (directory / "report.json").exists(), output
    (report,) = json.loads((directory / "report.json").read_text())
    specs = [spec for spec in report["SpecReports"] if spec["LeafNodeType"] == "It"]
    names = [" ".join([*spec["ContainerHierarchyTexts"], spec["LeafNodeText"]]).removeprefix(PREFIX) for spec in specs]
    by_name = {name: spec for name, spec in zip(names, specs, strict=True) if "benchmark" not in name}
    reasons = {name: spec.get("Failure", {}).get("Message", "") for name, spec in by_name.items()}
    return Outcome({name: spec["State"] for name, spec in by_name.items()}, reasons, output)


# ---- what critest finds ----------------------------------------------------------------------------------------------


def images(directory: Path) -> list[dict]:
    """critest's images, as commands of this host."""
    bin_, www = directory / "bin", directory / "bin" / "www"
    www.mkdir(parents=True)
    (www / "index.html").write_text("hello\n")
    busybox = shutil.which("busybox") or pytest.fail("busybox is missing: run `sudo apt-get install -y busybox`")
    subprocess.run([busybox, "--install", "-s", bin_], check=True)
    # a set-user-id program, as the image nonewprivs has one
    shutil.copy(shutil.which("id"), bin_ / "id-of-root")
    (bin_ / "id-of-root").chmod(0o4755)
    (bin_ / "nginx").write_text(
        "#!/bin/sh\n"
        "echo $$ > /var/run/nginx.pid\n"
        "trap 'exit 0' TERM\n"
        f"busybox httpd -f -p 80 -h {www} &\n"
        "wait\n"
    )  # fmt: skip
    (bin_ / "nginx").chmod(0o755)
    path = {"PATH": f"{bin_}:/usr/sbin:/usr/bin:/sbin:/bin"}
    arch = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    serve = ["busybox", "httpd", "-f", "-h", str(www), "-p"]
    commands = {
        f"{E2E}busybox:*": ["sh"],
        f"{E2E}nginx:*": ["nginx", "master process"],
        f"{E2E}httpd:*": ["sh", "-c", f"echo httpd; exec {' '.join(serve)} 80"],
        f"{E2E}nonewprivs:*": ["sh", "-c", "echo Effective uid: $(id-of-root -u)"],
        f"{STAGING}hostnet-nginx-{arch}:*": [*serve, "12003"],
        # what one line of the table stands for is one image
        "*/pause:*": ["sleep", "infinity"],
        **{f"{STAGING}test-image-{name}:*": ["sleep", "infinity"] for name in ("latest", "tags", "1", "2", "3")},
        **{f"{STAGING}test-image-tag:{tag}": ["sleep", "infinity"] for tag in ("test", "all")},
        f"{STAGING}test-image-digest:*": ["sleep", "infinity"],
    }
    return [{"name": name, "env": path, "command": command} for name, command in commands.items()]


def test_what_is_left_out_is_there(outcome: Outcome):
    """So that the list says nothing of a suite that has moved on."""
    assert set(LEFT_OUT) <= set(outcome.states)


def test_all_else_passes(outcome: Outcome, capsys: pytest.CaptureFixture[str]):
    counts = Counter(outcome.states.values())
    with capsys.disabled():
        print(f"\ncritest: {counts['passed']} passed, {len(LEFT_OUT)} left out, {len(outcome.states)} in all")
    bad = {name: state for name, state in outcome.states.items() if name not in LEFT_OUT and state != "passed"}
    assert not bad, "\n".join(f"{state}: {name}: {outcome.reasons[name]}" for name, state in bad.items())
    assert counts["passed"] >= 90
