"""KubeRay's own end-to-end tests: built from its module as it is, and run inside the cluster, one after the other."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import yaml

from helpers import versions
from helpers.cluster.embedded import controlplane, tools
from tests import kuberay_module
from tests.live.embedded import Cluster
from tests.soak.kills import inside

LEFT_OUT = {
    name: reason
    for reason, names in yaml.safe_load((Path(__file__).parent / "kuberay_left_out.yaml").read_text()).items()
    for name in names
}
ONE_TEST_S = 20 * 60
# As upstream's own runs, but for a busy computer of two cores: Ray's start takes longer here than on a large one
TIMEOUTS = {"SHORT": "2m", "MEDIUM": "4m", "LONG": "6m"}
RESULT = re.compile(r"^( *)--- (PASS|FAIL|SKIP): (\S+) \(([\d.]+)s\)", re.M)


@dataclass(frozen=True)
class Outcome:
    """How one test, or a part of one, ended: `PASS`, `FAIL`, `SKIP`, or `NONE` if it did not say."""

    name: str
    verdict: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.verdict} {self.name} {self.seconds:.0f} s"


@dataclass(frozen=True)
class Suite:
    """A package of tests, compiled.

    Attributes:
        package: its name, such as `e2eautoscaler`.
        binary: the compiled tests.
        sources: its folder, with files that the tests read.
    """

    package: str
    binary: Path
    sources: Path

    def tests(self) -> list[str]:
        """The names of its tests that are to be run."""
        found = [name for file in sorted(self.sources.glob("*_test.go")) for name in
                 re.findall(r"^func (Test\w+)\(", file.read_text(), re.M)]  # fmt: skip
        return [name for name in found if f"{self.package}/{name}" not in LEFT_OUT]

    def run(self, cluster: Cluster, test: str, logs: Path) -> list[Outcome]:
        """Run one test without its parts that are left out; its output, and what it kept of Pods, are below `logs`."""
        logs.mkdir(parents=True, exist_ok=True)
        env = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
        env |= {
            "PATH": os.pathsep.join([str(tools.binary("kubectl").parent), os.environ["PATH"]]),
            "KUBECONFIG": str(controlplane.kubeconfig(cluster.layout.inside, controlplane.ADMIN)),
            "KUBERAY_TEST_OUTPUT_DIR": str(logs),
            "KUBERAY_TEST_RAY_IMAGE": f"rayproject/ray:{versions.RAY}",
            "KUBERAY_TEST_RAY_VERSION": versions.RAY,
            **{f"KUBERAY_TEST_TIMEOUT_{length}": limit for length, limit in TIMEOUTS.items()},
        }
        parts = [name.split("/")[2] for name in LEFT_OUT if name.startswith(f"{self.package}/{test}/")]
        options = ["-test.v", f"-test.run=^{test}$", f"-test.timeout={ONE_TEST_S}s"]
        options += [f"-test.skip=^{test}$/^({'|'.join(map(re.escape, parts))})$"] if parts else []
        # inside, a Service has its name and address: KubeRay's tests ask some of them without a port-forward
        enter = [*inside(cluster, "net", "mount"), "env", "-C", str(self.sources)]
        with open(logs / f"{test}.log", "w") as output:
            process = subprocess.Popen(
                [*enter, str(self.binary), *options], env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(ONE_TEST_S + 60)
            process.kill()
            process.wait()
        return read_outcomes(test, (logs / f"{test}.log").read_text(errors="replace"))


def read_outcomes(test: str, output: str) -> list[Outcome]:
    """What the output of a test says of it and of its parts."""
    found = [Outcome(name, verdict, float(took)) for _, verdict, name, took in RESULT.findall(output)]
    return found if any(one.name == test for one in found) else [*found, Outcome(test, "NONE", 0)]


def build(package: str, directory: Path) -> Suite:
    """Compile a package of KubeRay's tests where its sources lie; the first takes minutes, the others seconds."""
    temporary = directory / "temporary"
    module = kuberay_module.sources(temporary)
    binary = directory / f"{package}.test"
    words = ("test", "-c", "-vet=off", "-o", str(binary), f"./test/{package}")
    kuberay_module.go(*words, cwd=module, temporary=temporary)
    return Suite(package, binary, module / "test" / package)
