"""A driver that stays where it is started, and reaches a cluster through Ray Client (lesson 03, section 4).

python jobs/ray_client.py ray://127.0.0.1:10001 [A VERSION OF RAY TO PASS FOR]
"""

import logging
import os
import sys

import ray


@ray.remote(num_cpus=1)
def host():
    return os.environ["HOSTNAME"]


def main(address, version=ray.__version__):
    ray.__version__ = version  # all that the version rule looks at, besides Python's own
    try:
        ray.init(address, logging_level=logging.ERROR, log_to_driver=False)
    except RuntimeError as error:
        print("Refused:", " ".join(str(error).split()))
    else:
        print("The task ran on", ray.get(host.remote()))


main(*sys.argv[1:])
