# ---
# jupyter:
#   course:
#     id: "ex03"
#     title: "Exercise 03: RayClusters"
#     minutes: 40
#     run_minutes: 3
#     capabilities: [kubernetes, autoscaler, fake_gpu]
#     rows: []
#     memory_gib: 3
#     creates: one RayCluster of three Pods, in a namespace of its own, which ends with the cell
# ---

# %% [markdown] tags=["locked:intro"]
# # Exercise 03 · RayClusters
#
# Six questions on lesson 03, about forty minutes. You write one manifest and repair three; the first one you also apply
# to a cluster. Each question has a cell for your answer, and below it a check that you can run as often as you like: it
# says what is right so far, and what is not. `hint("ex03.q1")` gives a hint, and one more each time.
#
# You can hand in what you have at any time: each line of a check counts by itself.

# %% tags=["locked:setup"]
from helpers import check, hint  # noqa: F401

# %% [markdown] tags=["locked:machines"]
# ## The machines
#
# All questions are about these Kubernetes nodes, which are those of `course up`, and on which nothing else runs. They
# have no labels but their names (`kubernetes.io/hostname`).
#
# | Kubernetes node | CPUs | memory | `nvidia.com/gpu` | taint |
# |---|---|---|---|---|
# | `cpu-a` | 8 | 16 GiB | | |
# | `cpu-b` | 8 | 16 GiB | | |
# | `gpu-a` | 32 | 128 GiB | 4 | `nvidia.com/gpu=present:NoSchedule` |
#
# The cluster has KubeRay 1.6.2, and one image of Ray: `rayproject/ray:2.60.0-py311`. A check does what the API server,
# the operator, Ray and the scheduler of Kubernetes do with a manifest; how you write it is up to you.

# %% [markdown] tags=["locked:ask-q1"]
# ## 1 · A manifest to a brief (10 points)
#
# Assign to `atlas` the manifest of a RayCluster, as YAML text or as a dict:
#
# - Its name is `atlas`. All of it runs the image above, and KubeRay knows which Ray that is.
# - The head runs no tasks, and stays off the machine with GPUs.
# - The group `cpu` has at least 1 and at most 4 workers. Ray counts 2 CPUs on each, and 1 of the custom resource
#   `fast_disk`.
# - The group `gpu` has at least 1 and at most 2 workers, where the GPUs are. Ray counts 2 CPUs and 1 GPU on each.
# - How much memory is up to you; 2 GiB are enough for a Ray container. What Ray counts of CPUs and memory, Kubernetes
#   keeps.
# - An autoscaler chooses the number of workers. An idle worker goes after 60 s; one of `gpu` only after 5 minutes.

# %% tags=["solution:q1"]
atlas = """
"""
### BEGIN SOLUTION
IMAGE = "rayproject/ray:2.60.0-py311"


def pod(cpus, more=None, **spec):
    """A Pod's template; limits and requests are the same."""
    amounts = {"cpu": str(cpus), "memory": "2Gi", **(more or {})}
    container = {"name": "ray", "image": IMAGE, "resources": {"limits": amounts, "requests": amounts}}
    return {"spec": {"terminationGracePeriodSeconds": 5, "containers": [container], **spec}}


atlas = {
    "apiVersion": "ray.io/v1",
    "kind": "RayCluster",
    "metadata": {"name": "atlas"},
    "spec": {
        "rayVersion": "2.60.0",
        "enableInTreeAutoscaling": True,
        # v2 is written out, because a group has an idle timeout of its own
        "autoscalerOptions": {"version": "v2", "idleTimeoutSeconds": 60},
        "headGroupSpec": {"rayStartParams": {"num-cpus": "0"}, "template": pod(1)},
        "workerGroupSpecs": [
            {
                "groupName": "cpu",
                "minReplicas": 1,
                "maxReplicas": 4,
                # the shell takes the single quotes off, and JSON is left
                "rayStartParams": {"resources": """'{"fast_disk": 1}'"""},
                "template": pod(2),
            },
            {
                "groupName": "gpu",
                "minReplicas": 1,
                "maxReplicas": 2,
                "idleTimeoutSeconds": 300,
                "template": pod(
                    2, {"nvidia.com/gpu": "1"}, tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}]
                ),
            },
        ],
    },
}
### END SOLUTION

