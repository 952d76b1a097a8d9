# ---
# jupyter:
#   course:
#     id: "01"
#     title: "Anatomy: a cluster by hand"
#     minutes: 30
#     run_minutes: 3
#     capabilities: []
#     rows: ["0.4", "0.20", "1.3", "1.4", "2.9"]
#     memory_gib: 2
#     creates: five hosts on this machine, at most three with Ray at a time; all of it ends with the last cell
# ---

# %% [markdown]
# # 01 · Anatomy: a cluster by hand
#
# KubeRay, cluster launchers and managed services all end in the same two commands, typed on different machines. In this
# lesson you type them. Then you take the cluster apart: what runs where, who decides where a task goes, which way the
# bytes go, and what dies with what.

# %%
from helpers import Lab, check, predict, quiz, wait_until

lab = Lab.start("01")
head, worker_1, worker_2 = hosts = lab.hosts("head", "worker-1", "worker-2")

# %% [markdown]
# ## 1 · A head, and what joins it
#
# A Ray cluster is a set of processes, nothing more. `ray start --head` starts those of the head. `--num-cpus=0` says
# that no task which asks for a CPU may run there; section 7 shows why.

# %% [markdown]
# The settings in `clocks` are no part of a normal start. They make Ray notice failures sooner than by default, so that
# we need not wait long.

# %%
small = "--object-store-memory=100000000"
clocks = "RAY_health_check_period_ms=500 RAY_gcs_rpc_server_reconnect_timeout_s=5"
clocks += " RAY_debug_dump_period_milliseconds=1000"
head.run(f"{clocks} ray start --head --num-cpus=0 --dashboard-host=0.0.0.0 --labels=host=head {small}", quiet=True)
head.processes()

# %% [markdown]
# Two hosts will join. What a host *offers* is what you type: `worker-2` will say that it has a GPU and a fast disk, and
# Ray will believe it. Look at the list above once more before you predict.

# %%
predict(
    "01.p1",
    "The head runs 8 kinds of Ray process. How many of these 8 does a worker run as well?",
    choices=[0, 2, 4, 8],
    answer=None,
)

# %%
join = f"{clocks} ray start --address=head:{head.ports['gcs']} --num-cpus=1 {small}"
worker_1.run(f"{join} --labels=host=worker-1", quiet=True)
worker_2.run(f"{join} --labels=host=worker-2 --num-gpus=1 --resources='{{\"fast_disk\": 1}}'", quiet=True)
on_head, on_worker = head.processes().parts, worker_1.processes().parts
assert on_head - on_worker == {"gcs_server", "monitor", "client server", "dashboard"}
assert "raylet" in on_head & on_worker
display(worker_1.processes(), predict("01.p1").reveal(len(on_head & on_worker)))

# %% [markdown]
# It is often said that the head has *the* Ray scheduler. It has not. **Every Ray node has a raylet, which is the
# scheduler of its own Ray node** and holds its object store.
#
# What the head alone has serves the whole cluster: the Global Control Store (GCS), the dashboard, the autoscaler's
# monitor, the Ray Client server.

# %% [markdown]
# **Check.** Which processes run on the head only? Put their names into the list.

# %%
check("01.c1", answer=[])

# %% [markdown]
# ## 2 · Groups of different machines
#
# Reinforcement learning is the classic case: hundreds of cheap CPU processes play (rollouts), a few costly GPUs learn.
# With one kind of machine for both, most GPUs would idle. So clusters have **groups** of machines, and work says what
# it needs.

# %% [markdown]
# `jobs/where.py` has the program of lesson 00: tasks that say where they ran. This time they ask for different things.

# %%
predict(
    "01.p2",
    "worker-2 said --num-gpus=1, but say that there is no GPU in it. A task asks for num_gpus=1. What happens?",
    choices=["it fails", "it waits for ever", "it runs on worker-2"],
    answer=None,
)

# %%
from jobs.where import where

driver = lab.driver(head)
ran = {
    "num_cpus=1": driver.run(where, 6, num_cpus=1),
    "num_gpus=1": driver.run(where, 2, num_gpus=1),
    "fast_disk": driver.run(where, 2, resources={"fast_disk": 1}),
    "num_cpus=0": driver.run(where, 2, num_cpus=0),
}
counts = {ask: {host.name: names.count(host.name) for host in hosts} for ask, names in ran.items()}
lab.bars(counts, title="Where tasks ran, by what they asked for", unit="tasks")
assert set(ran["num_cpus=1"]) == {"worker-1", "worker-2"} and "head" in ran["num_cpus=0"]
assert set(ran["num_gpus=1"]) == set(ran["fast_disk"]) == {"worker-2"}
predict("01.p2").reveal(f"it runs on {ran['num_gpus=1'][0]}")

