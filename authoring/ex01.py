# ---
# jupyter:
#   course:
#     id: "ex01"
#     title: "Exercise 01: anatomy of a cluster"
#     minutes: 35
#     run_minutes: 2
#     capabilities: []
#     rows: []
#     memory_gib: 2.5
#     creates: three hosts on this machine, with Ray on each; all of it ends with the cell
# ---

# %% [markdown] tags=["locked:intro"]
# # Exercise 01 · Anatomy of a cluster
#
# Five questions on lesson 01, about half an hour. The first has a cell that starts a cluster. Each question has a cell
# for your answer, and below it a check that you can run as often as you like: it says what is right so far, and what is
# not.
# `hint("ex01.q1")` gives a hint, and one more each time.
#
# You can hand in what you have at any time: each line of a check counts by itself.

# %% tags=["locked:setup"]
from helpers import check, hint  # noqa: F401

# %% [markdown] tags=["locked:ask-q1"]
# ## 1 · A shape for these tasks (7 points)
#
# Three machines, each with 8 cores; Ray is not started yet. Nobody will look into the machines: Ray believes what
# `ray start` says. These tasks are written already:
#
# | task | asks for | shall be able to run on | so many at once, if nothing else runs |
# |---|---|---|---|
# | `serve` | `num_cpus=1` | `gpu-1` and `disk-1`, never on the head | 6, in any division |
# | `train` | `num_cpus=1, num_gpus=1` | only `gpu-1` | 2 |
# | `decode` | `num_cpus=0, resources={"fast_disk": 0.25}` | only `disk-1` | 4 |
# | `watch` | `num_cpus=0, label_selector={"tier": "control"}` | only `head` | any number |
#
# Assign to `shape` a dict with the three hosts. For each give what it says to `ray start`: either the whole command as
# a string (workers join with `--address=head:6379`), or only its options as a dict, such as
# `{"num_cpus": 5, "resources": {"tape": 2}, "labels": {"zone": "a"}}`. More than one shape is right.

# %% tags=["solution:q1"]
shape = {
    "head": None,
    "gpu-1": None,
    "disk-1": None,
}
### BEGIN SOLUTION
shape = {
    "head": "ray start --head --num-cpus=0 --labels=tier=control",
    "gpu-1": "ray start --address=head:6379 --num-cpus=2 --num-gpus=2",
    "disk-1": "ray start --address=head:6379 --num-cpus=4 --resources='{\"fast_disk\": 1}'",
}
### END SOLUTION

# %% tags=["test:test-q1:7"]
check("ex01.q1", shape)

# %% [markdown] tags=["locked:ask-q1_run"]
# ### Start it (4 points)
#
# The next cell starts Ray on three hosts as your `shape` says, submits two tasks more of each kind than shall run at
# once, and shows where they ran. It takes a minute or two, and 2.5 GiB of memory. Run it again after each change.
#
# What it saw is kept in `evidence.jsonl`, beside this notebook. Hand that in too: these points rest on it, until a
# grader starts your shape themselves.

# %% tags=["locked:run-q1"]
from helpers import Lab

lab = Lab.start("ex01")
seen = lab.try_out("ex01.q1_run", shape)
lab.clean_up()
seen

# %% tags=["test:test-q1_run:4"]
check("ex01.q1_run", shape)

# %% [markdown] tags=["locked:ask-q2"]
# ## 2 · Where does it go? (7 points)
#
# This cluster runs, and nothing runs on it yet. There is no autoscaler.
#
# ```sh
# ray start --head --num-cpus=0 --labels=zone=a                                # on head
# ray start --address=head:6379 --num-cpus=4 --labels=zone=a                   # on cpu-1
# ray start --address=head:6379 --num-cpus=2 --num-gpus=1 --labels=zone=b      # on gpu-1
# ```
#
# Each machine has 8 cores, and `cpu-1` has a fast SSD. Each of these tasks comes when the cluster is idle:
#
# | task | is declared with |
# |---|---|
# | `load` | `@ray.remote(num_cpus=4)` |
# | `join` | `@ray.remote(num_cpus=6)` |
# | `ping` | `@ray.remote(num_cpus=0)` |
# | `infer` | `@ray.remote(num_gpus=0.5)` |
# | `tune` | `@ray.remote(num_gpus=1.5)` |
# | `scan` | `@ray.remote(resources={"ssd": 1})` |
# | `report` | `@ray.remote(label_selector={"zone": "a"})` |
#
# Write into `places` for each task a list of **all** the hosts that it can run on, such as `["head", "cpu-1"]`; or
# `"waits"`, if it stays pending; or `"fails"`, if Ray raises an error. What Ray thinks of a declaration you can try in
# a cell of your own, without a cluster: `import ray` and `ray.remote(num_cpus=4)(print)`.

# %% tags=["solution:q2"]
places = {
    "load": None,
    "join": None,
    "ping": None,
    "infer": None,
    "tune": None,
    "scan": None,
    "report": None,
}
### BEGIN SOLUTION
places = {
    "load": ["cpu-1"],
    "join": "waits",
    "ping": ["head", "cpu-1", "gpu-1"],
    "infer": ["gpu-1"],
    "tune": "fails",
    "scan": "waits",
    "report": ["cpu-1"],
}
### END SOLUTION

# %% tags=["test:test-q2:7"]
check("ex01.q2", places)

