"""`explain` of a manifest of four groups and a job: less than half a second, the reading of the CRDs included."""

from __future__ import annotations

import subprocess
import sys

from _figure import finish, python_loop, report, side_by_side

BOUND_S = 0.5
TIMES = 7
GROUPS = 4


def manifest() -> str:
    """A RayCluster and a RayJob, of `GROUPS` groups each."""
    pod = (
        "template: {spec: {containers: [{name: ray, image: 'rayproject/ray:2.60.0-py311',"
        " resources: {limits: {cpu: '4', memory: 16Gi}, requests: {cpu: '2', memory: 16Gi}}}]}}"
    )
    groups = "\n".join(f"    - {{groupName: g{n}, minReplicas: 0, maxReplicas: 8, {pod}}}" for n in range(GROUPS))
    spec = f"""
  rayVersion: "2.60.0"
  enableInTreeAutoscaling: true
  headGroupSpec: {{rayStartParams: {{}}, {pod}}}
  workerGroupSpecs:
{groups}
"""
    inner = spec.replace("\n", "\n  ")
    return (
        f"apiVersion: ray.io/v1\nkind: RayCluster\nmetadata: {{name: bench}}\nspec:{spec}---\n"
        f"apiVersion: ray.io/v1\nkind: RayJob\nmetadata: {{name: bench}}\nspec:\n  entrypoint: cd /app && python a.py\n"
        f"  rayClusterSpec:{inner}\n"
    )


def main() -> None:
    """Measure a call in this process, and print what `course explain` takes as a whole beside it."""
    from helpers.observe.explain import explain

    text = manifest()
    took, loop = side_by_side(lambda: str(explain(text)), python_loop, TIMES)

    def command() -> None:
        line = [sys.executable, "-m", "helpers.cli", "explain", "-"]
        subprocess.run(line, input=text, text=True, stdout=subprocess.DEVNULL, check=True)

    whole, bare = side_by_side(command, lambda: subprocess.run([sys.executable, "-c", "pass"], check=True), TIMES // 2)
    beside = f"a Python loop {loop:.3f} s; `course explain` as a whole {whole:.2f} s, a bare Python {bare:.3f} s"
    finish(report("explain", took, BOUND_S, beside))


if __name__ == "__main__":
    main()