# %% [markdown]
# **Resources are numbers that you declare**, on both sides. Ray adds and subtracts them; it measures nothing. That is
# why a laptop can show where GPU tasks go, and why a need that is not declared does not exist for Ray.

# %% [markdown]
# The last group shows the limit of `--num-cpus=0`. It keeps away what asks for a CPU, and no more: a task that asks for
# none fits anywhere, and ran on the head.

# %% [markdown]
# ## 3 · Which way the bytes go
#
# A task on `worker-2` makes an array of 32 MB, a task on `worker-1` uses it. The driver, on the head, only holds the
# reference. We count what goes through the network card of each host.


# %%
def hand_over():
    import numpy
    import ray

    make = ray.remote(label_selector={"host": "worker-2"})(lambda: numpy.ones(4_000_000))
    use = ray.remote(label_selector={"host": "worker-1"})(lambda array: array.nbytes)
    array = make.remote()
    size = ray.get(use.remote(array))
    names = {ray_node["NodeID"]: ray_node["Labels"]["host"] for ray_node in ray.nodes()}
    return size, {names[id] for id in ray.experimental.get_object_locations([array])[array]["node_ids"]}


with lab.traffic(*hosts) as moved:
    size, holders = driver.run(hand_over)
lab.bars(moved, title="Through the network card of each host", unit="MB")
assert size == 32_000_000 and holders == {"worker-1", "worker-2"}
if lab.separate:
    assert moved["worker-1"]["received"] > 30 and moved["head"]["received"] < 3

# %% [markdown]
# **An object goes from the store that has it to the store that wants it**, by way of neither the head nor the driver.
# Both workers now hold a copy.

# %% [markdown]
# ## 4 · Who placed that task?
#
# Two things are often said: *tasks are submitted through the head*, and *all task metadata flows through the GCS*. We
# can test both. `kill -STOP` freezes a process without ending it.
#
# The tasks will be those of section 2, so the workers have their code. (The code of a *new* function does go through
# the GCS, once.)

# %%
predict(
    "01.p3",
    "The GCS is frozen. The driver submits four tasks like those that ran before. What happens?",
    choices=["they run", "they wait until the GCS goes on"],
    answer=None,
)


# %%
def create_actor():
    import ray

    @ray.remote(num_cpus=0)
    class Counter:
        def ping(self):
            return "alive"

    return ray.get(Counter.remote().ping.remote())


head.freeze("gcs_server")
try:
    assert driver.start(where, 4, num_cpus=1).done_within(20)
    actor = driver.start(create_actor)
    assert not actor.done_within(3)
finally:
    head.thaw("gcs_server")
print("The actor, after the thaw:", actor.result())
predict("01.p3").reveal("they run")

# %% [markdown]
# The tasks ran; the actor came only after the thaw. **Creating an actor goes through the GCS, running a task does
# not.**
#
# So who decides? Whoever runs a task has a *lease* on a worker process. Each raylet counts the requests for a lease
# that reach it. We run a task that fits on `worker-2` only, and ask for its parent process.


# %%
def parent_of(**needs):
    import os

    import psutil
    import ray

    name = ray.remote(**needs)(lambda: (os.environ["HOSTNAME"], psutil.Process(os.getppid()).name()))
    return ray.get(name.remote())


with lab.lease_requests(*hosts) as asked:
    parent = driver.run(parent_of, num_gpus=1)
lab.bars(asked, title="Requests for a lease, by the raylet that was asked", unit="requests")
assert parent == ("worker-2", "raylet")
assert asked["head"] > 0 and asked["worker-2"] > 0 and asked["worker-1"] == 0
parent

# %% [markdown]
# The driver asked the raylet of its own host, the head. That one has no GPU to lend, and answered with the address of
# `worker-2`: this is **spillback**. The driver asked there, and **the raylet of `worker-2` granted the lease**, on a
# process that it had started itself. `worker-1` was not asked.

# %% [markdown]
# **Check.** A task ran on `worker-2`. Who granted the lease: `"gcs"`, `"head raylet"`, `"worker-2 raylet"` or
# `"driver"`?

