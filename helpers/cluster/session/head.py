"""Python on the head of a RayCluster: a function of the notebook, or a text, run by exec in the Ray container.

The notebook's end sends one line to a Python process there: base64 of what cloudpickle makes of function and
arguments. That process answers on its standard output with lines that begin with a mark that only this call knows;
all other lines are what was printed.
"""

from __future__ import annotations

import base64
import secrets
import time
from collections.abc import Callable
from typing import Any

from helpers.errors import CourseError
from helpers.kube import Exec, Kube, NoAnswer
from helpers.wait import QUIET_S, say

WHOLE = "Wait for the cluster by `lab.wait(…)`, then run the cell again."
# Run by `python -c`. It ends with its standard input, so that nothing is left of a cell that was interrupted.
FAR_END = """
import base64, os, sys, threading, traceback
mark, kind = sys.argv[1:3]
request = sys.stdin.buffer.readline()
def end_with_input():
    sys.stdin.buffer.read()
    os._exit(1)
threading.Thread(target=end_with_input, daemon=True).start()
from ray import cloudpickle
def work():
    function, args, kwargs = cloudpickle.loads(base64.b64decode(request))
    if kind == "function":
        return function(*args, **kwargs)
    sys.argv = ["-c", *map(str, args)]
    try:
        exec(compile(function, "<text>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        if end.code:
            raise
try:
    answer = "returned", work()
except BaseException as error:
    answer = "raised", (error, f"On the head:\\n{traceback.format_exc()}")
try:
    text = cloudpickle.dumps(answer)
except Exception as error:
    text = cloudpickle.dumps(("stuck", f"{type(error).__name__}: {error}"))
import ray
ray.shutdown()
sys.stdout.flush()
os.write(1, f"\\n{mark}{base64.b64encode(text).decode()}\\n".encode())
os._exit(0)
"""


class Printed(str):
    """What a text printed; shown as it is, not in quotation marks."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def run(
    kube: Kube, namespace: str, pod: dict, function: Callable | str, args: tuple, kwargs: dict, *, timeout_s: float
) -> Any:
    """Run a function in the Ray container of a head Pod, and return what it returns.

    Args:
        kube: the cluster.
        namespace: where.
        pod: the head.
        function: a function, or the text of a program.
        args: its arguments; a text finds them in sys.argv.
        kwargs: more of them.
        timeout_s: seconds until it is ended.

    Raises:
        CourseError: if it cannot be sent, does not end in time, or the Pod goes away under it.
        Exception: whatever the function raised, with a note that holds its stack trace there.
    """
    is_text = isinstance(function, str)
    name = "the text" if is_text else f"`{getattr(function, '__name__', 'the function')}`"
    request = _request(name, function, args, kwargs)
    mark = secrets.token_hex(16)
    # workers' output would come between the lines of the notebook, whenever it likes
    command = ["env", "RAY_LOG_TO_DRIVER=0", "python", "-u", "-c", FAR_END, mark, "text" if is_text else "function"]
    where = pod["metadata"]["name"]
    stream = kube.exec(where, namespace, pod["spec"]["containers"][0]["name"], command)
    call = _Call(stream, mark.encode(), name, where, show=not is_text)
    try:
        stream.write(request + b"\n")
        value = call.result(timeout_s)
    finally:
        stream.close()
    return Printed(call.printed) if is_text else value


def _request(name: str, function: Callable | str, args: tuple, kwargs: dict) -> bytes:
    from ray import cloudpickle  # slow: loads Ray

    try:
        return base64.b64encode(cloudpickle.dumps((function, args, kwargs)))
    except Exception as error:
        raise CourseError(
            f"{name} uses something that cannot be sent to the head ({type(error).__name__}: {error}).",
            "Pass it plain values and import modules inside it; `lab` stays in the notebook.",
        ) from None


class _Call:
    """A call under way."""

    def __init__(self, stream: Exec, mark: bytes, name: str, where: str, *, show: bool):
        self.stream, self.mark, self.name, self.where, self.show = stream, mark, name, where, show
        self.begun, self.complaints, self.printed, self.answer = b"", b"", "", None
        self.empty = 0  # lines that are held back: the line break before the mark may make one

    def result(self, timeout_s: float) -> Any:
        start, shown = time.monotonic(), 0
        while self.answer is None:
            passed = time.monotonic() - start
            if passed > timeout_s:
                raise CourseError(
                    f"{self.name} on {self.where} took longer than {timeout_s:g} s, and was ended.",
                    "Give it more by `timeout_s=…`, or less to do.",
                )
            if passed > QUIET_S and int(passed) != shown and not self.printed:
                shown = int(passed)
                say(f"… {shown} s, {self.name} runs on {self.where}")
            self._take()
        if shown:
            say("")
        return self._outcome()

    def _take(self) -> None:
        is_open = self.stream.is_open
        try:
            out, complaints = self.stream.read(0.2)
        except NoAnswer as error:
            raise self._gone(error.what) from None
        self.complaints = (self.complaints + complaints)[-4000:]
        *lines, self.begun = (self.begun + out).split(b"\n")
        for line in lines:
            self._line(line)
        if not is_open and self.answer is None:
            raise self._gone(self.stream.status())

    def _line(self, line: bytes) -> None:
        if line.startswith(self.mark):
            self.answer = base64.b64decode(line[len(self.mark) :])
            self._print("\n" * (self.empty - 1))
        elif not line:
            self.empty += 1
        else:
            self._print("\n" * self.empty + line.decode(errors="replace") + "\n")
            self.empty = 0

    def _print(self, text: str) -> None:
        self.printed += text
        if self.show and text:
            say(text)

    def _outcome(self) -> Any:
        from ray import cloudpickle

        try:
            kind, value = cloudpickle.loads(self.answer)
        except Exception as error:
            kind, value = "stuck", f"{type(error).__name__}: {error}"
        if kind == "returned":
            return value
        if kind == "stuck":
            raise CourseError(
                f"What {self.name} returned or raised cannot leave the head ({value}).",
                "Return plain values, such as numbers, texts and lists of them, and keep ObjectRefs and actors inside.",
            )
        error, note = value
        if not isinstance(error, Exception):  # KeyboardInterrupt or SystemExit, which would mean the notebook's kernel
            raise CourseError(f"{self.name} was ended by {type(error).__name__}: {error}.", "Run the cell again.")
        error.add_note(note)
        raise error

    def _gone(self, why: str) -> CourseError:
        last = (self.complaints.decode(errors="replace").strip().splitlines() or [""])[-1]
        said = f"; it said: {last}" if last else ""
        return CourseError(f"{self.name} did not end on {self.where}: {why.rstrip('.')}{said}.", WHOLE)
