"""Starting JupyterLab on the course, and stopping it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import webbrowser
from datetime import datetime
from pathlib import Path

from helpers.errors import CourseError
from helpers.state import course_root, state_dir
from helpers.wait import wait_until

SETTINGS = Path(__file__).parent / "jupyterlab"  # holds overrides.json
START = "lessons/00_start_here.ipynb"
DEFAULT_PORT = 8888
OTHER_PORTS = 50  # how many ports after the default one are tried
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 15.0
KEPT_LOGS = 10


def open_lab(port: int | None, browser: bool) -> None:
    """Run JupyterLab in the foreground until Ctrl-C.

    Args:
        port: the TCP port to serve on; None takes 8888, or the next free one.
        browser: whether a browser may be opened; without a display none is.

    Raises:
        CourseError: if the port is taken, the first lesson is missing, or JupyterLab does not come up.
    """
    if not (course_root() / START).is_file():
        raise CourseError(
            f"{START} is missing from this copy of the course.", "Run `course notebooks`, which makes it."
        )
    if port is not None and not port_is_free(port):
        raise CourseError(f"Port {port} is in use or not allowed.", "Choose another, or leave --port away.")
    log = new_log()
    opens = browser and has_display()
    with open(log, "ab") as out:
        server = subprocess.Popen(
            command(port, opens), stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=course_root()
        )
    # `kill` on this process must end JupyterLab too
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        show(wait_for(server, log), port, opens, log)
        code = server.wait()
    except KeyboardInterrupt:
        code = 0
    finally:
        stop(server)
    if code != 0:
        raise CourseError(f"JupyterLab ended with exit code {code}.", f"Its log says why: {log}")
    print("\nJupyterLab has stopped. `make lab` starts it again; your notebooks and progress are kept.")


def command(port: int | None, opens_browser: bool) -> list[str]:
    """The JupyterLab command: everything on its command line, so that nobody's Jupyter settings are touched."""
    options = {
        "ServerApp.root_dir": str(course_root()),
        "ServerApp.port": port or DEFAULT_PORT,
        "ServerApp.port_retries": 0 if port else OTHER_PORTS,
        "ServerApp.open_browser": opens_browser,
        "ServerApp.answer_yes": True,  # Ctrl-C stops it without a question that nobody would see
        "ServerApp.allow_root": os.geteuid() == 0,
        "LabApp.default_url": f"/lab/tree/{START}",
        # no pop-up about news, no look at a web site for a newer version; the user's own settings beat these
        "LabApp.app_settings_dir": str(SETTINGS),
        "LabApp.news_url": None,
        "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
    }
    return [sys.executable, "-m", "jupyterlab", *(f"--{name}={value}" for name, value in options.items())]


def wait_for(server: subprocess.Popen, log: Path) -> dict:
    """JupyterLab's own record of where it serves, written when it does."""
    from jupyter_core.paths import jupyter_runtime_dir

    record = Path(jupyter_runtime_dir(), f"jpserver-{server.pid}.json")

    def serves() -> dict | None:
        if server.poll() is not None:
            raise CourseError("JupyterLab ended before it served anything.", f"Its log says why: {log}")
        return json.loads(record.read_text() or "null") if record.exists() else None

    return wait_until(serves, START_TIMEOUT_S, what="JupyterLab", fix=f"Its log says what it does: {log}")


def show(record: dict, asked: int | None, opened: bool, log: Path) -> None:
    if asked is None and record["port"] != DEFAULT_PORT:
        print(f"Port {DEFAULT_PORT} is in use; JupyterLab took {record['port']}.")
    token = f"?token={record['token']}" if record["token"] else ""
    print("JupyterLab is open in your browser, and at" if opened else "JupyterLab is at")
    print(f"  {record['url']}lab/tree/{START}{token}")
    print(f"Stop it with Ctrl-C. Its log: {log}", flush=True)


def stop(server: subprocess.Popen) -> None:
    """End the server; it ends its kernels itself."""
    if server.poll() is not None:
        return
    server.terminate()
    try:
        server.wait(STOP_TIMEOUT_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        server.kill()
        server.wait()


def port_is_free(port: int) -> bool:
    """Whether a server of this user can serve on `localhost:port`."""
    for family, kind, protocol, _, address in socket.getaddrinfo("localhost", port, type=socket.SOCK_STREAM):
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as JupyterLab does
            try:
                trial.bind(address)
            except OSError:
                return False
    return True


def has_display() -> bool:
    """Whether a graphical browser can be opened; a text browser in this terminal would be no help."""
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True


def new_log() -> Path:
    """A new log file that only this user can read, since JupyterLab writes its token there; the oldest ones go."""
    folder = state_dir() / "logs"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in sorted(folder.glob("jupyterlab-*.log"))[: -KEPT_LOGS + 1]:
            old.unlink(missing_ok=True)
        log = folder / f"jupyterlab-{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}.log"
        log.touch(mode=0o600)
    except OSError as error:
        raise CourseError(
            f"The folder {folder} cannot be written: {error.strerror}.",
            "Make it writable, or set XDG_STATE_HOME to a folder that is.",
        ) from None
    return log