# %% [markdown] tags=["locked:ask-q3"]
# ## 3 · A machine loses power (8 points)
#
# A driver runs on the head. `worker-1` loses power, with all that is on it. `worker-2` lives, and has room for
# everything. What becomes of each of these? Where nothing is said, Ray's defaults hold, and the driver on the head made
# it.
#
# | name | what it is |
# |---|---|
# | `resize` | a task that was running on `worker-1` |
# | `charge` | a task that was running on `worker-1`, with `max_retries=0`: it charges a credit card |
# | `counter` | an actor on `worker-1` with `max_restarts=1`; it had counted to 40 |
# | `registry` | an actor on `worker-1` with `lifetime="detached"` |
# | `table` | 8 MB, the result of a task that had finished on `worker-1`; there is no other copy |
# | `sample` | 8 MB that a task on `worker-1` stored with `ray.put`; it returned the reference, in a list |
# | `config` | 8 MB that the driver stored with `ray.put`; a task on `worker-1` had read it |
# | `audit` | an actor on `worker-2`, made by a second driver, a program that ran on `worker-1` |
#
# Write into `fates` for each of them: `"unharmed"`; `"runs again"` (a task); `"starts anew"` (an actor, without its old
# state); `"rebuilt"` (an object, when somebody asks for it); or `"lost"`.

# %% tags=["solution:q3"]
fates = {
    "resize": None,
    "charge": None,
    "counter": None,
    "registry": None,
    "table": None,
    "sample": None,
    "config": None,
    "audit": None,
}
### BEGIN SOLUTION
fates = {
    "resize": "runs again",  # max_retries is 3 by default
    "charge": "lost",
    "counter": "starts anew",  # and counts from 0
    "registry": "lost",  # max_restarts is 0; detached only means that it outlives its driver
    "table": "rebuilt",
    "sample": "lost",  # its owner was the worker process that called ray.put
    "config": "unharmed",  # worker-1 had a copy, the head has the object
    "audit": "lost",  # it ends with the driver that made it
}
### END SOLUTION

# %% tags=["test:test-q3:8"]
check("ex01.q3", fates)

# %% [markdown] tags=["locked:ask-q4"]
# ## 4 · How many at once? (7 points)
#
# Write `max_parallel(hosts, demand)`. It returns how many tasks that each ask for `demand` can run at the same time, if
# nothing else runs.
#
# - `hosts` says what each Ray node declared, such as `{"head": {"CPU": 0}, "w-1": {"CPU": 4, "GPU": 1}}`.
# - `demand` is what one task asks for, such as `{"CPU": 1, "GPU": 0.5}`. At least one amount is above 0.
#
# Plain Python, no Ray. The numbers of a host are whole; those of a task may be fractions, in steps of 0.0001. When you
# hand this in, it is called with other clusters and tasks too.


# %% tags=["solution:q4"]
def max_parallel(hosts, demand):
    """How many tasks that ask for `demand` can run at once."""
    ### BEGIN SOLUTION
    # whole steps of 0.0001, because 3 // 0.1 is 29
    steps = {name: round(amount * 10_000) for name, amount in demand.items() if amount > 0}
    return sum(
        min(offers.get(name, 0) * 10_000 // amount for name, amount in steps.items()) for offers in hosts.values()
    )
    ### END SOLUTION
    raise NotImplementedError


# %% tags=["test:test-q4:7"]
check("ex01.q4", max_parallel)

# %% [markdown] tags=["locked:ask-q5"]
# ## 5 · In your own words (4 points)
#
# A colleague says: *"The head of our cluster is overloaded, because its scheduler has to place every task. Let us give
# it more CPUs."*
#
# Answer in 3 to 5 sentences, as you would in an interview: what is wrong with that, and what would you look at? A
# person marks this answer, so it has no check. Double-click the next cell to write.

# %% [markdown] tags=["essay:q5:4"]
# The head does not place every task. Each Ray node has a raylet that schedules for it: whoever owns a task, mostly the
# driver, asks a raylet for a worker process, and the raylet of the Ray node that has room grants it. The GCS takes
# part when an actor is created, not when a task runs. So I would first see which processes on the head use its CPUs:
# drivers, because `ray job submit` starts them there; tasks, if the head was started without `--num-cpus=0`; or the
# GCS and the dashboard. More CPUs would only draw more tasks there if the head offers them; I would move drivers or
# tasks away first.
#
# ### BEGIN MARK SCHEME
#
# One point for each:
#
# 1. Scheduling is spread: each Ray node's raylet grants the leases of its own worker processes. (Not enough: "Ray is
#    distributed".)
# 2. The way of a task does not lead through the head: its owner asks a raylet, or a raylet sends it on to another
#    (spillback). The GCS is for actors and placement groups.
# 3. A real load of the head by name: drivers of `ray job submit`; tasks, because the head offers CPUs; very many actors
#    on the GCS; the dashboard.
# 4. Something to look at that tells these apart: CPU by process on the head, where the drivers run, what the head
#    declared (`ray status`, its `ray start`), which tasks ran there.
#
# No points off for language, nor for more than 5 sentences. An answer that only says "add CPUs" has 0.
#
# ### END MARK SCHEME

# %% [markdown] tags=["locked:end"]
# Save, and press *Validate* in the toolbar above: it runs all from the top, in a fresh kernel. It says which checks of
# questions 1 to 4 are not full yet, and whether there is something written for question 5.
