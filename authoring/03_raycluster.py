# ---
# jupyter:
#   course:
#     id: "03"
#     title: "RayCluster: the operator's loop"
#     minutes: 35
#     run_minutes: 3
#     capabilities: [kubernetes, autoscaler, fake_gpu]
#     rows:
#       ["0.1", "0.2", "0.3", "0.5", "0.6", "0.13", "1.1", "1.2", "1.5", "1.6", "1.7", "1.21", "2.1", "2.2", "2.3",
#        "2.4", "2.5", "2.6"]
#     memory_gib: 4
#     creates: a namespace with up to two small RayClusters at a time; all of it ends with the last cell
# ---

# %% [markdown]
# # 03 · RayCluster: the operator's loop
#
# In lesson 01 you typed `ray start` on each host. Here you write down what you want, and a program types it for you, on
# Pods that it makes. This lesson watches that program at work, then gives it manifests that are wrong, and takes away
# what it has built.

# %%
from subprocess import getoutput

from helpers import Lab, check, predict, quiz, wait_until

lab = Lab.start("03")

# %% [markdown]
# ## 1 · What the operator adds to Kubernetes
#
# On a cluster of your own you would install KubeRay by its chart:
#
# ```
# helm repo add kuberay https://ray-project.github.io/kuberay-helm/
# helm install kuberay-operator kuberay/kuberay-operator --version 1.6.2
# ```
#
# That makes custom resource definitions (CRDs), a Deployment with the operator, and the rights that it needs.

# %% [markdown]
# Here all of that is done. Where the course runs Kubernetes without containers, the same operator is a process beside
# the API server instead of a Pod: `course status` lists it. It reads and writes the same objects through the same API.
#
# It is often said that there are three kinds of object. Count them.

# %%
# !kubectl api-resources --api-group=ray.io
assert getoutput("kubectl get crds -o name").count(".ray.io") == 4

# %% [markdown]
# **Four.** A *RayCluster* lives until you delete it. A *RayJob* makes one for a job, a *RayService* for a Serve
# application. *RayCronJob* is the newest: its CRD is always installed, but the operator works on it only behind a
# feature gate that is off by default. All of them end in RayClusters, so we look at that one.

# %% [markdown]
# ## 2 · From one object to a running cluster
#
# Open `manifests/03-raycluster/demo.yaml`, and read its comments. It has a head that offers no CPUs, a CPU group of at
# least one, and a GPU group that starts empty. Before you apply it:

# %%
predict(
    "03.p1",
    "When does the operator create the worker Pod?",
    choices=["with the head Pod", "when the head is ready", "when Ray's autoscaler asks for it"],
    answer=None,
)

# %%
with lab.timeline("raycluster/demo") as start:
    # !kubectl apply -f manifests/03-raycluster/demo.yaml
    lab.wait("raycluster/demo")
steps = start.steps()
worker_made = next(step for step in steps if step.what.startswith("Created worker Pod"))
head_ready = next(step for step in steps if step.what.startswith("demo-head") and step.what.endswith(": Ready"))
assert worker_made.at < head_ready.at
display(start.stepper(), predict("03.p1").reveal("with the head Pod"))

# %% [markdown]
# Walk through it with *Next*, or with the arrow keys on the slider: it is what the API server told meanwhile.
# **Nobody orchestrates the start.** The operator creates everything in one pass. The order comes from an init container
# in each worker Pod, `wait-gcs-ready`: it asks the head's GCS for its health every 5 seconds, and only then `ray start`
# runs. Each Pod then waits at least 10 seconds for its first readiness probe.

# %% [markdown]
# It is often said that the operator makes Pods, Services and an Ingress. Look for the last one; then ask for it.

# %%
# !kubectl get serviceaccounts,roles,rolebindings,services,ingresses,pods -l ray.io/cluster=demo
# !kubectl patch raycluster demo --type=merge --patch-file=manifests/03-raycluster/with-ingress.yaml
# !kubectl wait --for=create ingress/demo-head-ingress --timeout=20s
# !kubectl get ingress demo-head-ingress -o jsonpath='{.spec.rules}'
head = lab.get("raycluster/demo")["status"]["head"]["podName"]
pod = lab.get(f"pod/{head}")
assert [container["name"] for container in pod["spec"]["containers"]] == ["ray-head", "autoscaler"]
assert pod["spec"]["containers"][0]["readinessProbe"]["initialDelaySeconds"] == 10

