"""An answer, brought from a kernel that is not trusted into the grader's process as plain data.

The grader asks the kernel for the value of one name. What comes back is JSON: numbers, strings and containers of them,
each container with a tag that says which; anything else is named by its type. A function stays where it is, and
comes back as a stand-in: calling it sends the arguments over as JSON, and brings back the result, or what was raised.

So the checks run on objects of the grader's own making. Whatever the submission did to `check`, to `helpers` or to
`==`, all it can do here is to give another answer. What comes from the kernel is parsed as hostile: by type, by tag, by
size, and nothing is evaluated.
"""

from __future__ import annotations

import ast
import builtins
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MAX_TEXT = 2_000_000  # characters of one answer as JSON
MAX_ITEMS = 100_000
MAX_DEPTH = 20
UNREADABLE = "the notebook sent something in place of this answer that cannot be read"
MAX_WORDS = 300  # characters of an error's text that are kept

# runs one piece of code in the kernel, and returns what it published under the key; None if it published nothing
Kernel = Callable[[str, str], str | None]


class Gone(AssertionError):
    """The kernel gave no answer that can be read: it took too long, it has ended, or it sent something else.

    The text says which, as a message of a case does.
    """

    learners_line = ""  # an AssertionError with no line of the learner's is shown as its text alone


class RemoteError(Exception):
    """Something that the learner's function raised.

    Attributes:
        learners_line: where, as it is shown after the message; empty if it is not known.
    """

    learners_line = ""

    def __init__(self, text: str):
        self.text = text

    def __str__(self) -> str:
        return self.text


class Unsupported:
    """Stands for a value that is not plain data; its type has the name that the value's type has in the kernel."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


class RemoteFunction:
    """Stands for a function of the kernel. Arguments and results are copies; only plain data can be passed."""

    def __init__(self, name: str, kernel: Kernel):
        self.__name__, self._kernel = name, kernel

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        said = _ask(self._kernel, self.__name__, json.dumps([encode(list(args)), encode(kwargs)]))
        match said:
            case {"result": result}:
                return decode(result)
            case {"raised": raised}:
                raise _exception(raised)
        raise Gone(UNREADABLE)


RemoteFunction.__name__ = "function"  # what a message such as "you gave a function" says


@dataclass(frozen=True)
class CheckLine:
    """What a test cell asks for: `check("ex01.q1", shape)`."""

    id: str
    name: str


def check_line(source: str) -> CheckLine | None:
    """Reads a cell that is one `check("ID", NAME)` and nothing else; None for any other cell."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    match body:
        case [ast.Expr(ast.Call(ast.Name("check"), [ast.Constant(str(id)), ast.Name(name)], []))]:
            return CheckLine(id, name)
    return None


def fetch(name: str, kernel: Kernel) -> Any:
    """The value of a name in the kernel; `...` if there is no such name, or a function there that does nothing.

    Raises:
        Gone: the kernel did not answer.
    """
    match _ask(kernel, name, ""):
        case {"missing": True} | {"stub": True}:
            return ...
        case {"function": True}:
            return RemoteFunction(name, kernel)
        case {"value": value}:
            return decode(value)
    raise Gone(UNREADABLE)


def _ask(kernel: Kernel, name: str, arguments: str) -> Any:
    key = secrets.token_hex(8)
    limits = {"text": MAX_TEXT, "items": MAX_ITEMS, "depth": MAX_DEPTH, "words": MAX_WORDS}
    request = {"name": name, "arguments": arguments, "key": key, "limits": limits}
    # the learner may have names such as `list` of their own: this sees the built-in ones only
    code = f"__import__('builtins').exec({EXPORTER!r}, {{'request': {request!r}}})"
    text = kernel(code, key)
    if text is None:
        raise Gone("the notebook gave nothing back when it was asked for this answer")
    if len(text) > MAX_TEXT:
        raise Gone(UNREADABLE)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise Gone(UNREADABLE) from None


# ---- plain data as JSON ----------------------------------------------------------------------------------------------


