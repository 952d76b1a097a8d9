"""Removes a directory of a cluster, files of other users in it too. Run as `wipe DIRECTORY`.

Without root, a container's further users are ids that the user was granted, and only in a user namespace that has them
the user may remove their files.
"""

from __future__ import annotations

import os
import shutil
import sys

from helpers.cluster.embedded import namespaces


def main() -> None:
    child = namespaces.fork_mapped()
    if child == 0:
        shutil.rmtree(sys.argv[1])
        os._exit(0)
    _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
