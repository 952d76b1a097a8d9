"""Lesson 03, RayCluster: the operator's loop."""

from __future__ import annotations

from helpers.grading.check import Suite, fill_in, filled, number, one_of, says

# Whence did the operator take these flags of the generated `ray start` lines of raycluster/demo?
c1 = Suite(
    read=fill_in(
        "head num-cpus",
        "worker num-cpus",
        "worker memory",
        "worker address",
        words=one_of(
            "rayStartParams",
            "limits",
            "requests",
            "KubeRay",
            also={
                "ray start params": "rayStartParams",
                "params": "rayStartParams",
                "limit": "limits",
                "resources.limits": "limits",
                "request": "requests",
                "resources.requests": "requests",
                "operator": "KubeRay",
                "the operator": "KubeRay",
            },
        ),
    ),
    hints=(
        "Put the four values of the lines beside the manifest that the lesson applied. Which of them stand there, and"
        " where?",
        "The head's limit is one CPU, and its line says something else. The worker has no parameters at all in the"
        " manifest, and still has flags.",
        "Two come from a container's resources. Where the two numbers there differ, Ray is told the larger one. The"
        " last of the four stands nowhere in the manifest.",
    ),
    explanation=(
        "What rayStartParams says goes first: the head offers 0 CPUs, whatever its limit is. Where it says nothing,"
        " CPUs, memory and GPUs come from the container's limits. A CPU request counts only where there is no CPU"
        " limit, a memory request never. The address of the head, --block and the ports are the operator's own."
    ),
)


@c1.case(
    "the head's num-cpus",
    wrong={
        says("head num-cpus", "limits"): "the limit of the head's container is 1, and the line says another number",
        says("head num-cpus", "requests"): "the head's container requests 1, and the line says another number",
        says("head num-cpus", "KubeRay"): "left alone, the operator would have taken a number from the container",
    },
)
def _(words):
    assert filled(words, "head num-cpus") == "rayStartParams"


@c1.case(
    "the worker's num-cpus",
    wrong={
        says("worker num-cpus", "rayStartParams"): "look at cpu-group in the manifest: it has none of these",
        says("worker num-cpus", "requests"): "that is where the operator looks if the other number is missing",
        says("worker num-cpus", "KubeRay"): "the operator writes the flag, but the number stands in the manifest",
    },
)
def _(words):
    assert filled(words, "worker num-cpus") == "limits"


@c1.case(
    "the worker's memory",
    wrong={
        says("worker memory", "rayStartParams"): "look at cpu-group in the manifest: it has none of these",
        says("worker memory", "requests"): "of memory the operator never takes this number, not even as a substitute",
        says("worker memory", "KubeRay"): "2147483648 bytes are 2 Gi: that stands in the manifest",
    },
)
def _(words):
    assert filled(words, "worker memory") == "limits"


@c1.case(
    "the address that the worker connects to",
    wrong={
        says("worker address", "rayStartParams"): "look at cpu-group in the manifest: nobody wrote an address there",
        says("worker address", "limits"): "a container's resources know no addresses",
        says("worker address", "requests"): "a container's resources know no addresses",
    },
)
def _(words):
    assert filled(words, "worker address") == "KubeRay"


# A Kubernetes node with 8 CPUs has two worker Pods and nothing else. Each has a CPU request of 4 and a CPU limit of 8.
# How many tasks with num_cpus=1 does Ray run on that machine at the same time, if many wait?
c2 = Suite(
    read=number,
    hints=(
        "Two different parties count here, and they read two different numbers. Who places Pods, and who places tasks?",
        "First Kubernetes: do both Pods fit on the machine, by what it counts? Then Ray: what does a Ray node offer?",
        "Write down the `--num-cpus` of each Pod's `ray start` line, and add them up.",
    ),
    explanation=(
        "Kubernetes adds up requests, 4 + 4 = 8, so both Pods fit. Ray is told the limits, so each Ray node offers 8"
        " CPUs, and Ray runs 16 tasks where there are 8 CPUs: if all are busy, each gets half of what it asked for."
        " With memory it ends worse, since what is short there is not shared: something is killed. With requests ="
        " limits the second Pod would have waited for a machine of its own."
    ),
)


@c2.case(
    "tasks on that machine at the same time",
    wrong={
        8: "that is what the machine has; but nobody who places tasks has asked the machine",
        4: "that is what Kubernetes keeps free for one Pod; it is not what its `ray start` line says",
        2: "each Pod is a Ray node, and a Ray node runs as many tasks as it offers CPUs",
        1: "Ray knows nothing of the kernel's time slices: it counts what it was told",
        12: "both Pods read the same manifest, so both lines say the same number",
    },
)
def _(answer):
    assert answer == 16, f"{answer:g} is neither what Kubernetes counts here nor what Ray does"
