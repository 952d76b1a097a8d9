"""Lesson 00, start here."""

from __future__ import annotations

from helpers.grading.check import Suite, number
from helpers.versions import PORT_CLIENT, PORT_DASHBOARD, PORT_GCS, PORT_SERVE

# Which port do the dashboard and `ray job submit` use?
c1 = Suite(
    read=number,
    hints=(
        "One of the four ports answers a browser as well as a command. Which of the four would you open in a browser?",
        "`ray job submit --address http://…` and the dashboard speak to the same process of the head.",
        "Read the table of the four ports again, the line whose last column names the dashboard.",
    ),
    explanation=(
        f"The dashboard's process serves HTTP on {PORT_DASHBOARD}: the page for your browser, and the Jobs"
        " API that `ray job submit` calls. The job's program then runs inside the cluster, so your machine"
        " may go away."
    ),
)


@c1.case(
    "the port of the dashboard and of `ray job submit`",
    wrong={
        PORT_GCS: f"{PORT_GCS} is the GCS: other Ray nodes join there. It speaks gRPC, to no browser.",
        PORT_CLIENT: f"{PORT_CLIENT} is Ray Client: Python programs outside the cluster connect there.",
        PORT_SERVE: f"{PORT_SERVE} is Ray Serve: it answers the requests to your own application, if there is one.",
    },
)
def _(port):
    assert port == PORT_DASHBOARD, f"{port} is not one of the four ports of this lesson's table"
