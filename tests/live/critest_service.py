"""Runs critest on a machine, in the kubelet's place: `critest_service.py PLAN.json`, a service of the machine's init.

It tells the runtime what Pods' addresses are, as the kubelet does, lets critest run, and notes how that ended. Init
starts again what ends, so it does not end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import grpc

from helpers.cluster.embedded.runtime.cri import Messages


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    done = Path(plan["done"])
    if not done.exists():
        tell_pod_network(plan["socket"], Path(plan["descriptor"]), plan["pod_network"])
        with open(plan["output"], "w") as output:
            # the machine's /tmp is the host's
            environment = os.environ | {"TMPDIR": plan["tmp"]}
            ended = subprocess.run(plan["argv"], stdout=output, stderr=subprocess.STDOUT, env=environment)
        done.write_text(str(ended.returncode))
    signal.pause()


def tell_pod_network(socket: str, descriptor: Path, network: str) -> None:
    messages = Messages(descriptor)
    config = messages.RuntimeConfig(network_config=messages.NetworkConfig(pod_cidr=network))
    with grpc.insecure_channel(f"unix://{socket}") as channel:
        call = channel.unary_unary(
            "/runtime.v1.RuntimeService/UpdateRuntimeConfig",
            messages.UpdateRuntimeConfigRequest.SerializeToString,
            messages.UpdateRuntimeConfigResponse.FromString,
        )
        call(messages.UpdateRuntimeConfigRequest(runtime_config=config), timeout=10, wait_for_ready=True)


if __name__ == "__main__":
    main()
