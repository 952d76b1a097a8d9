"""Which Ray and which KubeRay a manifest is for, and what depends on it.

The facts are those of the course's notes, each tried or read at the releases named beside it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from helpers import versions
from helpers.errors import CourseError

Version = tuple[int, int, int]

_FORM = re.compile(r"\s*v?(\d+)\.(\d+)(?:\.(\d+))?")


@dataclass(frozen=True)
class Releases:
    """A Ray and a KubeRay, as (major, minor, patch)."""

    ray: Version
    kuberay: Version

    @property
    def autoscaler_needs_params(self) -> bool:
        """Whether Ray's autoscaler ends with a KeyError where a group has no rayStartParams.

        Ray 2.9.3 to 2.42.0 do, 2.47.1 does not.
        """
        return self.ray < (2, 47, 0)

    @property
    def autoscaler_reads_requests(self) -> bool:
        """Whether the autoscaler looks at the requests where there is no limit: since Ray 2.41.0."""
        return self.ray >= (2, 41, 0)

    @property
    def autoscaler_reads_group_resources(self) -> bool:
        """Whether the autoscaler looks at a group's own `resources`: 2.49.2 does not, 2.52.1 does."""
        return self.ray >= (2, 52, 0)

    @property
    def runs_v2_by_default(self) -> bool:
        """Whether autoscaler v2 runs where nobody says which: since Ray 2.47, with KubeRay since 1.4."""
        return self.ray >= (2, 47, 0) and self.kuberay >= (1, 4, 0)

    @property
    def submit_quotes_for_posix(self) -> bool:
        """Whether `ray job submit` writes the entrypoint down so that a POSIX shell reads the same words again.

        `shlex.join` in place of `subprocess.list2cmdline` (dashboard/modules/job/cli.py): 2.55.1 does not, 2.60.0 does;
        the change was made after 2.55.1 was out.
        """
        return self.ray >= (2, 56, 0)

    @property
    def submitter_has_a_shell(self) -> bool:
        """Whether the submitter of a RayJob runs its command through bash: KubeRay 1.2 does not, 1.4 does."""
        return self.kuberay >= (1, 3, 0)

    @property
    def allocation_timeout_s(self) -> int | None:
        """For how long autoscaler v2 lets a Pod be there without a Ray node in it, by default; None for ever.

        300 s in Ray 2.53.0 and 3600 s since 2.54.0 (RAY_AUTOSCALER_RECONCILE_ALLOCATE_STATUS_TIMEOUT_S).
        """
        return 300 if self.ray < (2, 54, 0) else 3600


def version(text: str) -> Version:
    """A version as three numbers; what follows them, such as "-py311", is left away.

    Raises:
        CourseError: it is none.
    """
    match = _FORM.match(text)
    if not match:
        raise CourseError(f"{text!r:.60} is no version.", f"Write it as {versions.RAY} is written.")
    return int(match[1]), int(match[2]), int(match[3] or 0)


def releases(ray: str = "", kuberay: str = "") -> Releases:
    """The releases of these versions; the pinned ones where none is given.

    Raises:
        CourseError: one is no version.
    """
    return Releases(version(ray or versions.RAY), version(kuberay or versions.KUBERAY))


PINNED = releases()


def fits(cluster_ray: str, cluster_python: str, ray: str, python: str, is_client: bool) -> bool:
    """Whether something may join a cluster: `check_version_info` in ray/_private/utils.py.

    Ray must be the same to the letter. Of Python, Ray Client compares major and minor (ray/util/client/__init__.py);
    a Ray node that joins, or a driver without Ray Client, compares the patch level too.
    """
    parts = 2 if is_client else None
    return cluster_ray == ray and cluster_python.split(".")[:parts] == python.split(".")[:parts]
