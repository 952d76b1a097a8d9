"""A container's view of files: the host's root under a layer of the container's own, and what is mounted into it.

"The host is the image." All this runs in the container's first process, before its program: it leaves the machine's
mount namespace, builds the new root, makes it its own and lets go of the old one.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

from helpers.cluster.embedded.runtime import linux
from helpers.cluster.embedded.runtime.linux import MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_RDONLY, MS_REC

OWN = ("proc", "sys", "dev", "tmp", "run", "lost+found")  # what a container has of its own, or not at all
SYSTEM = ("/usr", "/opt", "/nix", "/lib", "/lib64", "/bin", "/sbin")  # programs, also when they are mounts of their own
# of the host and of clusters that it may belong to, whatever else is hidden: logs, scratch files, secrets
PRIVATE = (
    *("/var/log", "/var/tmp", "/var/spool", "/var/lib/kubelet", "/var/lib/docker", "/var/lib/containerd"),
    *("/var/lib/rancher", "/etc/kubernetes", "/etc/rancher", "/etc/shadow", "/etc/shadow-", "/etc/gshadow"),
    *("/etc/gshadow-", "/etc/ssh/ssh_host_rsa_key", "/etc/ssh/ssh_host_ecdsa_key", "/etc/ssh/ssh_host_ed25519_key"),
)
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
LINKS = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
# as container runtimes have it (opencontainers/runtime-tools, moby oci/defaults.go): /proc and /sys are the kernel's
MASKED = (
    *("/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/latency_stats", "/proc/sched_debug"),
    *("/proc/acpi", "/proc/scsi", "/sys/firmware"),
)
READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
PROPAGATION = {"private": linux.MS_PRIVATE, "host_to_container": linux.MS_SLAVE, "bidirectional": linux.MS_SHARED}


class RootError(Exception):
    """The root cannot be built, in one sentence."""


class Root:
    """What a container's root is made of.

    Attributes:
        directory: the container's, on disk; its `root`, `upper`, `work`, `tmp` and `empty` are used here.
        hidden: paths of the host that are empty here.
        visible: paths of the host that are here, read-only, even below a hidden one.
        shm: what /dev/shm is.
        cgroup: directories that /sys/fs/cgroup shows: {"": path} for all of it, or {"memory": path, …}.
        mounts: as in a container's spec.
        devices: paths below /dev, or {"source", "target"} of each.
        cwd: made if it is not there.
        read_only: the root cannot be written to.
        masked: paths of /proc and /sys that are empty. read_only_paths: those that cannot be written to.
    """

    def __init__(self, directory: str, spec: dict, view: dict, shm: str, cgroup: dict[str, str]):
        self.directory, self.shm, self.cgroup = directory, shm, cgroup
        self.hidden, self.visible = view.get("hidden", []), view.get("visible", [])
        self.mounts, self.devices = spec.get("mounts", []), spec.get("devices", [])
        self.cwd = spec.get("cwd") or "/"
        self.read_only = bool(spec.get("read_only_root"))
        shielded = not spec.get("privileged")
        self.masked = _given(spec, "masked_paths", MASKED if shielded else ())
        self.read_only_paths = _given(spec, "readonly_paths", READ_ONLY if shielded else ())
        self._base: list[int] = []  # descriptors of the mounts that are the root, to make them read-only in the end

    def enter(self) -> None:
        """Leaves the machine's mount namespace for one with this root.

        Raises:
            RootError: something of it cannot be had.
        """
        try:
            self._enter()
        except OSError as error:
            raise RootError(str(error.strerror if error.filename is None else error)) from None

    def _enter(self) -> None:
        linux.unshare(linux.CLONE_NEWNS)
        # Copies of all that will be mounted, taken while the machine's mounts are still those of this namespace
        view = self._view()
        volumes = [(mount, self._volume(mount)) for mount in self.mounts]
        # read-only keeps the container from changing the host's nodes, not from writing to the devices
        devices = [(target, _copy(source, read_only=True)) for source, target in self._device_paths()]
        tmp, shm = _copy(f"{self.directory}/tmp"), _copy(self.shm)
        cgroup = {name: _copy(path, read_only=True) for name, path in self.cgroup.items()}
        linux.mount(None, "/", flags=MS_REC | linux.MS_PRIVATE)

        self._make_root()
        old = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        os.chdir(f"{self.directory}/root")
        linux.pivot_root(".", ".")  # the old root now lies upon the new one, for as long as it takes
        os.chdir("/")
        self._kernel_files()  # a user namespace must still see the old /proc and /sys to get new ones
        self._dev(devices, shm)
        self._attach_base(tmp, "/tmp")
        self._tmpfs("/run", "mode=755,size=64m")
        os.fchdir(old)
        os.close(old)
        linux.umount(".")
        os.chdir("/")
        for path, tree, empty in view:
            self._show(path, tree, empty)
        self._cgroup(cgroup)
        for mount, tree in volumes:
            self._mount(mount, tree)
        with suppress(OSError):  # told when it is to be entered
            os.makedirs(self.cwd, exist_ok=True)
        self._shield()
        for fd in self._base:
            if self.read_only:
                linux.set_mount(fd, read_only=True)
            os.close(fd)

    # ---- the layers

    def _make_root(self) -> None:
        os.chdir(self.directory)  # so that its path is in no option, where a comma or a colon would end it
        try:
            linux.mount("overlay", "root", "overlay", MS_NODEV, "lowerdir=/,upperdir=upper,workdir=work")
        except OSError as error:
            self._make_root_of_parts(error)
        self._remember_base("root")

    def _make_root_of_parts(self, why: OSError) -> None:
        """A root whose top-level directories are overlays, for a user namespace, which cannot have the whole in one."""
        linux.mount("root", "root", flags=MS_BIND)
        names = sorted(set(os.listdir("/")) - set(OWN))
        layered = [self._part(name, deeper=True) for name in names]
        if not any(layered):
            raise RootError(_no_overlay(self.directory, why))

    def _part(self, name: str, *, deeper: bool) -> bool:
        """Puts one of the host's paths into the root. Returns whether it, or a part of it, is an overlay."""
        host, here = f"/{name}", f"root/{name}"
        if os.path.islink(host):
            os.symlink(os.readlink(host), here)
            return False
        if host in self.hidden or self._is_closed(host):
            if os.path.isdir(host):
                os.mkdir(here)  # on disk, and the container's own
            return False
        if not os.path.isdir(host):
            if stat.S_ISREG(os.stat(host).st_mode):
                _touch(here)
                self._bind_read_only(host, here)
            return False
        upper, work = (f"{kind}/%{name.replace('/', '%')}" for kind in ("upper", "work"))
        for directory in (here, upper, work):
            os.mkdir(directory)
        lower = host.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")
        _like(host, upper)
        try:
            data = f"lowerdir={lower},upperdir={_escaped(upper)},workdir={_escaped(work)},userxattr"
            linux.mount("overlay", here, "overlay", MS_NODEV, data)
            self._remember_base(here)
            return True
        except OSError:  # something is mounted below it, which the user namespace must not look behind
            if deeper:
                layered = [self._part(f"{name}/{child}", deeper=False) for child in sorted(os.listdir(host))]
                return any(layered)
            self._bind_read_only(host, here)
            return False

    def _is_closed(self, host: str) -> bool:
        return not os.access(host, os.R_OK | os.X_OK) and os.path.isdir(host)

    def _bind_read_only(self, host: str, here: str) -> None:
        _attach(_copy(host, read_only=True), here)

    # ---- what is the container's own

    def _kernel_files(self) -> None:
        for name in ("/proc", "/sys", "/dev", "/tmp", "/run"):
            os.makedirs(name, exist_ok=True)
        linux.mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
        linux.mount("sysfs", "/sys", "sysfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)

    def _dev(self, devices: list[tuple[str, int]], shm: int) -> None:
        # A tmpfs, not the host's /dev: a mount point such as /dev/termination-log would be made in the host's
        linux.mount("tmpfs", "/dev", "tmpfs", MS_NOSUID, "mode=755,size=64k")
        for name in ("pts", "shm", "mqueue"):
            os.mkdir(f"/dev/{name}")
        pts = "newinstance,ptmxmode=0666,mode=620"
        try:
            linux.mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, f"{pts},gid=5")
        except OSError:  # a user namespace that has no group 5
            linux.mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, pts)
        try:
            linux.mount("mqueue", "/dev/mqueue", "mqueue", MS_NOSUID | MS_NODEV | MS_NOEXEC)
        except OSError as error:
            if error.errno != errno.ENODEV:  # a kernel without message queues
                raise
        _attach(shm, "/dev/shm")
        for path, tree in devices:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            _touch(path)
            _attach(tree, path)
        for name, target in LINKS.items():
            os.symlink(target, f"/dev/{name}")

    def _device_paths(self) -> list[tuple[str, str]]:
        """(device, where it is in the container) of each."""
        targets = {f"/dev/{name}": f"/dev/{name}" for name in DEVICES}
        for asked in self.devices:
            asked = asked if isinstance(asked, dict) else {"source": asked, "target": asked}
            source, target = asked["source"], os.path.normpath(asked["target"])
            if not os.path.exists(source) or not _is_device(os.stat(source).st_mode):
                raise RootError(f'"{source}" is no device')
            if not target.startswith("/dev/"):
                raise RootError(f'the device "{target}" is not below /dev')
            targets[target] = source
        return [(source, target) for target, source in targets.items()]

    def _cgroup(self, trees: dict[str, int]) -> None:
        if not os.path.isdir("/sys/fs/cgroup"):  # a kernel without cgroups: sysfs has no place for them
            return
        if list(trees) != [""]:
            linux.mount("tmpfs", "/sys/fs/cgroup", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=755,size=64k")
        for name, tree in trees.items():
            target = f"/sys/fs/cgroup/{name}".rstrip("/")
            os.makedirs(target, exist_ok=True)
            _attach(tree, target)
        here = os.open("/sys/fs/cgroup", os.O_PATH | os.O_CLOEXEC)
        linux.set_mount(here, read_only=True)
        os.close(here)

    def _shield(self) -> None:
        for path in filter(os.path.exists, self.read_only_paths):
            _attach(_copy(path, read_only=True), path)
        for path in filter(os.path.exists, self.masked):
            if os.path.isdir(path):
                linux.mount("tmpfs", path, "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=4k,mode=755")
            else:
                _attach(_copy("/dev/null", read_only=True), path)

    # ---- what the host shows and hides

    def _view(self) -> list[tuple[str, int, bool]]:
        """(path, copy of what is to be there, whether that is nothing) in the order of mounting."""
        entries = []
        for number, path in enumerate(os.path.normpath(path) for path in (*self.hidden, *PRIVATE)):
            if os.path.exists(path):
                entries.append((path, _copy(self._nothing(path, f"{self.directory}/empty/{number}")), True))
        for path in {os.path.normpath(path) for path in (*self.visible, *_system_mounts(self.hidden))}:
            if os.path.exists(path):
                entries.append((path, _copy(os.path.realpath(path), read_only=True), False))
        # the deeper lies upon the shallower; of the same path, what is visible upon what is hidden
        return sorted(entries, key=lambda entry: (entry[0].count("/"), not entry[2], entry[0]))

    def _nothing(self, path: str, empty: str) -> str:
        """Makes an empty directory or file on disk, in the place of a path of the host's."""
        mode = stat.S_IMODE(os.stat(path).st_mode)
        if os.path.isdir(path):
            os.mkdir(empty)
            os.chmod(empty, mode | 0o555)  # something below it may be visible
        else:
            _touch(empty)
            os.chmod(empty, mode)
        return empty

    def _show(self, path: str, tree: int, empty: bool) -> None:
        path = os.path.realpath(path)
        if not empty:
            _make_target(path, directory=stat.S_ISDIR(os.fstat(tree).st_mode))
            _attach(tree, path)
        elif os.path.exists(path):
            self._attach_base(tree, path)
        else:  # hidden already, with what is above it
            os.close(tree)

    # ---- volumes

    def _volume(self, mount: dict) -> int:
        source = mount["source"]
        if not os.path.exists(source):
            raise RootError(f'the mount source "{source}" does not exist')
        kind = mount.get("propagation") or "private"
        if kind not in PROPAGATION:
            raise RootError(f'"{kind}" is no mount propagation')
        tree = _copy(os.path.realpath(source), propagation=PROPAGATION[kind])
        if mount.get("read_only"):
            linux.set_mount(tree, read_only=True)  # what is mounted below stays writable, as in Kubernetes
        return tree

    def _mount(self, mount: dict, tree: int) -> None:
        target = os.path.realpath(mount["target"])  # a link leads where it leads in this root
        try:
            _make_target(target, directory=stat.S_ISDIR(os.fstat(tree).st_mode))
            _attach(tree, target)
        except OSError as error:
            raise RootError(f'cannot mount at "{mount["target"]}": {os.strerror(error.errno)}') from None

    # ---- helpers

    def _attach_base(self, tree: int, target: str) -> None:
        _attach(tree, target)
        self._remember_base(target)

    def _tmpfs(self, target: str, data: str) -> None:
        linux.mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, data)
        self._remember_base(target)

    def _remember_base(self, path: str) -> None:
        self._base.append(os.open(path, os.O_PATH | os.O_CLOEXEC))


