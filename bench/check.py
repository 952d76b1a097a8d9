"""`check()`, shown and kept: at most 50 ms beyond what the learner's own code takes."""

from __future__ import annotations

import os
import tempfile
import time

from _figure import finish, python_loop, report, seconds, side_by_side

BOUND_MS = 50.0
LEARNERS_MS = 20.0  # what the made-up learner's code takes
CASES = 5

with tempfile.TemporaryDirectory() as state_home:
    os.environ["XDG_STATE_HOME"] = state_home  # nobody's progress is touched

    from helpers.grading import check as checks
    from helpers.grading.suites import lesson01

    def learners_code(number: int) -> int:
        time.sleep(LEARNERS_MS / 1000)
        return number + 1

    suite = checks.Suite(lambda answer: answer, ("a", "b", "c"), "It adds one.")
    for number in range(CASES):

        @suite.case(f"{number} and one", wrong={lambda answer: answer(0) == 0: "you return what you got"})
        def _(answer, number=number):
            assert answer(number) == number + 1, "this is not one more"

    lesson01.bench = suite  # so that check finds it by an id, as it finds every question

    def a_function() -> None:
        checks.check("01.bench", learners_code)._repr_html_()

    def a_wrong_answer() -> None:
        checks.check("01.c1", ["raylet", "gcs", "monitor"])._repr_html_()

    first = seconds(a_wrong_answer)  # with the import of the suites, and the first write
    wrong, loop = side_by_side(a_wrong_answer, python_loop, times=15)
    function, _ = side_by_side(a_function, python_loop, times=5)
    extra = function * 1000 - CASES * LEARNERS_MS

beside = f"a loop of 100 000 turns: {loop * 1000:.3g} ms"
finish(
    report("check() of a wrong answer, the first", first * 1000, BOUND_MS, beside, "ms"),
    report("check() of a wrong answer", wrong * 1000, BOUND_MS, beside, "ms"),
    report("check() beyond the learner's function", extra, BOUND_MS, beside, "ms"),
)
