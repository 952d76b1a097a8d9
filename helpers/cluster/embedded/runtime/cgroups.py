"""Memory limits and accounts of containers: by cgroups where those are writable, else by adding up /proc.

Cgroups are of version 1 (a tree for each controller) or 2 (one tree). The `cpu` controller is left alone on purpose:
below one parent, all Pods together would weigh as much as one process of the host.
"""

from __future__ import annotations

import contextlib
import os
import time

TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
MEMORY_V1 = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.limit_in_bytes")
NO_ACCOUNT = {"memory_bytes": 0, "working_set_bytes": 0, "rss_bytes": 0, "cpu_ns": 0, "pids": 0}


class Cgroups:
    """The groups of a machine.

    Attributes:
        version: 1, 2, or 0: none are to be had, so /proc is watched.
        trees: the machine's directory in the tree of each controller; for version 2 there is one, named "".
    """

    def __init__(self, name: str | None, mountinfo: str | None = None):
        self.version, self.trees = 0, {}
        if name is None:
            return
        if mountinfo is None:
            with open("/proc/self/mountinfo") as file:
                mountinfo = file.read()
        version, roots = find_trees(mountinfo)
        try:
            trees = {controller: f"{root}/{name}" for controller, root in roots.items()}
            for controller, directory in trees.items():
                _make(directory, roots[controller], version)
        except OSError:  # not ours to write in
            return
        if trees:
            self.version, self.trees = version, trees
            self.clear()

    def container(self, id: str, memory_bytes: int) -> Group:
        """Makes the group of a container.

        Raises:
            OSError: the kernel refuses the limit.
        """
        group = Group(self.version, {name: f"{tree}/{id}" for name, tree in self.trees.items()})
        try:
            for directory in group.directories.values():
                os.makedirs(directory, exist_ok=True)
            if self.version == 2:
                _write(f"{group.directories['']}/memory.oom.group", "1")  # as the kubelet asks for since 1.28
            if memory_bytes:
                group.limit(memory_bytes)
        except OSError:
            group.remove()
            raise
        return group

    def clear(self) -> None:
        """Removes the groups of containers that a lost machine left."""
        for tree in self.trees.values():
            for name in os.listdir(tree):
                if os.path.isdir(f"{tree}/{name}"):
                    _remove(f"{tree}/{name}")

    def remove(self) -> None:
        """Removes the machine's groups, and those above that are empty then."""
        self.clear()
        for tree in self.trees.values():
            if _remove(tree):
                with contextlib.suppress(OSError):  # other machines' groups are in it: nothing of theirs is touched
                    os.rmdir(os.path.dirname(tree))
                    os.rmdir(os.path.dirname(os.path.dirname(tree)))


class Group:
    """The group of one container; without cgroups there are no directories, and nothing is known."""

    def __init__(self, version: int, directories: dict[str, str]):
        self.version, self.directories = version, directories

    def join(self) -> None:
        """The calling process becomes a member."""
        for directory in self.directories.values():
            _write(f"{directory}/cgroup.procs", "0")

    def limit(self, memory_bytes: int) -> None:
        """Sets the memory limit; 0: none.

        Raises:
            OSError: the kernel refuses, as when more is in use.
        """
        if self.version == 2:
            _write(f"{self.directories['']}/memory.max", str(memory_bytes or "max"))
        elif self.version == 1:
            # memory with swap may never be limited lower than memory alone: so whichever way it changes, twice
            refused = None
            for name in MEMORY_V1:
                path = f"{self.directories['memory']}/{name}"
                if os.path.exists(path):
                    refused = _try_write(path, str(memory_bytes or -1))
            if refused:
                raise refused

    def oom_kills(self) -> int:
        """How often the kernel killed a process because of the limit."""
        if self.version == 2:
            return _field(f"{self.directories['']}/memory.events", "oom_kill")
        if self.version == 1:
            return _field(f"{self.directories['memory']}/memory.oom_control", "oom_kill")
        return 0

    def usage(self) -> dict[str, int] | None:
        """As Init.usage; None without cgroups."""
        if not self.version:
            return None
        try:
            return self._usage_2() if self.version == 2 else self._usage_1()
        except (OSError, ValueError):  # it ends just now
            return dict(NO_ACCOUNT)

    def _usage_1(self) -> dict[str, int]:
        memory, account = self.directories["memory"], dict(NO_ACCOUNT)
        stat = _fields(f"{memory}/memory.stat")
        account["memory_bytes"] = int(_read(f"{memory}/memory.usage_in_bytes"))
        account["working_set_bytes"] = max(account["memory_bytes"] - stat.get("total_inactive_file", 0), 0)
        account["rss_bytes"] = stat.get("total_rss", 0)
        if "cpuacct" in self.directories:
            account["cpu_ns"] = int(_read(f"{self.directories['cpuacct']}/cpuacct.usage"))
        account["pids"] = _read(f"{memory}/cgroup.procs").count("\n")
        return account

    def _usage_2(self) -> dict[str, int]:
        directory, account = self.directories[""], dict(NO_ACCOUNT)
        stat = _fields(f"{directory}/memory.stat")
        account["memory_bytes"] = int(_read(f"{directory}/memory.current"))
        account["working_set_bytes"] = max(account["memory_bytes"] - stat.get("inactive_file", 0), 0)
        account["rss_bytes"] = stat.get("anon", 0)
        account["cpu_ns"] = _field(f"{directory}/cpu.stat", "usage_usec") * 1000
        account["pids"] = _read(f"{directory}/cgroup.procs").count("\n")
        return account

    def view(self) -> dict[str, str]:
        """What /sys/fs/cgroup shows in the container: {name below it: directory}."""
        return dict(self.directories)

    def remove(self) -> bool:
        """Removes the group. Returns whether it is gone; False while a process in it is still ending."""
        return sum(not _remove(directory) for directory in self.directories.values()) == 0  # tries all