def prepare(directory: str) -> None:
    """Makes the directories of a container's layers on disk."""
    for name in ("root", "upper", "work", "tmp", "empty"):
        os.makedirs(f"{directory}/{name}", exist_ok=True)
    os.chmod(f"{directory}/upper", 0o755)  # it is what `/` looks like
    os.chmod(f"{directory}/tmp", 0o1777)


def filesystem_of(path: str) -> str:
    """The type of the file system that a path is on, as /proc/self/mountinfo has it."""
    path, best = os.path.realpath(path), ("", "unknown")
    for point, kind in _mounts():
        if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1]


def _mounts() -> list[tuple[str, str]]:
    """(mount point, type of file system) of each mount of this namespace."""
    with open("/proc/self/mountinfo") as lines:
        return [parse_mount(line) for line in lines]


def parse_mount(line: str) -> tuple[str, str]:
    """(mount point, type of file system) of a line of mountinfo; see proc(5) for its form."""
    before, _, after = line.partition(" - ")
    point = before.split()[4]
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        point = point.replace(code, character)
    return point, after.split()[0]


def _system_mounts(hidden: list[str]) -> list[str]:
    """Mounts of their own below the system's directories: an overlay of / has only their empty mount points."""
    points = {point for point, _ in _mounts() if is_below(point, SYSTEM) and not is_below(point, hidden)}
    return [point for point in points if not is_below(point, points - {point})]  # a copy has those below it


