"""The node contract bites: with a feature of the runtime switched off, the case of that feature fails.

Each mutant (see runtime_mutants.py) is a machine that is added to a cluster for its case only; on the machine that is
always there, which is sound, the same case passes.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from helpers.cluster.embedded import cluster, machines, tools
from helpers.cluster.embedded.cluster import EmbeddedCluster
from helpers.cluster.embedded.layout import Layout, Machine
from tests.live.contract import CASES, Cluster, load, run_case
from tests.live.runtime_mutants import MUTANTS

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(sys.platform != "linux", reason="the embedded cluster needs Linux"),
    pytest.mark.skipif(os.geteuid() != 0, reason="some features need root"),
]

SOUND = "sound"
AT_ONCE = 3
MUTANT_LIMIT_S = 20.0  # what is switched off never comes; a sound machine has the time that the case gives


@pytest.fixture(scope="module")
def mutants() -> Iterator[EmbeddedCluster]:
    """A cluster in which a machine's name says what is wrong with it."""
    directory = Path(tempfile.mkdtemp(prefix="course-mutants-"))
    directory.chmod(0o755)
    ours = (sys.executable, "-m", "tests.live.runtime_mutants")
    init_spec, boot = machines.Writer._init_spec, cluster.Boot

    def mutated_spec(writer: machines.Writer, name: str) -> dict:
        spec = init_spec(writer, name)
        runtime = spec["services"][0]
        assert runtime["name"] == "runtime"
        runtime["argv"] = [*ours, "runtime", runtime["argv"][-1]]
        return spec

    made = EmbeddedCluster(Layout(directory / "embedded"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machines.Writer, "_init_spec", mutated_spec)
        patch.setattr(cluster, "Boot", lambda **fields: boot(**fields | {"init": (*ours, "init")}))
        try:
            made.up([Machine(SOUND)], kuberay_wanted=False)
            yield made
        finally:
            made.down(wipe=True)
            shutil.rmtree(directory)


@pytest.fixture(scope="module")
def outcomes(mutants: EmbeddedCluster, request: pytest.FixtureRequest) -> Iterator[dict[str, Future]]:
    """What came of the mutants of this run: the error of its case, and None from the sound machine."""
    parameters = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    names = [parameter["mutant"] for parameter in parameters if parameter.get("mutant") in MUTANTS]
    contract = Cluster(mutants.layout.kubeconfig, str(tools.binary("kubectl")))
    one_by_one = threading.Lock()

    def tried(name: str) -> str:
        case = load(CASES / f"{MUTANTS[name].case}.yaml")
        run_case(contract, case, on=SOUND)
        with one_by_one:
            mutants.add_machine(Machine(name))
        try:
            run_case(contract, case, on=name, limit_s=MUTANT_LIMIT_S)
        except AssertionError as error:
            return str(error)
        finally:
            with one_by_one:
                mutants.remove_machine(name)
            contract.must("delete", "node", name)
        return ""

    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        yield {name: pool.submit(tried, name) for name in names}
    finally:
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant(outcomes: dict[str, Future], mutant: str):
    said = outcomes[mutant].result()
    assert said, f"the case {MUTANTS[mutant].case} does not notice"
    # the first line: after it comes all that the API shows
    assert re.search(MUTANTS[mutant].seen, said.splitlines()[0]), said
