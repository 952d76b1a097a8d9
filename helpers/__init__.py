"""Helpers of the course *Ray Clusters, KubeRay and Autoscaling*.

`from helpers import Lab, check, hint, predict, quiz` is all that a notebook needs. Nothing is loaded until a name is
used, so that `import helpers` costs milliseconds, and a tool that wants one module does not load Ray.
"""

from __future__ import annotations

from importlib import import_module

_HOME_OF = {
    "Lab": "helpers.lab",
    "CourseError": "helpers.errors",
    "wait_until": "helpers.wait",
    "check": "helpers.grading.check",
    "hint": "helpers.grading.check",
    "predict": "helpers.widgets.predict",
    "quiz": "helpers.widgets.quiz",
    "versions": "helpers.versions",
}
__all__ = sorted(_HOME_OF)


def __getattr__(name: str):
    if name not in _HOME_OF:
        raise AttributeError(f"module 'helpers' has no attribute {name!r}")
    module = import_module(_HOME_OF[name])
    return module if name == "versions" else getattr(module, name)


def __dir__() -> list[str]:
    return __all__