# %%
check("01.c3", answer="")

# %% [markdown]
# Then why do heads get overloaded? Because of where **drivers** are. We submit a job from `worker-1`; its driver prints
# the name of the host that it is on.

# %%
url = f"http://{head.address}:{head.ports['dashboard']}"
job = worker_1.run(f"ray job submit --address={url} -- printenv HOSTNAME")
assert "head" in job.output.splitlines()

# %% [markdown]
# `ray job submit` puts a driver on the head, unless the job asks for resources (`--entrypoint-num-cpus`). A driver owns
# its tasks and asks for each lease. A hundred drivers make a busy head, and no scheduler is to blame.

# %% [markdown]
# ## 5 · What dies with what
#
# On `worker-1` we put an actor that counts, an object that a task made, and a task that is still running. A diary on
# `worker-2` notes each time that one of the two tasks begins. Nothing in `jobs/what_dies.py` asks for retries or
# restarts: **Ray's defaults** decide. Read it before you predict.

# %%
predict(
    "01.p4",
    "The raylet of worker-1 is killed. Which of the three can still be had afterwards?",
    choices=["all three", "task and object", "only the task", "none"],
    answer=None,
)

# %%
from jobs import what_dies

driver.run(what_dies.prepare, driver.kept, "worker-1")
worker_1.kill("raylet")
left = driver.run(what_dies.aftermath, driver.kept)
assert left["task"] == "done" and left["actor"] == "ActorDiedError" and left["object"] == "8000000 bytes"
for task in ("make_object", "slow_task"):
    assert [line.split()[-1] for line in left["diary"] if task in line] == ["worker-1", "worker-2"]
display(left, predict("01.p4").reveal("task and object"))

# %% [markdown]
# Read the diary. The **task** began a second time: its owner, the driver, saw its worker vanish and submitted it again
# (`max_retries` is 3). The **object** was made again when somebody asked for it: the owner remembers which task made
# it. The **actor** is gone: `max_restarts` is 0, and nothing remembers how far it had counted.

# %% [markdown]
# **Check.** For each of the three write `"retried"`, `"lost"` or `"rebuilt"`.

# %%
check("01.c2", answer={"task": "", "actor": "", "object": ""})

# %% [markdown]
# ## 6 · And the GCS?
#
# Frozen for a moment, it was not missed by running tasks. Now we kill it for good. By default a raylet waits 60 seconds
# for it to come back; ours wait 5 (see `clocks`).

# %%
head.kill("gcs_server")
wait_until(
    lambda: not any("raylet" in host.processes().parts for host in hosts),
    60,
    what="the raylets to give up waiting for the GCS",
)
head.processes()

# %% [markdown]
# No raylet, no cluster. **Without GCS fault tolerance, the loss of the head is the loss of everything.** Lesson 10
# gives the GCS a store outside the head.
#
# ## 7 · Break it: a head that works
#
# What is left of the old cluster is switched off. Two new hosts, one change: this head offers its CPUs, as it does by
# default.

# %%
for host in hosts:
    host.switch_off()
head_b, worker_b = lab.hosts("head-b", "worker-b")
head_b.run(f"ray start --head --num-cpus=2 {small}", quiet=True)
worker_b.run(f"ray start --address=head-b:{head_b.ports['gcs']} --num-cpus=2 {small}", quiet=True)
first = lab.driver(head_b).run(where, 1, num_cpus=1)
assert first == ["head-b"]
first

# %% [markdown]
# A worker stood idle, and the task went to the head: the first raylet to be asked is the one of the driver's own Ray
# node, and it keeps what fits. There tasks compete with the GCS and the dashboard. That is why heads in this course
# have `--num-cpus=0`.

# %% [markdown]
# ## What you can now say in an interview
#
# > Every Ray node has a raylet that schedules for it; the head adds the GCS, the dashboard, the autoscaler and the
# > client server. A driver leases workers from raylets, objects go from store to store, actors and Ray nodes are the
# > GCS's business. By default tasks are retried and objects rebuilt, actors are not, and the cluster dies with its GCS.

# %%
display(quiz("01.q1", answer=""), quiz("01.q2", answer=""))

# %% [markdown]
# Now do [exercise 01](../exercises/ex01/ex01.ipynb): five questions, about half an hour, no cluster. The last cell ends
# all that the lesson started.

# %%
lab.clean_up()