# %% [markdown]
# The head Pod is `2/2`: **Ray's autoscaler is a second container in it**, a sidecar. ServiceAccount, Role and
# RoleBinding are the autoscaler's. The Service has no address of its own (`None`): its name resolves to the head Pod.
#
# An Ingress comes only with `enableIngress`. It is a rule for `/demo/(.*)`, a pattern for nginx: without an ingress
# controller it does nothing, and with one it asks nobody for a password.

# %% [markdown]
# ## 3 · The line that it types for you
#
# Each Pod's first container runs one line. You know its parts from lesson 01.

# %%
columns = "GROUP:.metadata.labels.ray\\.io/group,LINE:.spec.containers[0].args[0]"
lines = getoutput(f"kubectl get pods -l ray.io/cluster=demo -o custom-columns='{columns}' --no-headers")
print(lines.replace("  --", "\n    --"))
worker_line = next(line for line in lines.splitlines() if line.startswith("cpu-group"))
assert "--num-cpus=1" in worker_line and f"--memory={2 * 2**30}" in worker_line

# %% [markdown]
# `--block` keeps the container alive as long as Ray. `--no-monitor`: the autoscaler is in the sidecar, so the head
# starts none. The rest you can trace.
#
# **Check.** Whence is each number? Write `"rayStartParams"`, `"limits"`, `"requests"` or `"KubeRay"`.

# %%
check("03.c1", answer={"head num-cpus": "", "worker num-cpus": "", "worker memory": "", "worker address": ""})

# %% [markdown]
# ## 4 · Four ways in
#
# Three go through a port of the head's Service. `kubectl port-forward svc/demo-head-svc 8265` opens one, but blocks its
# terminal and ends with the Pod, so here `lab.forward` does it. Its address, opened in a browser, is the **dashboard**.
# The **Jobs API** is at the same port. **exec** needs no port.

# %%
dashboard = lab.forward("svc/demo-head-svc", 8265)
job = getoutput(f"ray job submit --address={dashboard.url} -- printenv HOSTNAME")
print(dashboard, job, sep="\n")
assert head in job.splitlines()
# !kubectl exec svc/demo-head-svc -c ray-head -- ray status

# %% [markdown]
# The job's driver ran on the head, as that of every submitted job does by default. You may close your laptop meanwhile:
# this is the way for production.
#
# The fourth way is **Ray Client**, port 10001: the program stays on *your* machine, and a process on the head acts for
# it. `jobs/ray_client.py` is such a program. The second time it passes itself off as an older Ray.

# %%
client = lab.forward("svc/demo-head-svc", 10001)
same = getoutput(f"python jobs/ray_client.py ray://127.0.0.1:{client.port}")
other = getoutput(f"python jobs/ray_client.py ray://127.0.0.1:{client.port} 2.9.0")
print(same, other, sep="\n")
assert "The task ran on demo-cpu-group" in same and "Refused: Version mismatch" in other

# %% [markdown]
# Ray Client works, and **wants the same Ray and the same minor version of Python at both ends**. What it made lives as
# long as its connection, with 30 seconds of grace. So use it for a notebook, and jobs for the rest.
#
# Its server forks for each client, and some of those programs die at birth
# ([ray#63202](https://github.com/ray-project/ray/issues/63202)) unless the head's environment has
# `GRPC_ENABLE_FORK_SUPPORT=0`: `demo.yaml` says so.

# %% [markdown]
# ## 5 · Break it: take away what it built
#
# The operator's loop is short: count the Pods that are there, compare with what the object says, create or delete the
# difference. It is triggered by every change of either. First we delete the worker.

# %%
predict(
    "03.p2",
    "The only worker Pod is deleted. What does `kubectl get raycluster` show as STATUS right after?",
    choices=["ready", "failed", "nothing"],
    answer=None,
)

# %%
worker = next(pod.name for pod in lab.pods("raycluster/demo") if pod.group == "cpu-group")
with lab.timeline("raycluster/demo") as loss:
    # !kubectl delete pod {worker}
    # !kubectl get raycluster demo
    state, pods = lab.get("raycluster/demo")["status"]["state"], lab.pods("raycluster/demo")
    lab.wait("raycluster/demo")
assert state == "ready" and not any(pod.is_ready for pod in pods if pod.group == "cpu-group")
display(loss.steps(), predict("03.p2").reveal(state))