def is_below(path: str, directories: list[str] | tuple[str, ...] | set[str]) -> bool:
    """Whether a path is one of the directories, or below one."""
    return any(path == directory or path.startswith(directory.rstrip("/") + "/") for directory in directories)


def _no_overlay(directory: str, error: OSError) -> str:
    if error.errno == errno.ENODEV:
        return "this kernel has no overlay file system, which a container's root is made of"
    kind = filesystem_of(directory)
    return (
        f"a container's layer cannot be on {directory}, because its file system ({kind}) cannot be written to"
        f" through an overlay ({os.strerror(error.errno)})"
    )


def _escaped(path: str) -> str:
    return path.replace("\\", "\\\\").replace(",", "\\,")


def _like(host: str, here: str) -> None:
    os.chmod(here, stat.S_IMODE(os.stat(host).st_mode))  # an overlay's directory looks as its upper one does


def _given(spec: dict, name: str, default: tuple[str, ...]) -> list[str] | tuple[str, ...]:
    return default if spec.get(name) is None else spec[name]


def _is_device(mode: int) -> bool:
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode)


def _touch(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))


def _copy(path: str, *, read_only: bool = False, propagation: int = linux.MS_PRIVATE) -> int:
    tree = linux.clone_tree(path)
    linux.set_mount(tree, read_only=read_only, propagation=propagation, recursive=True)
    return tree


def _attach(tree: int, target: str) -> None:
    linux.attach_tree(tree, target)
    os.close(tree)


def _make_target(path: str, *, directory: bool) -> None:
    if os.path.exists(path):
        return
    if directory:
        os.makedirs(path, 0o755)
    else:
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        _touch(path)