# %% tags=["test:test-q1:10"]
check("ex03.q1", atlas)

# %% [markdown] tags=["locked:ask-q1_run"]
# ### Apply it (4 points)
#
# The next cell applies your `atlas` to a cluster, in a namespace of its own, waits until it has settled, and shows what
# came of it: each Pod, its machine, and what Ray counts on it. What the brief says nothing of (commands, variables,
# volumes, other containers) is left out. It takes two or three minutes, and 3 GiB of memory. Run it again after each
# change.
#
# What it saw is kept in `evidence.jsonl`, beside this notebook. Hand that in too: these points rest on it, until a
# grader applies your manifest themselves.

# %% tags=["locked:run-q1"]
from helpers import Lab

lab = Lab.start("ex03")
seen = lab.try_out("ex03.q1_run", atlas)
lab.clean_up()
seen

# %% tags=["test:test-q1_run:4"]
check("ex03.q1_run", atlas)

# %% [markdown] tags=["locked:ask-q2"]
# ## 2 · Survey (6 points)
#
# The API server takes this manifest, and the operator does too. Repair it in its cell, so that `survey` does what its
# team wants. (Until you change something it counts as not answered.)
#
# | the team wants | |
# |---|---|
# | Ray | the image above everywhere, and KubeRay knows its version |
# | head | no tasks |
# | `cpu` | 2 to 3 workers, whom Ray gives 4 CPUs each; Kubernetes keeps what Ray counts |
# | `gpu` | 0 to 4 workers with 1 GPU each, where the GPUs are |
# | all | with every group at its maximum, each Pod finds room on the machines above |
# | autoscaling | as it is, within these bounds |

# %% tags=["solution:q2"]
survey = """
apiVersion: ray.io/v1
kind: RayCluster
metadata:
  name: survey
spec:
  enableInTreeAutoscaling: true
  headGroupSpec:
    rayStartParams:
      dashboard-host: "0.0.0.0"
    template:
      spec:
        containers:
        - name: ray-head
          image: rayproject/ray:2.9.0-gpu
          resources:
            limits: {cpu: "1", memory: 2Gi}
            requests: {cpu: "1", memory: 2Gi}
  workerGroupSpecs:
  - groupName: cpu
    minReplicas: 2
    maxReplicas: 64
    rayStartParams: {}
    template:
      spec:
        containers:
        - name: ray-worker
          image: rayproject/ray:2.9.0-gpu
          resources:
            limits: {cpu: "16", memory: 64Gi}
            requests: {cpu: "16", memory: 64Gi}
  - groupName: gpu
    minReplicas: 0
    maxReplicas: 8
    template:
      spec:
        containers:
        - name: ray-worker
          image: rayproject/ray:2.9.0-gpu
          resources:
            limits: {nvidia.com/gpu: 1, cpu: "12", memory: 80Gi}
            requests: {nvidia.com/gpu: 1, cpu: "12", memory: 80Gi}
"""
### BEGIN SOLUTION
survey = """
apiVersion: ray.io/v1
kind: RayCluster
metadata:
  name: survey
spec:
  rayVersion: "2.60.0"                       # tells KubeRay which probes to use
  enableInTreeAutoscaling: true
  headGroupSpec:
    rayStartParams: {num-cpus: "0"}          # no tasks on the head
    template:
      spec:
        containers:
        - name: ray-head
          image: rayproject/ray:2.60.0-py311          # one Ray in all parts
          resources:
            limits: {cpu: "1", memory: 2Gi}
            requests: {cpu: "1", memory: 2Gi}
  workerGroupSpecs:
  - groupName: cpu
    minReplicas: 2
    maxReplicas: 3                           # what two machines of 8 CPUs hold, beside the head
    rayStartParams: {}
    template:
      spec:
        containers:
        - name: ray-worker
          image: rayproject/ray:2.60.0-py311          # one Ray in all parts
          resources:
            limits: {cpu: "4", memory: 6Gi}
            requests: {cpu: "4", memory: 6Gi}
  - groupName: gpu
    minReplicas: 0
    maxReplicas: 4                           # as many as there are GPUs
    template:
      spec:
        tolerations:                                  # the taint keeps all others away
        - {key: nvidia.com/gpu, operator: Exists}     # may go where the GPUs are
        containers:
        - name: ray-worker
          image: rayproject/ray:2.60.0-py311          # the CPU image: these GPUs are fake
          resources:                                  # a quarter of the machine
            limits: {nvidia.com/gpu: 1, cpu: "8", memory: 32Gi}
            requests: {nvidia.com/gpu: 1, cpu: "8", memory: 32Gi}
"""
### END SOLUTION

