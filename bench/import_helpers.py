"""`import helpers` in a new Python: at most 0.3 s, the start of Python included, and nothing heavy is loaded."""

from __future__ import annotations

import subprocess
import sys

from _figure import bare_python, finish, report, side_by_side

BOUND_S = 0.3
HEAVY = {"ray", "IPython", "ipywidgets", "matplotlib", "kubernetes"}


def import_helpers() -> None:
    subprocess.run([sys.executable, "-c", "import helpers"], check=True)


code = "import sys, helpers; print(*{name.partition('.')[0] for name in sys.modules})"
loaded = HEAVY & set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split())
print(f"✘ import helpers loads {', '.join(sorted(loaded))}" if loaded else "✔ import helpers loads nothing heavy")
figure, beside = side_by_side(import_helpers, bare_python, times=9)
finish(not loaded, report("import helpers", figure, BOUND_S, f"Python alone: {beside:.3g} s"))
