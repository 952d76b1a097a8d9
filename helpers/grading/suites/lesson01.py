"""Lesson 01, anatomy: a cluster by hand."""

from __future__ import annotations

from helpers.grading.check import Suite, fill_in, filled, names_of, one_of, says

# Which of these processes run on the head only?
c1 = Suite(
    read=names_of(
        "gcs_server",
        "raylet",
        "dashboard",
        "monitor",
        "ray_client_server",
        "dashboard_agent",
        "runtime_env_agent",
        "log_monitor",
        "object_store",
        also={
            "gcs": "gcs_server",
            "autoscaler": "monitor",
            "autoscaler monitor": "monitor",
            "client server": "ray_client_server",
            "ray client": "ray_client_server",
            "plasma": "object_store",
            "plasma store": "object_store",
            "runtime env": "runtime_env_agent",
        },
    ),
    hints=(
        "Put the process list of the head beside that of worker-1, and strike out what stands in both.",
        "Ask of each process: does every Ray node need its own to run tasks and hold objects? Or does one"
        " serve them all?",
        "Four are left: one keeps records, one serves a page, one lets programs outside in, one watches demand.",
    ),
    explanation=(
        "One record keeper (the GCS), one dashboard, one autoscaler monitor and one Ray Client server"
        " serve the whole cluster. All that runs tasks is on every Ray node, the head included: a raylet,"
        " which is the scheduler of its own Ray node and holds its object store, and the agents and log"
        " monitor beside it."
    ),
)


@c1.case("the process that keeps the cluster's records")
def _(names):
    assert "gcs_server" in names, (
        "one process that is not among your names knows every Ray node, actor and job; look which one the"
        " workers connect to"
    )


@c1.case("what a person's browser, or a program outside the cluster, connects to")
def _(names):
    seen = len({"dashboard", "ray_client_server"} & names)
    assert seen == 2, f"you have {seen} of 2: look which processes listen on the head's ports of lesson 00"


@c1.case(
    "the process that watches for demand that fits nowhere",
    wrong={
        lambda names: "log_monitor" in names: (
            "two names have to do with watching: one of them collects the log files of its own Ray node,"
            " wherever that is"
        )
    },
)
def _(names):
    assert "monitor" in names, (
        "adding Ray nodes is decided once for the whole cluster; the process for it is not among your names"
    )


@c1.case(
    "where the scheduler and the object store belong",
    wrong={
        lambda names: "raylet" in names: (
            "every Ray node has a raylet: it is the scheduler of its own Ray node; the head has no scheduler for all"
        )
    },
)
def _(names):
    assert "object_store" not in names and "raylet" not in names, (
        "the object store is memory that the tasks of one Ray node share; tasks run on more than the head"
    )


@c1.case("where the agents and the log monitor belong")
def _(names):
    extra = sorted({"dashboard_agent", "runtime_env_agent", "log_monitor"} & names)
    assert not extra, f"look for {' and '.join(extra)} in the process list of a worker"


# A raylet was killed with kill -9. On its Ray node were a running task (max_retries at its default, 3), an actor
# (max_restarts at its default, 0), and an object that a finished task had made. The driver lives. What becomes of each?
c2 = Suite(
    read=fill_in(
        "task",
        "actor",
        "object",
        words=one_of(
            "retried",
            "lost",
            "rebuilt",
            also={
                "retry": "retried",
                "rerun": "retried",
                "restarted": "retried",
                "dead": "lost",
                "died": "lost",
                "gone": "lost",
                "reconstructed": "rebuilt",
                "recomputed": "rebuilt",
            },
        ),
    ),
    hints=(
        "Scroll up: the cells after the kill show all three. Which raised, and which gave a value after a while?",
        "The two defaults in the question are the answer for two of the three: 3 tries more, and 0.",
        "For the third: its owner remembers by which task it was made, and that task can run once more.",
    ),
    explanation=(
        "The task's owner, here the driver, sees its worker vanish and submits the task again, at most"
        " max_retries=3 times. The actor has max_restarts=0, so each call to it now raises ActorDiedError."
        " The object's bytes are gone, but its owner keeps its lineage, the task that made it, and runs"
        " that again when somebody needs the object. An object from ray.put has no such task and would be"
        " lost."
    ),
)


@c2.case(
    "the task",
    wrong={
        says("task", "lost"): "max_retries is 3 here; what would that number be for, if a task just ended so?",
        says("task", "rebuilt"): "that is said of data; a task is work, and its owner still wants the result",
    },
)
def _(words):
    assert filled(words, "task") == "retried"


@c2.case(
    "the actor",
    wrong={
        says("actor", "retried"): "actors are not restarted unless max_restarts says so, and it says 0",
        says("actor", "rebuilt"): "its state was in its process, and no task made it: Ray cannot compute it again",
    },
)
def _(words):
    assert filled(words, "actor") == "lost"


@c2.case(
    "the object",
    wrong={
        says("object", "lost"): "its bytes went with the Ray node, but its owner remembers how it came to be",
        says("object", "retried"): "that is said of the task that made it; what comes of it for the object?",
    },
)
def _(words):
    assert filled(words, "object") == "rebuilt"


# A task ran on worker-2. Who granted the lease for the worker process that it ran in?
c3 = Suite(
    read=one_of(
        "gcs",
        "head raylet",
        "worker-2 raylet",
        "driver",
        also={
            "gcs_server": "gcs",
            "raylet of the head": "head raylet",
            "raylet of worker-2": "worker-2 raylet",
            "raylet on worker-2": "worker-2 raylet",
            "owner": "driver",
        },
    ),
    hints=(
        "A lease lends out a worker process. Whose worker processes are they, and who started them?",
        "A raylet knows what is free on its own Ray node at this moment. About the others it has only what"
        " it heard last.",
        "Take the process that the task ran in. On which Ray node is it, and which process is its parent?",
    ),
    explanation=(
        "A lease is for a worker process, and only the raylet of that Ray node hands those out. The task's"
        " owner asks a raylet first (mostly its own); one that has not what the task needs answers with the"
        " address of another, which is spillback, and the owner asks there. Neither the GCS nor a scheduler"
        " of the head takes part."
    ),
)


@c3.case(
    "who granted the lease",
    wrong={
        "gcs": "the GCS sees to actors and placement groups; for a normal task nobody asks it for a place",
        "head raylet": "the head's raylet lends out the worker processes of the head; this task ran in none of those",
        "driver": "the driver owns the task and asks for the lease; to ask is not to grant",
    },
)
def _(who):
    assert who == "worker-2 raylet"