# %% [markdown]
# **`ready` means: it was ready once.** The operator writes it when head and workers are ready for the first time, and
# nothing but suspending the cluster takes it back. The condition `RayClusterProvisioned` is like that too. Count ready
# Pods instead, as `lab.wait` does.
#
# You may see two new workers: operator and autoscaler both look after the floor of one. The idle one goes later.

# %%
predict(
    "03.p3",
    "Now the head Pod is deleted. What becomes of the worker Pod?",
    choices=["it joins the new head", "it ends, and a new one is made", "it stays, and there is no new head"],
    answer=None,
)

# %%
old = {pod.name for pod in lab.pods("raycluster/demo")}
with lab.timeline("raycluster/demo") as loss:
    # !kubectl delete pod {head}
    lab.wait("raycluster/demo")
assert not old & {pod.name for pod in lab.pods("raycluster/demo")}
jobs = getoutput(f"ray job list --address={dashboard.url}").rpartition(" -- ")[2]
print("The jobs that the new head knows:", jobs)
assert jobs == "[]"
display(loss.steps(), predict("03.p3").reveal("it ends, and a new one is made"))

# %% [markdown]
# All Pods are new, the address is the old one, and **the job of section 4 is forgotten**: the records were in the GCS.
# A raylet that does not find its GCS ends (`demo.yaml` has it wait 5 seconds, 60 is the default), its container with
# it, and the operator replaces what has ended. **It restores Pods, not what ran in them.** Lesson 10 gives the GCS a
# store outside.

# %% [markdown]
# ## 6 · Three manifests, as they are often copied
#
# `broken-*.yaml` are close to what many pages show; read them first. We apply all three as they are, and with them
# `refused.yaml`, in which one field contradicts another. Then we do by hand what the autoscaler does for a task that
# asks for a GPU: it patches `replicas`.

# %%
lab.delete("raycluster/demo")
there = "manifests/03-raycluster"
# !kubectl apply -f {there}/broken-ml-cluster.yaml -f {there}/broken-llm-training.yaml
# !kubectl apply -f {there}/broken-gpu-pool.yaml -f {there}/refused.yaml
# !kubectl patch raycluster gpu-pool --type=json --patch-file={there}/one-gpu-worker.json
wait_until(
    lambda: len(pods := lab.pods()) == 10 and all(pod.machine or "no Kubernetes node" in pod.reason for pod in pods),
    60,
    what="ten Pods that somebody has tried to place",
)
# !kubectl get rayclusters
# !kubectl get events --field-selector involvedObject.name=refused -o custom-columns='REASON:.reason,MESSAGE:.message'
assert not any(pod.is_ready for pod in lab.pods()) and not lab.pods("raycluster/refused")
trainers_head = lab.pods("raycluster/llm-training-cluster").rows[0]
assert trainers_head.machine and "nvidia.com/gpu" in str(lab.get(f"pod/{trainers_head.name}")["spec"]["tolerations"])
lab.pods()

# %% [markdown]
# **The API server took all four.** It compares each field with the schema. (That a group may leave away
# `rayStartParams`, as `a100-group` does, is so since KubeRay 1.4.) What contradicts what, only the operator knows: it
# refused the fourth by an event, made nothing, and left its status empty. Nothing told you so when you applied it.

# %% [markdown]
# The last column says why nothing runs. `ml-cluster` and `gpu-pool` are too big for small machines, and the GPU worker
# lacks the toleration for the taint of GPU machines. The trainers ask for a label that no Kubernetes node has. Their
# head did get a place, maybe **on the GPU machine**: its toleration lets it in, and the scheduler looks for room.

# %% [markdown]
# There it gets no further: nobody builds `ray-ml` images any more. While they were built, each head and CPU worker
# pulled a CUDA image that it had no use for.
#
# Say that all these Pods were to run after all. What would Ray be told, and what does Kubernetes keep free?

# %%
told, kept, specs = {}, {}, {}
for pod in lab.pods():
    name = pod.name.rpartition("-")[0]
    specs[name] = lab.get(f"pod/{pod.name}")["spec"]
    ray = specs[name]["containers"][0]
    told[name] = [flag for flag in ray["args"][0].split() if flag.startswith(("--num", "--memory"))]
    kept[name] = ray["resources"]["requests"]
for name in told:
    print(f"{name}\n    Ray is told       {' '.join(told[name])}\n    Kubernetes keeps  {kept[name]}")
