"""All objects of a cluster, to be compared with themselves at another time."""

from __future__ import annotations

import json

from helpers.kube import Kube, KubeError

ALWAYS_CHANGING = {"Lease", "Event"}  # heartbeats, and what is only told
OF_THE_SERVER = {"resourceVersion", "managedFields", "generation"}


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
