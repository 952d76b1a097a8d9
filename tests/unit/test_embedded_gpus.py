"""Real GPUs of the embedded cluster, without one: a stand-in nvidia-smi, and files of a driver that is not there."""

from __future__ import annotations

import ctypes
import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers.cluster import backend as door
from helpers.cluster.embedded import gpus, machines
from helpers.cluster.embedded.backend import Embedded
from helpers.cluster.embedded.cluster import EmbeddedCluster
from helpers.cluster.embedded.gpus import Gpu
from helpers.cluster.embedded.layout import DEFAULT_MACHINES, Layout, Machine, machines_with
from helpers.cluster.embedded.runtime import spec, unsupported
from helpers.cluster.embedded.runtime.cri import Refused
from helpers.cluster.embedded.status import Component, Status
from helpers.errors import CourseError
from helpers.state import course_root
from tests.gpu import check, cuda

A, B, C = (f"GPU-{letter * 8}-0000-1111-2222-333333333333" for letter in "abc")
H200 = "NVIDIA H200"
TWO = f"0, {A}, {H200}, 143771, Disabled\n1, {B}, {H200}, 143771, Disabled\n"


def refusal(call: Callable[[], object]) -> str:
    """What it says; each refusal is one sentence and one on what to do."""
    with pytest.raises(CourseError) as caught:
        call()
    assert re.fullmatch(r".*[^.]\.", caught.value.what) and caught.value.fix.endswith("."), str(caught.value)
    return str(caught.value)


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a stand-in nvidia-smi on PATH, as a shell script; without it there is none."""
    folder = tmp_path / "path"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def put(script: str) -> None:
        (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "nvidia-smi").chmod(0o755)

    return put


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The driver's files: of three GPUs, whose device files are in another order than nvidia-smi lists them."""
    proc, dev = tmp_path / "proc", tmp_path / "dev"
    monkeypatch.setattr(gpus, "PROC", proc)
    monkeypatch.setattr(gpus, "DEV", dev)
    dev.mkdir()
    for number, uuid in ((1, A), (0, B), (2, C)):
        place = proc / f"0000:{number}0:00.0"
        place.mkdir(parents=True)
        (place / "information").write_text(
            f"Model: \t\t {H200}\nIRQ:   \t\t 16\nGPU UUID: \t {uuid}\nVideo BIOS: \t 96.00\nBus Type: \t PCIe\n"
            f"Bus Location: \t 0000:{number}0:00.0\nDevice Minor: \t {number}\nGPU Excluded:\t No\n"
        )
        (dev / f"nvidia{number}").touch()
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-modeset"):
        (dev / name).touch()
    return SimpleNamespace(proc=proc, dev=dev)


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """That of the learner's cluster, which is new."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv(gpus.VARIABLE, raising=False)
    return Layout.usual()


# ---- nvidia-smi ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (TWO, (Gpu(0, A, H200, 143771), Gpu(1, B, H200, 143771))),
        (f"3, {C}, Tesla T4, 15360, [N/A]\n", (Gpu(3, C, "Tesla T4", 15360),)),
        (f"0, {A}, NVIDIA GB10, [N/A], [N/A]", (Gpu(0, A, "NVIDIA GB10", 0),)),  # it uses the computer's memory
        (f"\n0, {A}, A, B and C, 1, [Not Supported]\r\n\n", (Gpu(0, A, "A, B and C", 1),)),
    ],
)
def test_what_nvidia_smi_says_is_read(text: str, found: tuple[Gpu, ...]) -> None:
    assert gpus.parse(text) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "nvidia-smi finds no GPU in this computer. Use a computer with an NVIDIA GPU, or unset COURSE_GPUS"),
        ("No devices were found\n", "nvidia-smi finds no GPU"),
        (TWO.replace("Disabled", "Enabled", 1), "The GPU 0 (NVIDIA H200) is in MIG mode"),
        (TWO.replace("Disabled", "Enabled", 1), "`sudo nvidia-smi -i 0 -mig 0`"),
        (f"0, {A}, {H200}, 143771", "nvidia-smi says of a GPU"),
        (f"0, MIG-{A[4:]}, {H200}, 143771, Disabled", "nvidia-smi says of a GPU"),
        (f"0, {A.upper()}, {H200}, 143771, Disabled", "nvidia-smi says of a GPU"),
        (f"0, {A}, {H200}, 143771 MiB, Disabled", '143771 MiB, Disabled", and "index,uuid,name,memory.total,mig'),
        (f"zero, {A}, {H200}, 143771, Disabled", "nvidia-smi says of a GPU"),
        (f"0, {A}, {H200}, 143771, maybe", "nvidia-smi says of a GPU"),
        (f"{TWO}2, [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost]", "[GPU is lost]"),
        (TWO + TWO, "once for each"),
    ],
)
def test_what_cannot_be_used_is_refused(text: str, said: str) -> None:
    assert said in refusal(lambda: gpus.parse(text))


def test_the_stand_in_is_asked_for_what_is_read(smi: Callable[[str], None]) -> None:
    smi(f'[ "$*" = "--query-gpu={gpus.FIELDS} --format=csv,noheader,nounits" ] || exit 2\nprintf "{TWO}"')
    assert [gpu.uuid for gpu in gpus.query()] == [A, B]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (None, "nvidia-smi, a program of NVIDIA's driver, cannot be run (No such file or directory). Install"),
        ("echo 'No devices were found'; exit 6", "nvidia-smi finds no GPU"),
        ("echo 'No devices were found'", "nvidia-smi finds no GPU"),
        ("echo 'NVIDIA-SMI has failed. Look.'; exit 9", "fails: NVIDIA-SMI has failed. Look. Run `nvidia-smi`"),
        ("echo 'Field \"mig.mode.current\" is not valid' >&2; echo more >&2; exit 2", "is not valid. Run"),
        ("exit 3", "fails: it gives no reason. Run `nvidia-smi`"),
        ("exec /bin/sleep 60", "did not answer within 0.2 s"),
    ],
)
def test_a_driver_that_does_not_answer(
    smi: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, script: str | None, said: str
) -> None:
    if script is not None:
        smi(script)
    if "0.2" in said:
        monkeypatch.setattr(gpus, "ASK_S", 0.2)
    assert said in refusal(gpus.query)


@pytest.mark.parametrize(("value", "kind"), [(None, ""), ("", ""), ("real", "real"), ("fake", "fake")])
def test_what_the_user_asks_for(monkeypatch: pytest.MonkeyPatch, value: str | None, kind: str) -> None:
    monkeypatch.delenv(gpus.VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(gpus.VARIABLE, value)
    assert gpus.asked() == kind


def test_anything_else_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(gpus.VARIABLE, "4")
    assert 'COURSE_GPUS is "4", and it can be real or fake. Set COURSE_GPUS=real' in refusal(gpus.asked)


# ---- what a container gets -------------------------------------------------------------------------------------------


def test_the_device_files_of_a_gpu_are_those_that_the_driver_names(driver: SimpleNamespace) -> None:
    shared = [f"{driver.dev}/{name}" for name in ("nvidiactl", "nvidia-uvm", "nvidia-modeset")]
    assert gpus.files([A, B]) == {A: [f"{driver.dev}/nvidia1", *shared], B: [f"{driver.dev}/nvidia0", *shared]}
    (driver.dev / "nvidia-modeset").unlink()
    assert gpus.files([C]) == {C: [f"{driver.dev}/nvidia2", *shared[:2]]}


def test_no_gpu_needs_no_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpus, "PROC", tmp_path / "none")
    assert gpus.files([]) == {}
    assert "does not say which device file belongs to which GPU" in refusal(lambda: gpus.files([A]))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nvidia1", "nvidia1, which a program needs to use a GPU. Run `sudo nvidia-smi` and `sudo nvidia-modprobe"),
        ("nvidiactl", "nvidiactl, which a program needs"),
        ("nvidia-uvm", "nvidia-uvm, which a program needs"),
    ],
)
def test_a_device_file_that_is_missing_is_named(driver: SimpleNamespace, name: str, said: str) -> None:
    (driver.dev / name).unlink()
    assert said in refusal(lambda: gpus.files([A]))


def test_a_gpu_that_has_gone_is_named(driver: SimpleNamespace) -> None:
    other = A.replace("a", "d")
    said = refusal(lambda: gpus.files([A, other]))
    assert f"The GPU {other} is not in this computer" in said and "`course down --wipe`" in said


def test_the_environment_is_the_kubelets() -> None:
    """The Go program is held against the same cases, in assign_test.go."""
    cases = json.loads((course_root() / "tools" / "kubelet" / "testdata" / "gpu_environment.json").read_text())
    real = [case for case in cases if case["real"]]
    assert {len(case["ids"]) for case in real} == {0, 1, 2}
    assert [gpus.environment(case["ids"]) for case in real] == [case["environment"] for case in real]


def device(path: str, target: str | None = None, permissions: str = "rw") -> SimpleNamespace:
    return SimpleNamespace(host_path=path, container_path=target or path, permissions=permissions)


@pytest.mark.parametrize("name", ["nvidia0", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"])
def test_the_runtime_gives_a_container_the_device_files_of_gpus(name: str) -> None:
    asked = [device(f"/dev/{name}")]
    unsupported.check_devices(asked)
    assert spec.devices(asked) == [{"source": f"/dev/{name}", "target": f"/dev/{name}"}]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (device("/dev/sda"), "devices (/dev/sda): containers have the usual ones of /dev, and those of their GPUs"),
        (device("/dev/nvidia"), "devices (/dev/nvidia)"),
        (device("/dev/nvidia-caps/nvidia-cap1"), "devices (/dev/nvidia-caps/nvidia-cap1)"),  # of MIG
        (device("/dev/nvidia0/../sda"), "devices (/dev/nvidia0/../sda)"),
        (device("/dev/nvidia0\n"), "devices (/dev/nvidia0"),
        (device("/dev/nvidia0", "/dev/nvidia1"), "devices (/dev/nvidia0)"),  # it would be another GPU's place
        (device("/dev/nvidia0", permissions="rwm"), "devices (/dev/nvidia0: rwm)"),
        (device("/dev/nvidia0", permissions="r"), "devices (/dev/nvidia0: r)"),
    ],
)
def test_other_devices_are_refused_by_name(asked: SimpleNamespace, said: str) -> None:
    with pytest.raises(Refused) as error:
        unsupported.check_devices([device("/dev/nvidiactl"), asked])
    assert said in error.value.text


# ---- machines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"gpus": 1, "devices": (A,)}, "The machine x is to have fake and real GPUs, which are not mixed."),
        ({"devices": (A, B, A)}, f"The GPU {A} is named twice."),
        ({"devices": ("0",)}, '"0" does not name a whole GPU.'),
        ({"devices": (A[:12],)}, "does not name a whole GPU"),  # CUDA takes a part of a UUID too
        ({"devices": (f"MIG-{A[4:]}",)}, "does not name a whole GPU"),
    ],
)
def test_a_machine_that_cannot_be(fields: dict, said: str) -> None:
    assert said in refusal(lambda: Machine("x", **fields))


def test_real_gpus_take_the_place_of_the_fake_ones() -> None:
    *others, gpu_a = machines_with((A, B))
    assert others == list(DEFAULT_MACHINES[:2])
    assert gpu_a == replace(DEFAULT_MACHINES[2], gpus=0, devices=(A, B))
    assert (gpu_a.gpu_count, gpu_a.gpu_kind) == (2, "real")
    assert [(one.gpu_count, one.gpu_kind) for one in DEFAULT_MACHINES] == [(0, ""), (0, ""), (4, "fake")]


def test_a_machine_with_real_gpus_is_read_back(driver: SimpleNamespace, layout: Layout) -> None:
    assert machines.gpus_declared(layout) == ""
    for machine in machines_with((A, B)):
        machines.declare(layout, machine)
    assert tuple(one.machine for one in machines.declared(layout).values()) == machines_with((A, B))
    assert machines.gpus_declared(layout) == "real"


def test_a_machine_that_was_declared_before_there_were_real_ones_is_read_back(layout: Layout) -> None:
    machines.declare(layout, DEFAULT_MACHINES[2])
    file = layout.machine("gpu-a").declared
    data = json.loads(file.read_text())
    del data["machine"]["devices"]
    file.write_text(json.dumps(data))
    assert machines.declare(layout, DEFAULT_MACHINES[2]).machine == DEFAULT_MACHINES[2]
    assert machines.gpus_declared(layout) == "fake"


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (
            {"gpus": 4},
            {"devices": (A,)},
            "The machine a has fake GPUs, and b is to have real ones, which are not mixed",
        ),
        (
            {"devices": (A,)},
            {"gpus": 1},
            "The machine a has real GPUs, and b is to have fake ones, which are not mixed",
        ),
        ({"devices": (A, B)}, {"devices": (C, B)}, f"The machine a has the GPU {B} already, and b is to have it too."),
        ({}, {"devices": (A.replace("a", "d"),)}, "is not in this computer"),
    ],
)
def test_what_cannot_be_declared_together(
    driver: SimpleNamespace, layout: Layout, first: dict, second: dict, said: str
) -> None:
    machines.declare(layout, Machine("a", **first))
    assert said in refusal(lambda: machines.declare(layout, Machine("b", **second)))
    assert list(machines.declared(layout)) == ["a"]


def test_gpus_of_one_kind_are_declared_together(driver: SimpleNamespace, layout: Layout) -> None:
    for name, fields in (("a", {"devices": (A,)}), ("b", {"devices": (C, B)}), ("c", {})):
        machines.declare(layout, Machine(name, **fields))
    assert list(machines.declared(layout)) == ["a", "b", "c"]


def kubelet_spec(layout: Layout, machine: Machine) -> dict:
    writer = machines.Writer(layout, lambda name: Path("/bin") / name, ("python", "-m"), {})
    writer.write(machines.declare(layout, machine))
    return json.loads(layout.machine(machine.name).kubelet_spec.read_text())


def test_the_kubelet_is_told_of_real_gpus(driver: SimpleNamespace, layout: Layout) -> None:
    told = kubelet_spec(layout, replace(machines_with((A, B))[2], labels={"group": "gpu"}))
    assert told["gpus"] == [{"id": uuid, "files": files} for uuid, files in gpus.files([A, B]).items()]
    assert told["extended"] == {"nvidia.com/gpu": 2}
    assert told["labels"] == {"group": "gpu", door.GPU_LABEL: "real"}


@pytest.mark.parametrize(
    ("machine", "extended", "labels"),
    [
        (DEFAULT_MACHINES[2], {"nvidia.com/gpu": 4}, {door.GPU_LABEL: "fake"}),
        (DEFAULT_MACHINES[0], {}, {}),
    ],
)
def test_fake_gpus_and_none_are_told_as_ever(layout: Layout, machine: Machine, extended: dict, labels: dict) -> None:
    told = kubelet_spec(layout, machine)
    assert (told["extended"], told["labels"], told["gpus"]) == (extended, labels, [])


def test_a_gpu_that_has_gone_since_is_said_before_anything_boots(driver: SimpleNamespace, layout: Layout) -> None:
    machine = machines_with((A,))[2]
    kubelet_spec(layout, machine)
    (driver.dev / "nvidia1").unlink()
    assert "nvidia1, which a program needs" in refusal(lambda: kubelet_spec(layout, machine))


# ---- COURSE_GPUS -----------------------------------------------------------------------------------------------------


@pytest.fixture
def brought_up(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> list:
    """What `course up` would declare; None: as ever."""
    wanted: list = []
    monkeypatch.setattr(EmbeddedCluster, "up", lambda self, machines_wanted=None: wanted.append(machines_wanted))
    monkeypatch.setattr(Embedded, "kubectl", lambda self: Path("/bin/kubectl"))
    return wanted


OTHER = (
    "The embedded cluster was made with {} GPUs, and COURSE_GPUS={} asks for {} ones. Run `course down --wipe`, which "
    "removes it with all that it keeps, and then `course up`; or unset COURSE_GPUS."
)


@pytest.mark.parametrize(
    ("asked", "there", "brings", "can"),
    [
        ("", "", None, "fake_gpu"),
        ("fake", "", None, "fake_gpu"),
        ("real", "", machines_with((A, B)), "real_gpu"),
        ("", "fake", None, "fake_gpu"),
        ("fake", "fake", None, "fake_gpu"),
        ("real", "fake", OTHER.format("fake", "real", "real"), "fake_gpu"),
        ("", "real", None, "real_gpu"),
        ("real", "real", None, "real_gpu"),
        ("fake", "real", OTHER.format("real", "fake", "fake"), "real_gpu"),
    ],
)
def test_what_is_asked_for_makes_a_new_cluster_and_what_is_there_stays(
    driver: SimpleNamespace, smi: Callable[[str], None], layout: Layout, brought_up: list,
    monkeypatch: pytest.MonkeyPatch, asked: str, there: str, brings: object, can: str,
) -> None:  # fmt: skip
    smi(f'printf "{TWO}"')
    for machine in {"fake": DEFAULT_MACHINES, "real": machines_with((A, B)), "": ()}[there]:
        machines.declare(layout, machine)
    monkeypatch.setenv(gpus.VARIABLE, asked)
    cluster = Embedded()
    assert cluster.capabilities() == {"kubernetes", "autoscaler", "node_drain", can}
    if isinstance(brings, str):
        assert refusal(cluster.up) == brings
        assert cluster.begin_lesson() == [brings]
        assert brought_up == []
    else:
        cluster.up()
        assert brought_up == [brings]
        assert cluster.begin_lesson() == []
    assert not door.lacking({"fake_gpu"}, cluster.capabilities())  # a lesson with fake ones runs on real ones


@pytest.mark.parametrize(
    ("script", "missing", "said"),
    [
        (None, "", "nvidia-smi, a program of NVIDIA's driver, cannot be run"),
        ("echo 'No devices were found'", "", "nvidia-smi finds no GPU"),
        (f'printf "{TWO}"', "nvidia-uvm", "nvidia-uvm, which a program needs"),
    ],
)
def test_real_ones_that_are_not_there_leave_no_trace(
    driver: SimpleNamespace, smi: Callable[[str], None], layout: Layout, brought_up: list,
    monkeypatch: pytest.MonkeyPatch, script: str | None, missing: str, said: str,
) -> None:  # fmt: skip
    if script is not None:
        smi(script)
    if missing:
        (driver.dev / missing).unlink()
    monkeypatch.setenv(gpus.VARIABLE, "real")
    assert said in refusal(Embedded().up)
    assert brought_up == [] and not layout.root.exists()
    monkeypatch.delenv(gpus.VARIABLE)
    Embedded().up()
    assert brought_up == [None]


def test_a_misspelt_wish_is_refused_where_it_counts(
    layout: Layout, brought_up: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(gpus.VARIABLE, "yes")
    for call in (Embedded().up, Embedded().capabilities):
        assert "it can be real or fake" in refusal(call)
    assert brought_up == []
    machines.declare(layout, DEFAULT_MACHINES[2])
    assert "fake_gpu" in Embedded().capabilities()  # of one that is declared, whatever the environment says


@pytest.mark.parametrize(
    ("real", "said"),
    [
        (False, "CPU, memory and GPUs of the Kubernetes nodes are declared."),
        (True, "CPU and memory of the Kubernetes nodes are declared; their GPUs are this computer's."),
    ],
)
def test_the_status_says_whether_gpus_are_declared(real: bool, said: str) -> None:
    status = Status((Component("etcd", "ready"),), Path("/kubeconfig"), has_real_gpus=real)
    for text in (str(status), status._repr_html_().replace("&#x27;", "'")):
        assert said in text and "GPU sharing" in text


# ---- tests/gpu/check.py, which needs a GPU ---------------------------------------------------------------------------


class Driver:
    """A stand-in for libcuda: it has these GPUs, and each keeps what is written to it, unless `broken`."""

    def __init__(self, *uuids: str, init: int = 0, broken: bool = False):
        self.uuids, self.init, self.broken, self.value = uuids, init, broken, 0

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *arguments: 0

    def cuInit(self, flags: int) -> int:
        return self.init

    def cuDeviceGetCount(self, count: object) -> int:
        count._obj.value = len(self.uuids)
        return 0

    def cuDeviceGet(self, found: object, number: int) -> int:
        found._obj.value = number
        return 0

    def cuDeviceGetUuid(self, found: object, number: ctypes.c_int) -> int:
        data = bytes.fromhex(self.uuids[number.value].removeprefix("GPU-").replace("-", ""))
        ctypes.memmove(found._obj, data, 16)
        return 0

    def cuMemsetD32_v2(self, place: object, value: ctypes.c_uint32, count: object) -> int:
        self.value = value.value
        return 0

    def cuMemcpyDtoH_v2(self, words: ctypes.Array, place: object, size: object) -> int:
        words[:] = [self.value] * len(words)
        words[len(words) // 2] += self.broken
        return 0


def test_what_cuda_shows_is_told_by_uuid() -> None:
    assert cuda.look(Driver()) == []
    assert cuda.look(Driver(init=cuda.NO_DEVICE)) == []
    assert cuda.look(Driver(B, A)) == [B, A]


@pytest.mark.parametrize(
    ("library", "said"),
    [(Driver(init=999), "cuInit fails with 999"), (Driver(A, broken=True), "does not hold what was written")],
)
def test_a_gpu_that_does_not_compute_is_told(library: Driver, said: str) -> None:
    with pytest.raises(cuda.CudaError, match=said):
        cuda.look(library)


OWN = ["/dev/nvidia1", "/dev/nvidiactl"]


@pytest.mark.parametrize(
    ("seen", "devices", "paths", "ok"),
    [
        ({"uuids": [B], "files": []}, [B], None, True),
        ({"uuids": [B, A], "files": []}, [B], None, False),
        ({"uuids": [A], "files": []}, [B], None, False),
        ({"uuids": [], "files": []}, [B], None, False),
        ({"uuids": [], "files": OWN}, [], None, True),
        ({"uuids": [A], "files": OWN}, [], None, False),
        ({"uuids": [B], "files": OWN}, [B], OWN, True),
        ({"uuids": [B], "files": ["/dev/nvidia0", *OWN]}, [B], OWN, False),
        ({"uuids": [], "files": []}, [], [], True),
        ({"uuids": [], "files": OWN}, [], [], False),
        ({"error": "cuInit fails with 999", "files": []}, [], [], True),  # CUDA does not even begin
        ({"error": "cuInit fails with 999", "files": OWN}, [], [], False),
        ({"error": "cuInit fails with 999", "files": OWN}, [], None, False),
        ({"error": "no answer within 30 s", "files": OWN}, [B], OWN, False),
        ({"missing": "no such root here: Operation not permitted"}, [B], OWN, None),
    ],
)
def test_the_check_knows_right_from_wrong(seen: dict, devices: list[str], paths: list[str] | None, ok: bool) -> None:
    assert check.compare("it", seen, devices, paths).ok is ok


def test_the_check_fails_without_a_gpu(smi: Callable[[str], None], capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main() == 1
    shown = capsys.readouterr().out
    assert shown.startswith("✘ wrong     GPUs by nvidia-smi: This computer's GPUs cannot be listed")
    assert "1 looked at, 1 wrong. It does not show the kubelet" in shown


def test_the_check_looks_at_the_last_gpu(
    smi: Callable[[str], None], driver: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    smi(f'printf "{TWO}"')
    asked = []

    def run(devices: list[str], paths: list[str] | None, end: float) -> dict:
        asked.append((devices, paths))
        return {"uuids": devices, "files": sorted(paths or [])}

    monkeypatch.setattr(check, "run", run)
    assert check.main() == 0
    assert asked == [([B], None), ([], None), ([B], gpus.files([B])[B]), ([], [])]
    assert "6 looked at, 0 wrong." in capsys.readouterr().out
    (driver.dev / "nvidia0").unlink()
    assert check.main() == 1


def test_a_process_of_the_check_has_the_environment_of_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/somewhere")
    monkeypatch.setattr(check, "CUDA", "import json, os; print(json.dumps(dict(os.environ)))")
    seen = check.run([B], None, time.monotonic() + 60)
    assert (seen["CUDA_VISIBLE_DEVICES"], seen["NVIDIA_VISIBLE_DEVICES"]) == (B, B)
    assert "LD_LIBRARY_PATH" not in seen
    assert "for all are over" in check.run([B], None, time.monotonic() - 1)["missing"]
    monkeypatch.setattr(check, "CUDA", "raise SystemExit('so it is')")
    assert check.run([B], None, time.monotonic() + 60) == {"missing": "so it is"}
    monkeypatch.setattr(check, "PROCESS_S", 0.2)
    monkeypatch.setattr(check, "CUDA", "import time; time.sleep(60)")
    assert check.run([B], None, time.monotonic() + 60)["error"].startswith("no answer within")
