# ---
# jupyter:
#   course:
#     id: "00"
#     title: Start here
#     minutes: 15
#     run_minutes: 1
#     capabilities: []
#     rows: []
#     memory_gib: 2
#     creates: two hosts on this machine, with Ray on each; all of it ends with the last cell
# ---

# %% [markdown]
# # 00 · Start here
#
# This course is about Ray clusters: how one is put together, how Kubernetes runs it, and what makes it grow and shrink.
# Nothing in it is a recording. Each cell runs real Ray processes on this machine, and what the text claims, a cell
# shows.
#
# **Run the cells from top to bottom with Shift+Enter.** Each lesson starts with the cell below.

# %%
from helpers import Lab, check, hint, predict, quiz

lab = Lab.start("00")

# %% [markdown]
# The five lines say what this lesson runs on, what it asks of this machine and what it creates. If an earlier run was
# interrupted, a line says what was left of it and is ended now.
#
# ## What this machine can do
#
# The next cell shows the table that `course doctor` prints in a terminal. A gap has its cost and the command that
# closes it.

# %%
lab.machine()

# %% [markdown]
# ## What is where
#
# | folder | what it holds |
# |---|---|
# | `lessons/` | the notebooks, in order |
# | `interview/` | the question cards that lessons end with |
# | `helpers/` | the Python behind `lab`; read it if you wonder how a thing is done |
# | `authoring/` | the sources that the notebooks are made from |
#
# What you answer is kept in your own state directory, not in this folder.

# %% [markdown]
# ## 1 · One machine, and a thousand
#
# Ray is for Python programs that outgrow one machine. You mark a function with `@ray.remote`, call it with `.remote()`,
# and Ray runs it as a **task**, on any machine of the cluster that has room.
#
# We start with a cluster of one host. The line after `$` is what you would type on it yourself.

# %%
(head,) = lab.hosts("head")
head.run("ray start --head --num-cpus=1 --object-store-memory=100000000", quiet=True)

# %% [markdown]
# The program below asks each of its tasks on which host it ran. The program that submits tasks is called the
# **driver**. Ours runs on the head host, as if you had logged in there and started Python.


# %%
def where(tasks):
    import os
    import time

    import ray

    @ray.remote(num_cpus=1)
    def host():
        time.sleep(0.5)
        return os.environ["HOSTNAME"]

    return ray.get([host.remote() for _ in range(tasks)])


# %%
driver = lab.driver(head)
alone = driver.run(where, 4)
alone

# %% [markdown]
# One Ray node with one CPU: four tasks, one after the other, all on `head`. Now a second host will join.

# %%
predict(
    "00.p1",
    "A second host joins the cluster. What must change in the function `where`, so that its tasks use both?",
    choices=["nothing", "it must name the hosts", "it must start Ray on the second host"],
    answer=None,
)

# %%
(second,) = lab.hosts("second")
second.run(f"ray start --address=head:{head.ports['gcs']} --num-cpus=1 --object-store-memory=100000000", quiet=True)
together = driver.run(where, 4)
lab.bars({name: together.count(name) for name in ("head", "second")}, title="The same program, two hosts", unit="tasks")

# %%
assert set(alone) == {"head"} and set(together) == {"head", "second"}
predict("00.p1").reveal("nothing")

# %% [markdown]
# Not a letter of the program changed. That is Ray's promise, from one machine to a thousand.
#
# What does change is where each piece runs and **what can fail**: bytes cross a network, and one machine can die while
# the others go on. That is why tasks declare what they need, and why Ray has retries. Lesson 01 shows both.

# %%
quiz("00.q1", answer="")

# %% [markdown]
# ## 2 · Four ports, and who talks to them
#
# | port | on the head | who talks to it |
# |---|---|---|
# | 6379 | the Global Control Store (GCS) | every Ray node, from the moment it joins, and drivers in the cluster |
# | 8265 | the dashboard | your browser, and `ray job submit` |
# | 10001 | the Ray Client server | a Python program outside that uses `ray://` |
# | 8000 | Ray Serve | the users of an application, once there is one |

# %%
listeners = head.listeners()
{f"{use}, port {port}": listeners.get(port, "nobody listens") for use, port in head.ports.items() if use != "agent"}

# %%
assert listeners[head.ports["gcs"]] == "gcs_server"
assert listeners[head.ports["dashboard"]] == "dashboard"
assert listeners[head.ports["client"]] == "client server"
assert head.ports["serve"] not in listeners

# %% [markdown]
# Three are open from the start. Nobody listens on the fourth: Serve opens it when the first application is deployed.
#
# Where hosts share this machine's network (see *Backend* above), each port is shifted, out of the way of other Rays.
#
# **Whoever reaches 8265 or 10001 can run code on the cluster.** So the clusters of this course ask for a token, as Ray
# 2.60 does for a cluster that `ray.init()` starts by itself.

# %%
quiz("00.q2", answer="")

# %% [markdown]
# ## 3 · How questions work here
#
# **`predict`** asks before a run. Choose and press *Commit*, or write the answer into the cell after `answer=`. Your
# first answer stays: to be wrong before the run is how the run is remembered.

# %% [markdown]
# **`check`** asks after it, and says what is right about an answer and what is not. The next one is answered wrong on
# purpose. Which port do the dashboard and `ray job submit` use? Run it, read, mend it.

# %%
check("00.c1", answer=6379)

# %% [markdown]
# A `✘` comes with a reason, not with the answer. If that is not enough, ask for a hint: each call gives one more, three
# in all. A hint costs nothing.

# %%
hint("00.c1")

# %% [markdown]
# **`quiz`** cards ask what an interviewer asks. They can be answered with the keyboard alone (Tab, then Space), or as
# text: `quiz("00.q1", answer="b")`.
#
# No answer is ever overwritten or lost when you restart the kernel or run a cell again. `course reset --progress` in a
# terminal begins anew, and keeps a copy.

# %% [markdown]
# ## 4 · Leave nothing behind
#
# The last cell of a lesson ends what the lesson started, process by process. If you close the notebook instead, or its
# kernel dies, the hosts end with it. A Ray that you run yourself on this machine is not touched.

# %% [markdown]
# > **Say it in an interview.** Ray runs the same program on one machine or a thousand: you declare what a task needs,
# > and Ray finds a place. What changes is where things run and what can fail.

# %%
lab.clean_up()
