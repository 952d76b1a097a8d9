"""The images of a kind cluster: how the engine gets them, and how they get into the Kubernetes nodes."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from helpers import versions
from helpers.cluster.kind.engine import ASK_S, CLUSTER, IMAGE_S, Done, Engine, must
from helpers.errors import CourseError

GIVEN = "COURSE_KIND_IMAGE"  # the image of the Kubernetes nodes that the user names, or an archive of it
ARCHIVES = (".tar", ".tar.gz", ".tgz")
PULL_S = 3600.0  # a gigabyte on a bad line
# what engines and registries say when an image cannot be pulled, and what that means
CAUSES = (
    (r"toomanyrequests|\b429\b|rate limit", "its registry has had too many pulls from this address"),
    (r"x509|certificate|\btls: |HTTP response to HTTPS client",
     "its registry has no certificate that is trusted on this machine"),
    (r"no such host|name resolution|server misbehaving|could not resolve",
     "the name of its registry cannot be resolved"),
    (r"connection refused|unreachable|no route to host|i/o timeout|Client\.Timeout|deadline exceeded|connection reset|"
     r"TLS handshake timeout|unexpected EOF|proxyconnect|has not ended within", "its registry cannot be reached"),
    (r"denied|unauthorized|authentication required|forbidden|\b40[13]\b", "its registry refuses it to this user"),
    (r"manifest unknown|name unknown|not found|\b404\b|no matching manifest|no image found",
     "its registry has no such image for this machine"),
    (r"no space left", "the disk is full"),
)  # fmt: skip


def node_image(engine: Engine) -> str:
    """The image that the Kubernetes nodes are made from, which the engine then has.

    Raises:
        CourseError: if it cannot be had.
    """
    image = os.environ.get(GIVEN) or versions.KIND_NODE_IMAGE
    archive = Path(image).expanduser()
    if archive.is_file():
        print(f"… loading the image of the Kubernetes nodes from {archive}", flush=True)
        return engine.load(archive)
    if image.endswith(ARCHIVES):
        raise CourseError(
            f"There is no archive {archive} with an image of the Kubernetes nodes.",
            f"Name a file that `{engine.name} save --output FILE IMAGE` wrote, or an image.",
        )
    if not engine.has_image(image):
        fix = (
            "Name one that this machine can have by `course up --image`: from a mirror, an archive that "
            f"`{engine.name} save` wrote, or one that {engine.name} has already."
        )
        _pull(engine, image, fix)
    return image


def preload(engine: Engine, kind: Path, nodes: Sequence[str], scratch: Path) -> None:
    """See that the Kubernetes nodes have the images of Ray and of KubeRay's operator, so that no lesson waits for them.

    Args:
        engine: the container engine.
        kind: the program.
        nodes: names of the Kubernetes nodes.
        scratch: a folder for an archive of some gigabytes.

    Raises:
        CourseError: if an image is in none of them, and cannot be had.
    """
    wanted = {versions.RAY_IMAGE, versions.KUBERAY_IMAGE}
    lacking = {node: missing for node in nodes if (missing := wanted - _in_node(engine, node))}
    if not lacking:
        return
    images = sorted(set().union(*lacking.values()))
    info = engine.info()
    for image in images:
        _obtain(engine, image, info.machine)
    print(f"… loading {' and '.join(images)} into {', '.join(lacking)}: a minute or two", flush=True)
    with tempfile.TemporaryDirectory(dir=scratch, prefix="images-") as folder:
        archive = Path(folder) / "images.tar"
        engine.save(images, archive, info)
        load = [kind, "load", "image-archive", archive, "--name", CLUSTER, "--nodes", ",".join(lacking)]
        fix = f"Free some disk space, and try again; `{engine.name} system df` shows what it uses."
        must(load, IMAGE_S, "kind cannot load images into the Kubernetes nodes", fix, **engine.provider)


def _in_node(engine: Engine, node: str) -> set[str]:
    """The names of the images in a Kubernetes node, as manifests write them."""
    told = must(
        engine.inside(node, "crictl", "images", "--output", "json"), ASK_S,
        f"The Kubernetes node {node} does not say which images it has", "Run `course up` again.",
    )  # fmt: skip
    images = json.loads(told).get("images") or ()
    return {name.removeprefix("docker.io/") for image in images for name in image.get("repoTags") or ()}


def _obtain(engine: Engine, image: str, machine: str) -> None:
    """Have an image in the engine, under the name that manifests use, whatever its publisher calls it."""
    if engine.has_image(image):
        return
    # Ray has a tag for each kind of machine, and no list of them
    published = f"{image}-aarch64" if image == versions.RAY_IMAGE and machine == "arm64" else image
    if not engine.has_image(published):
        fix = (
            f"Three ways out: pull it from a mirror and give it that name (`{engine.name} pull`, `{engine.name} tag`); "
            f"load it from an archive (`{engine.name} load --input FILE`); or have it in an image of the Kubernetes "
            "nodes of your own (`course up --image`)."
        )
        _pull(engine, published, fix)
    if published != image:
        engine.tag(published, image)


def _pull(engine: Engine, image: str, fix: str) -> None:
    name = image.partition("@")[0]
    print(f"… {engine.name} pulls {name}: minutes, depending on the network", flush=True)
    done = engine.pull(image, PULL_S)
    if done.code:
        raise CourseError(f"The image {name} cannot be pulled: {cause(done)}.", fix)


def cause(done: Done) -> str:
    """Why an image could not be pulled, as one clause."""
    told = done.said or done.out
    return next((means for pattern, means in CAUSES if re.search(pattern, told, re.IGNORECASE)), done.why)