def encode(value: Any) -> Any:
    """Plain data in the form that the kernel decodes. The grader's own checks make it, so it is taken as it is."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case dict():
            return {"dict": [[encode(key), encode(item)] for key, item in value.items()]}
        case list() | tuple() | set() | frozenset():
            return {type(value).__name__: [encode(item) for item in value]}
        case Unsupported():
            raise TypeError(f"a {type(value).__name__} cannot be passed to the learner's function")
    raise TypeError(f"a check can pass plain data to the learner's function, and not a {type(value).__name__}")


def decode(data: Any, depth: int = 0) -> Any:
    """The value that JSON from the kernel stands for; an `Unsupported` where it stands for none.

    Example:
        >>> decode({"tuple": [1, {"set": ["a"]}]})
        (1, {'a'})
    """
    if data is None or isinstance(data, bool | int | float | str):
        return data
    if depth > MAX_DEPTH:
        return unsupported("answer that is nested too deeply")
    try:
        match data:
            case {"dict": list(pairs)} if len(data) == 1:
                return {decode(key, depth + 1): decode(value, depth + 1) for key, value in pairs}
            case {"unsupported": str(name)} if len(data) == 1:
                return unsupported(name)
            case dict() if len(data) == 1:
                [(tag, items)] = data.items()
                make = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[tag]
                return make(decode(item, depth + 1) for item in items)
    except (TypeError, ValueError, KeyError):
        pass  # an unknown tag, a pair that is none, a set of lists: no kernel of ours sends that
    return unsupported("answer that cannot be read")


def unsupported(name: str) -> Unsupported:
    return type(_printable(name, 80) or "object", (Unsupported,), {})()


def _printable(text: Any, length: int) -> str:
    return "".join(c for c in str(text)[:length] if c.isprintable())


def _exception(raised: Any) -> Exception:
    """An exception that is caught, and reads, as the one that the learner's function raised."""
    match raised:
        case {"types": [str(), *_] as names, "text": str(text), "line": int() | None as line, "code": str(code)}:
            names = [_printable(name, 80) for name in names[:20]]
        case _:
            raise Gone(UNREADABLE)
    known = (getattr(builtins, name, None) for name in names)
    # one that is no Exception, such as SystemExit or KeyboardInterrupt, must not end the grader
    base = next((one for one in known if isinstance(one, type) and issubclass(one, Exception)), Exception)
    if base is NotImplementedError and names[0] != base.__name__:
        base = Exception  # what `input()` raises is one of these, and does not mean "not answered yet"
    plain = base is Exception or issubclass(base, SyntaxError | ExceptionGroup)  # these two need more than a text
    bases = (RemoteError,) if plain else (RemoteError, base)
    error = type(names[0], bases, {"__module__": "builtins"})(_printable(text, MAX_WORDS))
    if line is not None:
        code = _printable(code, MAX_WORDS)
        error.learners_line = f" (your line {line}: {code})" if code else f" (your line {line})"
    return error


# ---- the part that runs in the kernel --------------------------------------------------------------------------------

EXPORTER = r'''
import json, linecache, numbers, operator, os, types
from IPython import get_ipython
from IPython.display import publish_display_data

limits = request["limits"]
left = [limits["items"]]

def encode(value, depth=0):
    """Plain data with its containers tagged. Subclasses are read as what they are underneath."""
    left[0] -= 1
    if depth > limits["depth"] or left[0] < 0:
        raise OverflowError
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, numbers.Integral):
        return operator.index(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, dict):
        return {"dict": [[encode(k, depth + 1), encode(v, depth + 1)] for k, v in dict.items(value)]}
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            return {kind.__name__: [encode(item, depth + 1) for item in kind.__iter__(value)]}
    return {"unsupported": type(value).__name__}

def decode(data):
    if not isinstance(data, dict):
        return data
    [(tag, items)] = data.items()
    if tag == "dict":
        return {decode(k): decode(v) for k, v in items}
    return {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[tag](map(decode, items))

def does_nothing(function):
    import dis
    if not isinstance(function, types.FunctionType):
        return False
    steps = [(step.opname, step.argval) for step in dis.get_instructions(function)]
    return steps == [("RESUME", 0), ("LOAD_CONST", None), ("RETURN_VALUE", None)]

def kept(value):
    """The value as it is encoded, or what stands for one that is too big or odd."""
    try:
        data = encode(value)
        return data if len(json.dumps(data)) < limits["text"] else {"unsupported": "answer that is too big"}
    except (OverflowError, RecursionError):
        return {"unsupported": "answer that is too big"}
    except Exception:
        return {"unsupported": type(value).__name__}

def is_learners(file):
    """Whether a file is a cell of the notebook, or was handed in with it."""
    return "ipykernel_" in file or file.startswith(os.getcwd())

def raised(error):
    frame, trace = None, error.__traceback__
    while trace:
        if is_learners(trace.tb_frame.f_code.co_filename):
            frame = trace
        trace = trace.tb_next
    try:
        text = str(error)[: limits["words"]]
    except Exception:
        text = ""
    line = frame and frame.tb_lineno
    code = linecache.getline(frame.tb_frame.f_code.co_filename, line).strip() if frame else ""
    names = [kind.__name__ for kind in type(error).__mro__]
    return {"types": names, "text": text, "line": line, "code": code[: limits["words"]]}

def answer():
    space = get_ipython().user_ns
    if request["name"] not in space:
        return {"missing": True}
    value = space[request["name"]]
    if value is ...:
        return {"missing": True}
    if request["arguments"]:
        args, kwargs = map(decode, json.loads(request["arguments"]))
        try:
            return {"result": kept(value(*args, **kwargs))}
        except BaseException as error:
            return {"raised": raised(error)}
    if callable(value):
        return {"stub": True} if does_nothing(value) else {"function": True}
    return {"value": kept(value)}

publish_display_data({"text/plain": json.dumps(answer())}, metadata={"answer": request["key"]})
'''
