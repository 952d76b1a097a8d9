"""What every notebook of the course says of itself, whichever part writes it."""

from __future__ import annotations

KERNEL = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
# short tag of a cell -> the flags of nbgrader's metadata, schema 3
GRADE_FLAGS = {
    "locked": {"grade": False, "locked": True, "solution": False, "task": False},
    "solution": {"grade": False, "locked": False, "solution": True, "task": False},
    "test": {"grade": True, "locked": True, "solution": False, "task": False},
    "essay": {"grade": True, "locked": False, "solution": True, "task": False},
}