# %% tags=["test:test-q2:6"]
check("ex03.q2", survey)

# %% [markdown] tags=["locked:ask-q3"]
# ## 3 · Tuning (5 points)
#
# This one runs, with two workers at first sight, and more than one thing is wrong with it. Repair `tuning`:
#
# | the team wants | |
# |---|---|
# | head | the machine with GPUs is dear, and no place for it; Kubernetes keeps what Ray counts |
# | `gpu` | between 1 and 2 workers, as many as there is work for |
# | | Ray counts 8 CPUs and 2 GPUs on each, and Kubernetes keeps what Ray counts |
# | | each Pod finds its machine |

# %% tags=["solution:q3"]
tuning = """
apiVersion: ray.io/v1
kind: RayCluster
metadata:
  name: tuning
spec:
  rayVersion: "2.60.0"
  headGroupSpec:
    rayStartParams:
      num-cpus: "0"
    template:
      spec:
        containers:
        - name: ray-head
          image: rayproject/ray:2.60.0-py311
          resources:
            limits: {cpu: "2", memory: 8Gi, nvidia.com/gpu: "0"}
            requests: {cpu: "1", memory: 4Gi}
        tolerations:
        - {key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}
  workerGroupSpecs:
  - groupName: gpu
    replicas: 2
    minReplicas: 1
    maxReplicas: 2
    rayStartParams: {}
    template:
      spec:
        containers:
        - name: ray-worker
          image: rayproject/ray:2.60.0-py311
          resources:
            limits: {cpu: "16", memory: 64Gi, nvidia.com/gpu: "2"}
            requests: {cpu: "8", memory: 32Gi, nvidia.com/gpu: "2"}
        nodeSelector:
          accelerator: nvidia-a100
        tolerations:
        - {key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}
"""
### BEGIN SOLUTION
tuning = """
apiVersion: ray.io/v1
kind: RayCluster
metadata:
  name: tuning
spec:
  rayVersion: "2.60.0"
  enableInTreeAutoscaling: true              # else the two bounds only hold `replicas` between them
  autoscalerOptions: {version: v2}
  headGroupSpec:
    rayStartParams:
      num-cpus: "0"
    template:
      spec:                                  # no toleration: the taint keeps the head away
        containers:
        - name: ray-head
          image: rayproject/ray:2.60.0-py311
          resources:
            limits: {cpu: "2", memory: 4Gi}
            requests: {cpu: "2", memory: 4Gi}
  workerGroupSpecs:
  - groupName: gpu
    minReplicas: 1
    maxReplicas: 2
    rayStartParams: {}
    template:
      spec:                                  # no nodeSelector: no machine here has that label
        containers:
        - name: ray-worker
          image: rayproject/ray:2.60.0-py311
          resources:                         # one size for Kubernetes and for Ray
            limits: {cpu: "8", memory: 32Gi, nvidia.com/gpu: "2"}
            requests: {cpu: "8", memory: 32Gi, nvidia.com/gpu: "2"}
        tolerations:
        - {key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}
"""
### END SOLUTION