assert "--num-cpus=8" in told["ml-cluster-head"] and "--num-cpus=4" in told["gpu-pool-head"]
trainer = "llm-training-cluster-gpu-workers-worker"
assert {"--num-cpus=8", "--num-gpus=2"} < set(told[trainer]) and kept[trainer]["cpu"] == "4"
assert not any("memory" in flag for name in ("gpu-pool-head", "gpu-pool-gpu-worker") for flag in told[name])

# %% [markdown]
# - Two heads offer their CPUs, so tasks land beside the GCS. `num-gpus: "0"` on one keeps away what asks for GPUs, no
#   more.
# - **Ray does not read the GPU limit.** The operator writes it into the line, and the autoscaler reads it from the
#   object. A `num-gpus` of your own is one truth too many.
# - The trainers promise 8 CPUs and 64 Gi each, and are sure of half.

# %% [markdown]
# - `gpu-pool` requests memory and limits none, so Ray is told none and takes what it finds on the machine, while the
#   autoscaler counts the request. `/dev/shm`, where objects live, gets the request as its size.
# - Four trainers, always: without `enableInTreeAutoscaling` there is no autoscaler, and minimum and maximum only clamp
#   `replicas`.


# %%
def probe(name):
    return "wget" if "exec" in specs[name]["containers"][0]["readinessProbe"] else "HTTP"


pull = {box["name"]: box["imagePullPolicy"] for box in specs["gpu-pool-head"]["containers"]}
shared = next(volume for volume in specs["gpu-pool-gpu-worker"]["volumes"] if volume["name"] == "shared-mem")
print("Probes:", {name: probe(name) for name in specs}, "\nPull:", pull, "\n/dev/shm:", shared["emptyDir"])
assert {probe(name) for name in specs} == {"wget"} and shared["emptyDir"]["sizeLimit"] == "32Gi"
assert pull == {"ray-head": "Always", "autoscaler": "IfNotPresent"}
assert [box["name"] for box in specs["llm-training-cluster-head"]["containers"]] == ["ray-head"]

# %% [markdown]
# All probes call `wget`, which slim images do not have: `rayVersion` is missing, or says 2.9.0. From 2.53.0 on they are
# plain HTTP.
#
# And with the tag *latest* the head's container is pulled at each start, the sidecar beside it only if the machine has
# no such image: sooner or later **two versions of Ray in one Pod**.

# %% [markdown]
# **Check.** A machine has 8 CPUs and two worker Pods, each with a CPU request of 4 and a limit of 8. Many tasks with
# `num_cpus=1` wait. How many does Ray run on that machine at once?

# %%
check("03.c2", answer=None)

# %% [markdown]
# ## 7 · A repaired manifest that repairs nothing
#
# `gpu-pool.yaml` and `llm-training.yaml` are the repaired ones, small enough for two cores. `lab.apply` is `kubectl
# apply --server-side`, and says one thing more.

# %%
lab.apply("manifests/03-raycluster/gpu-pool.yaml")
head = lab.pods("raycluster/gpu-pool").rows[0].name
assert lab.get(f"pod/{head}")["spec"]["containers"][0]["image"].startswith("registry.internal/")
lab.apply("manifests/03-raycluster/gpu-pool.yaml", replace=True)
# !kubectl delete rayclusters ml-cluster llm-training-cluster refused
lab.wait("raycluster/gpu-pool")
lab.apply("manifests/03-raycluster/llm-training.yaml")
lab.wait("raycluster/llm-training-cluster")
lab.pods()

# %% [markdown]
# The first apply was accepted, and the Pods kept their old image. **A changed template reaches new Pods only**: the
# operator compares how many there are, not what they are made of. So delete the Pods, or set `upgradeStrategy.type:
# Recreate`.
#
# Leave `replicas` out where the autoscaler is on. It writes that field, and a tool that puts it back fights it.

# %% [markdown]
# ## What you can now say in an interview
#
# > The operator counts Pods and makes up the difference; it restores Pods, not what ran in them, and `ready` means that
# > it was ready once. It turns limits into the `ray start` line, so requests belong equal to them. The API server
# > checks fields, the operator checks sense, and a changed template waits for new Pods.

# %%
display(quiz("03.q1", answer=""), quiz("03.q2", answer=""))

# %% [markdown]
# Now do [exercise 03](../exercises/ex03/ex03.ipynb). The last cell removes the namespace, and with it all that is left.

# %%
lab.clean_up()
