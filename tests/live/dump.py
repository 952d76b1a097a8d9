"""All objects of a cluster, to be compared with themselves at another time."""

from __future__ import annotations

import json

from helpers.kube import Kube, KubeError
from helpers.wait import wait_until

ALWAYS_CHANGING = {"Lease", "Event"}  # heartbeats, and what is only told
OF_THE_SERVER = {"resourceVersion", "managedFields", "generation"}


def settled(kube: Kube) -> dict[str, str]:
    """The dump of a cluster in which what came before, in another namespace, has come to its end.

    Raises:
        WaitTimeout: something is still going away, or changes, after 3 minutes.
    """
    seen = [dump(kube)]

    def is_still() -> bool:
        seen.append(dump(kube))
        # a namespace that is being deleted may look the same for many seconds: its controller tries again ever later
        going = sorted(path for path, what in seen[-1].items() if json.loads(what)["metadata"].get("deletionTimestamp"))
        assert not going, f"{going[:3]} go away"
        changed = sorted(path for path in {**seen[-2], **seen[-1]} if seen[-2].get(path) != seen[-1].get(path))
        assert not changed, f"{changed[:3]} changed"
        return True

    wait_until(is_still, 180, what="the cluster to be still", every_s=3)
    return seen[-1]


def dump(kube: Kube) -> dict[str, str]:
    """Every object that can be listed, without status and what the API server notes of it: by its path, as JSON."""
    kube.find("nothing of that name")  # asks anew what kinds there are
    found = {}
    for resource in kube._resources:
        if resource.kind in ALWAYS_CHANGING:
            continue
        try:
            things = kube.list(resource, "")
        except KubeError as error:
            if error.status not in (404, 405):  # some can only be created
                raise
            continue
        for thing in things:
            metadata = {name: value for name, value in thing["metadata"].items() if name not in OF_THE_SERVER}
            kept = {name: value for name, value in thing.items() if name != "status"} | {"metadata": metadata}
            place = thing["metadata"].get("namespace", "")
            found[resource.path(place, thing["metadata"].get("name", ""))] = json.dumps(kept, sort_keys=True)
    return found