# %% tags=["test:test-q3:5"]
check("ex03.q3", tuning)

# %% [markdown] tags=["locked:ask-q4"]
# ## 4 · Render (5 points)
#
# `ray-gpu:newest` is whatever somebody has built last. Repair `render`:
#
# | the team wants | |
# |---|---|
# | Ray | the image above everywhere, and KubeRay knows its version |
# | head | no tasks |
# | memory | Ray is told what the autoscaler counts, on the head and on workers |
# | `gpu` | where the GPUs are, with 1 GPU |
# | | the number of GPUs stands in one place: who changes what the container gets, changes what Ray counts |

# %% tags=["solution:q4"]
render = """
apiVersion: ray.io/v1
kind: RayCluster
metadata:
  name: render
spec:
  rayVersion: "2.9.0"
  enableInTreeAutoscaling: true
  headGroupSpec:
    rayStartParams:
      num-gpus: "0"
    template:
      spec:
        containers:
        - name: ray-head
          image: registry.example/team/ray-gpu:newest
          resources:
            requests: {cpu: "4", memory: 8Gi}
  workerGroupSpecs:
  - groupName: gpu
    replicas: 0
    minReplicas: 0
    maxReplicas: 4
    rayStartParams:
      num-gpus: "1"
    template:
      spec:
        containers:
        - name: ray-worker
          image: registry.example/team/ray-gpu:newest
          resources:
            limits: {nvidia.com/gpu: 1}
            requests: {cpu: "8", memory: 16Gi}
"""
### BEGIN SOLUTION
render = """
apiVersion: ray.io/v1
kind: RayCluster
metadata:
  name: render
spec:
  rayVersion: "2.60.0"                       # the same as in the images
  enableInTreeAutoscaling: true
  headGroupSpec:
    rayStartParams:
      num-cpus: "0"                          # num-gpus was of no use: a head without a GPU offers none
    template:
      spec:
        containers:
        - name: ray-head
          image: rayproject/ray:2.60.0-py311           # says what is in it
          resources:
            limits: {cpu: "4", memory: 8Gi}            # what `ray start` is told of memory
            requests: {cpu: "4", memory: 8Gi}
  workerGroupSpecs:
  - groupName: gpu
    minReplicas: 0                           # `replicas` is the autoscaler's
    maxReplicas: 4
    rayStartParams: {}                       # the GPU stands in the limits
    template:
      spec:
        containers:
        - name: ray-worker
          image: rayproject/ray:2.60.0-py311           # the same Ray
          resources:
            limits: {nvidia.com/gpu: 1, cpu: "8", memory: 16Gi}
            requests: {nvidia.com/gpu: 1, cpu: "8", memory: 16Gi}
        tolerations:                                   # of just this taint
        - {key: nvidia.com/gpu, value: present}        # operator Equal
"""
### END SOLUTION

# %% tags=["test:test-q4:5"]
check("ex03.q4", render)

# %% [markdown] tags=["locked:ask-q5"]
# ## 5 · What does a group become? (9 points)
#
# Write `becomes(group)`. It gets one entry of `workerGroupSpecs`, as a dict, with one container, and returns what the
# operator makes of it, such as `{"pods": 3, "num-cpus": 8, "num-gpus": None, "memory": 8589934592}`:
#
# - `"pods"`: how many Pods it keeps. There is no autoscaler.
# - The others: what it passes to `ray start` as `--num-cpus`, `--num-gpus` and `--memory` (bytes), or `None` for an
#   option that it does not pass.
#
# `minReplicas`, `maxReplicas` and `rayStartParams` are always there; `replicas`, `limits` and `requests` may be
# missing. In rayStartParams there are none but these three options, and no group has `resources` of its own.
# `parse_quantity("500m")` reads what Kubernetes calls a quantity. When you hand this in, it is called with other groups
# too.

