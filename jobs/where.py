"""The program of lesson 00, with one thing more: what each task asks for."""

import os
import time

import ray


@ray.remote
def host():
    time.sleep(0.3)  # long enough that one worker process cannot do them all in passing
    return os.environ["HOSTNAME"]


def where(tasks, **needs):
    """The names of the hosts that `tasks` tasks ran on, each of which asked for `needs`, such as num_cpus=1."""
    return ray.get([host.options(**needs).remote() for _ in range(tasks)])