class SyntheticFiles:
    """What /sys/fs/cgroup shows where there are no cgroups: the files of version 2 that programs size themselves by."""

    def __init__(self, directory: str):
        self.directory = directory
        os.makedirs(directory, exist_ok=True)
        self.write("cgroup.controllers", "cpu memory")
        self.write("cpu.max", "max 100000")
        self.write("memory.stat", "anon 0\nfile 0\ninactive_file 0\nactive_file 0")
        self.write("memory.swap.max", "0")

    def limit(self, memory_bytes: int) -> None:
        """Shows a memory limit; 0: none."""
        self.write("memory.max", str(memory_bytes or "max"))

    def used(self, memory_bytes: int) -> None:
        """Shows how much memory is in use."""
        self.write("memory.current", str(memory_bytes))
        self.write("memory.stat", f"anon {memory_bytes}\nfile 0\ninactive_file 0\nactive_file 0")

    def write(self, name: str, content: str) -> None:
        """Replaces a file's content in place, since the container has mounted it; a reader never finds it empty."""
        data = f"{content}\n".encode()
        fd = os.open(f"{self.directory}/{name}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(fd, data, 0)
            os.ftruncate(fd, len(data))
        finally:
            os.close(fd)


def find_trees(mountinfo: str) -> tuple[int, dict[str, str]]:
    """Which cgroups this system has, from the text of /proc/self/mountinfo.

    Returns:
        (1, {"memory": directory, "cpuacct": …, "pids": …}), (2, {"": directory}) or (0, {}).
    """
    version_1, version_2 = {}, None
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        point, (kind, _, options) = before.split()[4], after.split(" ", 2)
        names = set(options.split(","))
        if kind == "cgroup" and "cpu" not in names:  # where cpuacct shares a tree with cpu, /proc has to do
            version_1 |= {name: point for name in ("memory", "cpuacct", "pids") if name in names}
        elif kind == "cgroup2" and "memory" in _read(f"{point}/cgroup.controllers", "").split():
            version_2 = point
    if "memory" in version_1:
        return 1, version_1
    return (2, {"": version_2}) if version_2 else (0, {})


def processes_of(namespaces: set[str]) -> dict[str, list[int]]:
    """The processes in each of these mount namespaces, named as /proc/PID/ns/mnt reads. A container has one."""
    found: dict[str, list[int]] = {name: [] for name in namespaces}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                name = os.readlink(f"/proc/{entry}/ns/mnt")
            except OSError:
                continue
            if name in found:
                found[name].append(int(entry))
    return found


def usage_of(pids: list[int]) -> dict[str, int]:
    """As Init.usage, from /proc: memory counts each process's own, and its part of what is shared."""
    account = dict(NO_ACCOUNT)
    for pid in pids:
        try:
            account["cpu_ns"] += _cpu_ns(_read(f"/proc/{pid}/stat"))
            account["memory_bytes"] += pss(pid)
            account["rss_bytes"] += rss(pid)
            account["pids"] += 1
        except (OSError, ValueError, IndexError):  # it ends just now
            continue
    account["working_set_bytes"] = account["memory_bytes"]
    return account


def memory_of(pids: list[int], limit: int) -> int:
    """Bytes of memory that processes use; a quick upper bound while that is below half of the limit."""
    total = sum(map(rss, pids))
    return total if not limit or total <= limit // 2 else sum(map(pss, pids))


def rss(pid: int) -> int:
    """Bytes of memory of a process, shared pages in full; 0 when it is gone."""
    try:
        return int(_read(f"/proc/{pid}/statm").split()[1]) * PAGE
    except (OSError, IndexError):
        return 0


def pss(pid: int) -> int:
    """Bytes of memory of a process, of shared pages its part; 0 when it is gone."""
    try:
        for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def _cpu_ns(stat: str) -> int:
    fields = stat.rpartition(")")[2].split()  # the program's name may have spaces; see proc(5)
    return sum(int(value) for value in fields[11:15]) * TICK_NS


def _make(directory: str, root: str, version: int) -> None:
    for attempt in range(3):  # another machine may be removing the empty parent just now
        try:
            os.makedirs(directory, exist_ok=True)
            break
        except FileNotFoundError:
            if attempt == 2:
                raise
    if version == 2:
        above, missing = directory, []
        while above != root:
            above = os.path.dirname(above)
            missing.append(above)
        for parent in (*reversed(missing), directory):
            _write(f"{parent}/cgroup.subtree_control", "+memory +pids")
    elif not os.access(f"{directory}/cgroup.procs", os.W_OK):
        raise PermissionError(f"{directory} is not ours")


def _remove(directory: str) -> bool:
    for _ in range(2):
        try:
            os.rmdir(directory)
            return True
        except FileNotFoundError:
            return True
        except OSError:  # a group that the container made in it, or a process that is still ending
            for name in _directories(directory):
                _remove(f"{directory}/{name}")
            time.sleep(0)
    return False


def _directories(directory: str) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(directory) if entry.is_dir()]
    except OSError:
        return []


def _read(path: str, default: str | None = None) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        if default is None:
            raise
        return default


def _write(path: str, content: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, content.encode())
    finally:
        os.close(fd)


def _try_write(path: str, content: str) -> OSError | None:
    try:
        _write(path, content)
    except OSError as error:
        return error
    return None


def _fields(path: str) -> dict[str, int]:
    pairs = (line.split() for line in _read(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].lstrip("-").isdigit()}


def _field(path: str, name: str) -> int:
    try:
        return _fields(path).get(name, 0)
    except OSError:
        return 0