# %% tags=["solution:q5"]
from kubernetes.utils import parse_quantity


def becomes(group):
    """What the operator makes of a worker group."""
    ### BEGIN SOLUTION
    from math import ceil

    params = group["rayStartParams"]
    resources = group["template"]["spec"]["containers"][0].get("resources", {})
    limits, requests = resources.get("limits", {}), resources.get("requests", {})

    def first(option, *quantities):
        """What rayStartParams say; else the first of the quantities that is there, rounded up."""
        if option in params:
            return int(params[option])
        there = [parse_quantity(quantity) for quantity in quantities if quantity is not None]
        return next((ceil(quantity) for quantity in there if quantity), None)

    return {
        "pods": min(max(group.get("replicas", 0), group["minReplicas"]), group["maxReplicas"]),
        "num-cpus": first("num-cpus", limits.get("cpu"), requests.get("cpu")),
        "num-gpus": first("num-gpus", *(limits[name] for name in sorted(limits) if name.endswith("gpu"))),
        "memory": first("memory", limits.get("memory")),
    }
    ### END SOLUTION
    raise NotImplementedError


# %% tags=["test:test-q5:9"]
check("ex03.q5", becomes)

# %% [markdown] tags=["locked:ask-q6"]
# ## 6 · In your own words (4 points)
#
# A team keeps its RayCluster in git. It has `enableInTreeAutoscaling: true` and, for its one group of workers,
# `replicas: 2`, `minReplicas: 0`, `maxReplicas: 20`. A tool applies the file every three minutes. They report two
# things: *"Under load we see ten workers, then two, then ten again, and tasks die."* And: *"Yesterday we changed the
# workers' image in git. The tool says that all is in sync, and tasks still run the old code."*
#
# Answer in 4 to 6 sentences, as you would in an interview: why is that so, and what would you change? A person marks
# this answer, so it has no check. Double-click the next cell to write.

# %% [markdown] tags=["essay:q6:4"]
# Two programs write `replicas`: the autoscaler sets it to what the load wants, and every three minutes the tool sets it
# back to 2. I would leave `replicas` out of the file, or tell the tool to ignore it and `scaleStrategy`; the bounds
# stay in git, because those are the team's to say. The image is another matter: the operator compares how many Pods
# there are, not what they are made of, so a changed template reaches only Pods that it makes from then on. To get it
# everywhere I would set `upgradeStrategy: {type: Recreate}`, which takes all Pods down when the template changes, or
# delete the old workers one by one, or bring up a second cluster and move over, if nothing may be interrupted.
#
# ### BEGIN MARK SCHEME
#
# One point for each:
#
# 1. Two writers of one field, by name: the autoscaler patches `replicas` of the RayCluster, and the tool reverts it.
#    (Not enough: "the autoscaler is unstable".)
# 2. A cure that leaves the autoscaler alone: `replicas` out of git, or ignored by the tool. Better still with
#    `scaleStrategy.workersToDelete`. (Not: a longer interval; not: autoscaling off, unless said why.)
# 3. The operator counts Pods, and does not compare them with the template: running Pods keep their image, new ones have
#    the new one.
# 4. A way to bring it to all, with its price: upgradeStrategy Recreate (everything ends), deleting workers (their tasks
#    are tried again), a new cluster (twice the capacity for a while).
#
# No points off for language, nor for more than 6 sentences.
#
# ### END MARK SCHEME

# %% [markdown] tags=["locked:end"]
# Save, and press *Validate* in the toolbar above: it runs all from the top, in a fresh kernel. It says which checks of
# questions 1 to 5 are not full yet, and whether there is something written for question 6.
