"""A task, an actor and an object on one Ray node, and what is left of each when it dies (lesson 01, section 5).

Both functions run in the driver. `kept` is a dict that stays there between the two calls.
"""

import os
import time

import numpy
import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


@ray.remote(num_cpus=0, resources={"fast_disk": 1})  # only worker-2 has a fast disk, so the diary survives
class Diary:
    def __init__(self):
        self.lines = []

    def write(self, line):
        self.lines.append(line)

    def read(self):
        return self.lines


@ray.remote  # max_retries=3 unless one says otherwise
def slow_task(diary):
    ray.get(diary.write.remote(f"slow_task begins on {os.environ['HOSTNAME']}"))
    time.sleep(3)
    return "done"


@ray.remote
def make_object(diary):
    ray.get(diary.write.remote(f"make_object begins on {os.environ['HOSTNAME']}"))
    return numpy.ones(1_000_000)  # 8 MB: too big to travel with the answer, so it stays in that Ray node's store


@ray.remote(num_cpus=0)  # max_restarts=0 unless one says otherwise
class Counter:
    def __init__(self):
        self.count = 0

    def add(self):
        self.count += 1
        return self.count


def prepare(kept, victim):
    """Put an object, an actor and a running task on the host `victim`; returns the diary so far."""
    ray_node = next(n for n in ray.nodes() if n["Labels"]["host"] == victim)
    prefer = NodeAffinitySchedulingStrategy(ray_node["NodeID"], soft=True)  # there while it lives, else anywhere
    kept["diary"] = diary = Diary.remote()
    kept["actor"] = Counter.options(label_selector={"host": victim}).remote()
    ray.get(kept["actor"].add.remote())
    kept["object"] = make_object.options(scheduling_strategy=prefer).remote(diary)
    ray.wait([kept["object"]], fetch_local=False)
    kept["task"] = slow_task.options(scheduling_strategy=prefer).remote(diary)
    while len(ray.get(diary.read.remote())) < 2:
        time.sleep(0.05)
    return ray.get(diary.read.remote())


def aftermath(kept):
    """What became of each, and the whole diary."""
    return {
        "task": ray.get(kept["task"]),
        "actor": fate_of(kept["actor"]),
        "object": f"{ray.get(kept['object']).nbytes} bytes",
        "diary": ray.get(kept["diary"].read.remote()),
    }


def fate_of(actor):
    while True:
        try:
            return f"counted to {ray.get(actor.add.remote())}"
        except ActorUnavailableError:  # no connection, but the GCS has not yet declared the Ray node dead
            time.sleep(0.1)
        except ActorDiedError as error:
            return type(error).__name__
