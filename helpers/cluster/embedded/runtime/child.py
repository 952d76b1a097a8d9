"""What a forked child of a machine's init does before it is the program that was asked for.

It runs with the init's memory, so until `exec` nobody may look into it, and when something fails it reports and ends:
it must never return into the init's code.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import socket
import stat
import struct
import termios
from collections.abc import Callable

from helpers.cluster.embedded.runtime import capabilities, linux, messages
from helpers.cluster.embedded.runtime.rootfs import RootError

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TIOCSPTLCK, TIOCGPTPEER = 0x40045431, 0x5441  # asm-generic/ioctls.h


class CannotRun(Exception):
    """The program cannot be started, in the words that container runtimes use for it."""


def run(report: socket.socket, main: Callable[[], None]) -> None:
    """Calls `main`, which replaces the process by a program; if it cannot, reports why and ends the process."""
    message = "the program did not replace the process"
    try:
        linux.prctl(linux.PR_SET_DUMPABLE, 0)
        linux.signals_as_new()
        os.setsid()
        main()
    except (CannotRun, RootError) as error:
        message = str(error)
    except OSError as error:
        message = error.strerror or str(error)
    except BaseException as error:
        message = f"{type(error).__name__}: {error}"
    try:
        messages.send(report, {"error": message})
    finally:
        os._exit(128)


def use_streams(stdin: int, stdout: int, stderr: int) -> None:
    """Makes these descriptors 0, 1 and 2."""
    # copies above 2 first, so that none of the three is overwritten before it is used
    for number, fd in enumerate([fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in (stdin, stdout, stderr)]):
        os.dup2(fd, number, inheritable=True)


def use_terminal(report: socket.socket, uid: int) -> None:
    """Makes a terminal of the container's own the controlling one, and hands its master side to the init."""
    master = os.open("/dev/pts/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    fcntl.ioctl(master, TIOCSPTLCK, struct.pack("i", 0))
    slave = fcntl.ioctl(master, TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY)
    try:
        os.fchown(slave, uid, -1)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a user that this user namespace does not know: told when it is to be used
            raise
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    messages.send(report, {}, (master,))
    use_streams(slave, slave, slave)
    os.close(slave)
    os.close(master)


def become(spec: dict) -> None:
    """Becomes the program of a container's spec: limits, directory, user, rights, then the program itself.

    Raises:
        CannotRun: it is not there, may not be run, or cannot have the user or directory that it is to have.
    """
    _set_oom_score(spec.get("oom_score_adj") or 0)
    _set_limits(spec.get("rlimits") or {})
    umask = spec.get("umask")
    os.umask(0o022 if umask is None else umask)
    _enter_directory(spec.get("cwd") or "/")
    if not spec.get("privileged"):
        linux.keep_capabilities(capabilities.numbers(spec.get("add") or [], spec.get("drop") or []))
    _become_user(spec.get("uid") or 0, spec.get("gid") or 0, spec.get("groups") or [])
    linux.prctl(linux.PR_SET_DUMPABLE, 0)  # a change of user may have set it again
    if spec.get("no_new_privs"):
        linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    argv, env = spec["argv"], spec.get("env") or {}
    program = find_program(argv[0], env.get("PATH", PATH))
    try:
        os.execve(program, argv, env)
    except OSError as error:
        raise CannotRun(f'exec: "{argv[0]}": {lower(error)}') from None


def find_program(name: str, path: str) -> str:
    """Where a program is.

    Raises:
        CannotRun: nowhere, or it may not be run.
    """
    if "/" in name:
        try:
            mode = os.stat(name).st_mode
        except OSError as error:
            raise CannotRun(f'exec: "{name}": stat {name}: {lower(error)}') from None
        if stat.S_ISDIR(mode):
            raise CannotRun(f'exec: "{name}": is a directory')
        if not os.access(name, os.X_OK):
            raise CannotRun(f'exec: "{name}": permission denied')
        return name
    for directory in path.split(":"):
        candidate = f"{directory or '.'}/{name}"
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    raise CannotRun(f'exec: "{name}": executable file not found in $PATH')


def lower(error: OSError) -> str:
    """What went wrong, as Go programs write it."""
    return (os.strerror(error.errno) if error.errno else str(error)).lower()


def _set_oom_score(value: int) -> None:
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(str(value))
    except PermissionError:  # lower than the machine's own is for the real root only
        pass


def _set_limits(limits: dict) -> None:
    for name, (soft, hard) in ({"nofile": (1048576, 1048576)} | limits).items():
        kind = getattr(resource, f"RLIMIT_{name.upper().removeprefix('RLIMIT_')}", None)
        if kind is None:
            raise CannotRun(f'"{name}" is no resource limit')
        try:
            resource.setrlimit(kind, (soft, hard))
        except (ValueError, PermissionError):  # higher than allowed: as high as allowed
            highest = resource.getrlimit(kind)[1]
            resource.setrlimit(kind, (soft if 0 <= soft < highest or highest < 0 else highest, highest))


def _enter_directory(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
        os.chdir(path)
    except FileExistsError:
        raise CannotRun(f'chdir to cwd ("{path}") failed: not a directory') from None
    except OSError as error:
        raise CannotRun(f'chdir to cwd ("{path}") failed: {lower(error)}') from None


def _become_user(uid: int, gid: int, groups: list[int]) -> None:
    try:
        os.setgroups(groups)
    except PermissionError:  # a user namespace in which groups cannot be set: nothing is lost if they are none
        if set(groups) - {gid, 0}:
            raise CannotRun(f"the groups {groups} cannot be set in this user namespace") from None
    except OSError:
        raise CannotRun(f"not all of the groups {groups} exist in this user namespace") from None
    for kind, number, set_it in (("gid", gid, _set_gid), ("uid", uid, _set_uid)):
        try:
            set_it(number)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            raise CannotRun(f"{kind} {number} does not exist in this user namespace, which has 0 only") from None


def _set_gid(gid: int) -> None:
    os.setresgid(gid, gid, gid)


def _set_uid(uid: int) -> None:
    os.setresuid(uid, uid, uid)
