"""What a RayJob becomes: whether KubeRay takes it, what its submitter's shell makes of it, what happens at its end.

Sources: KubeRay 1.6.2, `controllers/ray/utils/validation.go`, `controllers/ray/common/job.go` and
`controllers/ray/rayjob_controller.go`; Ray 2.60.0, `ray/dashboard/modules/job/cli.py` and `job_manager.py`. The job
template of a RayCronJob is a RayJob without a name.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from helpers.model import shell
from helpers.model.findings import ERROR, WARNING, Finding
from helpers.model.raycluster import Cluster, cluster_of, name_refusals, part_of
from helpers.model.releases import PINNED, Releases

K8S_JOB, HTTP, SIDECAR, INTERACTIVE = "K8sJobMode", "HTTPMode", "SidecarMode", "InteractiveMode"
MODES = (K8S_JOB, HTTP, SIDECAR, INTERACTIVE)
SPECS = {"RayJob": "spec", "RayCronJob": "spec.jobTemplate"}
SELECTOR = "ray.io/cluster"  # RayJobClusterSelectorKey in constant.go
SUBMITTER_LIMIT = 2  # createNewK8sJob: how often the submitter is tried again, if submitterConfig does not say it
SECONDS = "0000000000"  # stands for what `date +%s` prints

# what the shell does to an entrypoint
SECOND_COMMAND = "second-command-in-submitter"
SUBSTITUTION = "substitution-in-submitter"
PATTERN = "unquoted-glob"
QUOTING = "quoting-lost"

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day of the month", 1, 31), ("month", 1, 12), ("day of the week", 0, 6))
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_NAMES = ({}, {}, {}, {name: number for number, name in enumerate(_MONTHS, 1)}, dict(zip(_DAYS, range(7), strict=True)))
_EVERY = re.compile(r"@every\s+((\d+(\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h))+")
_DESCRIPTORS = {"@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"}


@dataclass(frozen=True)
class Job:
    """A RayJob, or the one that a RayCronJob makes, that the API server has taken.

    Attributes:
        spec: of the job.
        path: where that is.
        cluster: the one it makes; None if it has none of its own.
    """

    document: Mapping[str, Any]
    spec: Mapping[str, Any]
    path: str
    cluster: Cluster | None

    @property
    def mode(self) -> str:
        return self.spec.get("submissionMode") or K8S_JOB

    @property
    def retries(self) -> int:
        return self.spec.get("backoffLimit") or 0

    @property
    def is_autoscaling(self) -> bool:
        return bool(self.cluster and self.cluster.is_autoscaling)

    @property
    def has_shell(self) -> bool:
        """Whether entrypoint and runtime environment pass through a shell before they reach Ray."""
        own = _submitter(self).get("command") if self.mode == K8S_JOB else None
        return self.mode in (K8S_JOB, SIDECAR) and not own


@dataclass(frozen=True)
class Submitted:
    """What becomes of an entrypoint.

    Attributes:
        entrypoint: what Ray's job gets; None if nothing is submitted.
        runs_in_submitter: the commands that run in the submitter, in order.
        warning: what the shell does to the entrypoint, the weightiest first; None if nothing.
    """

    entrypoint: str | None
    runs_in_submitter: tuple[str, ...] = ()
    warning: str | None = None


def job_of(document: Mapping[str, Any]) -> Job | None:
    """The job in a document to which the API server has said nothing; None if there is none in it."""
    path = SPECS.get(document.get("kind", ""))
    if path is None:
        return None
    return Job(document, part_of(document, path) or {}, path, cluster_of(document))


# ---- what the operator refuses --------------------------------------------------------------------------------------


def refusals(job: Job, releases: Releases = PINNED) -> list[Finding]:
    """What the operator refuses the job for, its cluster aside; all errors.

    `ValidateRayJobMetadata`, `ValidateRayJobSpec` and `ValidateRayCronJobSpec`. The operator says the first of them.
    """
    found = [] if job.cluster else list(name_refusals(job.document))
    if job.document["kind"] == "RayCronJob":
        found += _schedule(job.document["spec"].get("schedule", ""))
    return [
        *found,
        *_end(job),
        *_deletion(job),
        *_selector(job),
        *_modes(job),
        *_limits(job),
        *_runtime_env(job),
        *_metadata(job, releases),
    ]


def _end(job: Job) -> Iterator[Finding]:
    shuts_down, seconds = job.spec.get("shutdownAfterJobFinishes"), job.spec.get("ttlSecondsAfterFinished") or 0
    if job.spec.get("suspend") and not shuts_down:
        said = "a job whose cluster stays at its end (shutdownAfterJobFinishes) cannot be suspended"
        yield Finding("suspend-needs-shutdown", f"{job.path}.suspend", ERROR, said)
    if seconds < 0:
        yield Finding("negative-bound", f"{job.path}.ttlSecondsAfterFinished", ERROR, f"it is {seconds}, below 0")
    elif seconds and not shuts_down:
        said = "it says when the cluster is deleted, and shutdownAfterJobFinishes, that it is not"
        yield Finding("ttl-needs-shutdown", f"{job.path}.ttlSecondsAfterFinished", ERROR, said)


def _selector(job: Job) -> Iterator[Finding]:
    selector = job.spec.get("clusterSelector")
    if not selector:
        if not job.cluster:
            said = "one of rayClusterSpec and clusterSelector is required"
            yield Finding("missing-field", f"{job.path}.rayClusterSpec", ERROR, said)
        return
    if not selector.get(SELECTOR):
        said = f"the selector names its cluster under the key {SELECTOR}"
        yield Finding("missing-field", f"{job.path}.clusterSelector.{SELECTOR}", ERROR, said)
    if job.spec.get("suspend"):
        said = "a job on a cluster that is not its own cannot be suspended"
        yield Finding("suspend-with-selector", f"{job.path}.suspend", ERROR, said)
    if job.mode == SIDECAR:
        said = "the submitter would be in the head's Pod, and the Pod of a selected cluster is there already"
        yield Finding("sidecar-with-selector", f"{job.path}.clusterSelector", ERROR, said)
    if job.retries > 0:
        said = "each try makes a new cluster, and clusterSelector wants one that is there"
        yield Finding("backoff-with-selector", f"{job.path}.backoffLimit", ERROR, said)


def _modes(job: Job) -> Iterator[Finding]:
    if job.mode not in MODES:
        said = f"{job.mode!r:.60} is not one of {', '.join(MODES)}: the operator takes it, and nobody submits the job"
        yield Finding("bad-enum", f"{job.path}.submissionMode", ERROR, said)
    if job.mode == INTERACTIVE and job.retries > 0:
        said = "a job that somebody submits by hand is not tried again"
        yield Finding("backoff-with-interactive", f"{job.path}.backoffLimit", ERROR, said)
    if job.mode != SIDECAR:
        return
    for field in ("submitterPodTemplate", "submitterConfig"):
        if job.spec.get(field) is not None:
            said = "in SidecarMode the submitter is a container of the head's Pod, and has no Pod of its own"
            yield Finding("sidecar-with-submitter-template", f"{job.path}.{field}", ERROR, said)
    policy = job.cluster.head.pod.get("restartPolicy") if job.cluster else None
    if policy not in (None, "", "Never"):
        said = f"it is {policy}, and in SidecarMode it must be Never, or not written"
        path = f"{job.cluster.head.path}.template.spec.restartPolicy"
        yield Finding("restart-policy-not-never", path, ERROR, said)


def _limits(job: Job) -> Iterator[Finding]:
    for field, least in (("activeDeadlineSeconds", 1), ("preRunningDeadlineSeconds", 1), ("backoffLimit", 0)):
        value = job.spec.get(field)
        if value is not None and value < least:
            said = f"it is {value}, and must not be below {least}"
            yield Finding("negative-bound", f"{job.path}.{field}", ERROR, said)


def _runtime_env(job: Job) -> Iterator[Finding]:
    """`UnmarshalRuntimeEnvYAML` in dashboard_httpclient.go."""
    try:
        read = yaml.safe_load(job.spec.get("runtimeEnvYAML") or "")
        wrong = "" if read is None or isinstance(read, dict) else "it is no mapping"
    except (yaml.YAMLError, RecursionError) as error:
        wrong = f"it is no YAML: {str(getattr(error, 'problem', None) or error).splitlines()[0]:.100}"
    if wrong:
        yield Finding("bad-runtime-env", f"{job.path}.runtimeEnvYAML", ERROR, wrong)


def _metadata(job: Job, releases: Releases) -> Iterator[Finding]:
    """`GetMetadataJson` in job.go; since KubeRay 1.7 it asks for no rayVersion."""
    if job.spec.get("metadata") and job.cluster and job.mode in (K8S_JOB, SIDECAR):
        written = job.cluster.spec.get("rayVersion") or ""
        match = re.match(r"v?(\d+)\.(\d+)", written)
        is_free = not written and releases.kuberay >= (1, 7, 0)
        if not is_free and (not match or (int(match[1]), int(match[2])) < (2, 6)):
            said = "metadata needs a rayVersion that is written, and is 2.6.0 or newer; nothing is submitted without"
            yield Finding("metadata-needs-ray-version", f"{job.path}.metadata", ERROR, said)


def _deletion(job: Job) -> Iterator[Finding]:
    """`validateDeletionConfiguration`, and the rules in CEL of the CRD, which say a part of it earlier."""
    strategy, path = job.spec.get("deletionStrategy"), f"{job.path}.deletionStrategy"
    if strategy is None:
        return
    rules = strategy.get("deletionRules") or []
    legacy = [strategy[key] for key in ("onSuccess", "onFailure") if strategy.get(key) is not None]
    policies = [one.get("policy") for one in (*legacy, *rules)]
    if "DeleteWorkers" in policies and job.is_autoscaling:
        said = "the autoscaler would make the workers again that DeleteWorkers removes"
        yield Finding("delete-workers-with-autoscaler", path, ERROR, said)
    wrong = [*_legacy(job, legacy, rules), *_rules(job, rules)]
    for said in wrong:
        yield Finding("bad-deletion-strategy", path, ERROR, said)


def _legacy(job: Job, legacy: Sequence[Mapping[str, Any]], rules: Sequence[Any]) -> Iterator[str]:
    policies = [one.get("policy") for one in legacy]
    if rules and job.spec.get("shutdownAfterJobFinishes"):
        yield "shutdownAfterJobFinishes and deletionRules both say when the cluster is deleted"
    if legacy and rules:
        yield "onSuccess and onFailure cannot stand beside deletionRules"
    elif not rules and len(legacy) != 2:
        yield "it has deletionRules, or onSuccess and onFailure both"
    elif legacy and None in policies:
        yield "onSuccess and onFailure have a policy each"
    if legacy and job.spec.get("clusterSelector") and {"DeleteCluster", "DeleteWorkers"} & {*policies}:
        yield "a cluster that is not the job's own is not deleted by it"
    if legacy and job.spec.get("shutdownAfterJobFinishes") and "DeleteNone" in policies:
        yield "shutdownAfterJobFinishes is on, and a policy is DeleteNone"


def _rules(job: Job, rules: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    times: dict[tuple[str, str], dict[str, int]] = {}
    for number, rule in enumerate(rules):
        condition, policy = rule.get("condition") or {}, rule.get("policy", "")
        found = [
            (key, condition[key]) for key in ("jobStatus", "jobDeploymentStatus") if condition.get(key) is not None
        ]
        seconds = condition.get("ttlSeconds") or 0
        if len(found) != 1:
            yield f"deletionRules[{number}] needs jobStatus or jobDeploymentStatus, one of them"
            continue
        if seconds < 0:
            yield f"deletionRules[{number}] has ttlSeconds {seconds}, below 0"
        if job.spec.get("clusterSelector") and policy in ("DeleteCluster", "DeleteWorkers"):
            yield f"deletionRules[{number}]: a cluster that is not the job's own is not deleted by it"
        if policy in times.setdefault(found[0], {}):
            yield f"deletionRules[{number}] says {policy} for {found[0][1]} a second time"
        times[found[0]].setdefault(policy, seconds)
    for (_, state), by_policy in times.items():
        order = [(one, by_policy[one]) for one in ("DeleteWorkers", "DeleteCluster", "DeleteSelf") if one in by_policy]
        for (first, earlier), (second, later) in zip(order, order[1:], strict=False):
            if later < earlier:
                yield f"for {state}, {second} comes after {later} s, and {first} after {earlier} s"


def _schedule(text: str) -> Iterator[Finding]:
    """`cron.ParseStandard` of robfig/cron: five fields or a word with an @, behind a time zone if one is wanted."""
    words = re.sub(r"^(CRON_)?TZ=\S+\s*", "", text).split()
    line = " ".join(words)
    wrong = ""
    if line.startswith("@"):
        if line not in _DESCRIPTORS and not _EVERY.fullmatch(line):
            wrong = f"{line!r:.40} is no word for a time"
    elif len(words) != len(_FIELDS):
        wrong = f"it has {len(words)} fields, and needs {len(_FIELDS)}"
    else:
        for word, (name, least, most), names in zip(words, _FIELDS, _NAMES, strict=True):
            if not all(_is_times(one, least, most, names) for one in word.split(",")):
                wrong = f"{word!r:.40} is no {name}, {least} to {most}"
                break
    if wrong:
        yield Finding("bad-schedule", "spec.schedule", ERROR, wrong)


def _is_times(text: str, least: int, most: int, names: Mapping[str, int]) -> bool:
    """Whether this is a field of a schedule: a number, a range, either with a step, or all."""
    times, _, step = text.partition("/")
    if "/" in text and not (step.isdecimal() and int(step) > 0):
        return False
    if times in ("*", "?"):
        return True
    first, dash, last = times.partition("-")
    ends = [names.get(end.lower(), int(end) if end.isdecimal() else -1) for end in ([first, last] if dash else [first])]
    return all(least <= end <= most for end in ends) and ends == sorted(ends)


# ---- what the shell of the submitter makes of it --------------------------------------------------------------------


def misreadings(job: Job, releases: Releases = PINNED) -> list[Finding]:
    """Where the submitter's shell does something else than what is written; warnings."""
    if not (job.has_shell and releases.submitter_has_a_shell):
        return []
    found = []
    container = _submitter(job) if job.mode == K8S_JOB else {}
    own = {one["name"]: one.get("value") or "1" for one in container.get("env") or ()}
    expanded = expansions(job.spec.get("runtimeEnvYAML") or "", own)
    if expanded:
        said = f"a shell in the submitter replaces {', '.join(expanded)} before Ray sees it"
        found.append(Finding("shell-expansion-in-runtime-env", f"{job.path}.runtimeEnvYAML", WARNING, said))
    said = shell_takes(job.spec.get("entrypoint") or "", releases)
    if said:
        found.append(Finding("shell-in-entrypoint", f"{job.path}.entrypoint", WARNING, said))
    return found


def _submitter(job: Job) -> Mapping[str, Any]:
    """The container that submits the job, if the manifest has one."""
    containers = ((job.spec.get("submitterPodTemplate") or {}).get("spec") or {}).get("containers") or [{}]
    return containers[0]


def expansions(runtime_env_yaml: str, submitter_env: Mapping[str, str]) -> list[str]:
    """What of a runtime environment bash replaces in the submitter, as `$NAME` or `$(command)`; each once.

    Raises nothing: what is no YAML is nothing to the shell.
    """
    try:
        word = shell.double_quoted(_argument(runtime_env_yaml, submitter_env))
    except (ValueError, yaml.YAMLError):
        return ["what begins with a dollar sign or a backquote"] if "$" in runtime_env_yaml else []
    shown = {shell.VARIABLE: "${}", shell.COMMAND: "$({})"}
    return list(dict.fromkeys(shown[part.kind].format(part.value) for part in word if part.kind != shell.TEXT))


def _argument(runtime_env_yaml: str, submitter_env: Mapping[str, str]) -> str:
    """What stands between double quotes behind --runtime-env-json, once Kubernetes has replaced its own.

    `getRuntimeEnvJson` and `BuildJobSubmitCommand` in job.go; `strconv.Quote` puts a backslash before `"` and `\\`.
    """
    read = yaml.safe_load(runtime_env_yaml)
    if read is None:
        return ""
    text = json.dumps(read, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=str)
    return shell.kubernetes_expanded(text.replace("\\", "\\\\").replace('"', '\\"'), submitter_env)


def runtime_env_value(
    runtime_env_yaml: str,
    variable: str,
    submitter_env: Mapping[str, str],
    head_env: Mapping[str, str],
    mode: str = K8S_JOB,
) -> str | None:
    """What the driver finds in a variable, when it runs on the head.

    Between the manifest and the driver are, but for HTTPMode, Kubernetes and bash in the submitter, and then Ray's
    `update_envs` (ray/_private/utils.py), which replaces `$NAME` and `${NAME}` from the head's own variables.

    Returns:
        None if there is none, or the job is not submitted at all.
    """
    try:
        read = yaml.safe_load(runtime_env_yaml)
        if mode in (K8S_JOB, SIDECAR):
            word = shell.double_quoted(_argument(runtime_env_yaml, submitter_env))
            read = json.loads("".join(shell.expanded(word, submitter_env, _printed))) if word else None
    except (ValueError, yaml.YAMLError):
        return None
    variables = (read or {}).get("env_vars") or {}
    if mode == INTERACTIVE or variable not in variables:
        return head_env.get(variable)
    value = variables[variable]
    return _updated(value, head_env) if isinstance(value, str) else None


def _updated(value: str, env: Mapping[str, str]) -> str:
    def replaced(match: re.Match) -> str:
        return env.get(match[1] or match[2], match[0])

    text = re.sub(r"\$(?:(\w+)|\{([^}]*)\})", replaced, value, flags=re.ASCII)  # os.path.expandvars
    return re.sub(r"\$\{[A-Z0-9_]+\}", "", text)


def _printed(command: str) -> str:
    """What a command prints, as far as that can be known; a program that is not there prints nothing."""
    words = command.split()
    if command.split() == ["date", "+%s"]:
        return SECONDS
    return " ".join(shlex.split(command)[1:]) if words[:1] == ["echo"] else ""


def submitted(entrypoint: str, mode: str = K8S_JOB, releases: Releases = PINNED) -> Submitted:
    """What of an entrypoint reaches Ray, and what the submitter keeps.

    `BuildJobSubmitCommand` in job.go puts it, as it is, behind `ray job submit … --` in a line for bash; `submit` in
    Ray's cli.py makes one text of the words that bash hands it, which a shell on the head reads. In HTTPMode the
    operator hands it over as it is.
    """
    if mode == INTERACTIVE:
        return Submitted(None)
    if mode == HTTP or not releases.submitter_has_a_shell:
        return Submitted(entrypoint if mode == HTTP else entrypoint.strip())
    line = shell.kubernetes_expanded(entrypoint.strip(), {})
    try:
        [first, *others] = _commands(line)
    except ValueError:
        return Submitted(None, (), SECOND_COMMAND)
    words = _words(first)
    text = _joined(words, releases)
    # what stands behind || runs where the submission fails
    runs = [*first.substitutions, *(command.text for command in others if command.after != "||")]
    warning = next((name for name, holds in _warnings(first, others, words, text) if holds), None)
    return Submitted(text.replace(SECONDS, "<seconds>"), tuple(runs), warning)


def shell_takes(entrypoint: str, releases: Releases = PINNED) -> str:
    """What of an entrypoint the submitter's shell takes for itself, as a sentence; empty if nothing."""
    line = shell.kubernetes_expanded(entrypoint.strip(), {})
    if not line:
        return ""
    try:
        [first, *others] = _commands(line)
    except ValueError as error:
        return f"the submitter's shell cannot read it: {error}"
    words = _words(first)
    sentences = {
        SECOND_COMMAND: f"Ray's job gets {first.text!r:.80} alone, the rest runs in the submitter",
        SUBSTITUTION: "what begins with a dollar sign or a backquote is replaced in the submitter, not on the head",
        PATTERN: "a pattern is compared with the files of the submitter, not with those of the head",
        QUOTING: "its quotes are lost on the way to the shell on the head",
    }
    for name, holds in _warnings(first, others, words, _joined(words, releases)):
        if holds:
            return sentences[name]
    return "the output of the submitter goes there, not that of the job" if first.redirects else ""


def _commands(line: str) -> list[shell.Command]:
    """The commands of an entrypoint; ValueError if bash does not take the whole line that KubeRay makes with it."""
    found = shell.commands(f"{line} ; fi")
    last = found.pop()
    if last.text != "fi" or last.after not in (";",) or not found:
        raise ValueError("what comes after it is taken for a part of it")
    return found


def _words(command: shell.Command) -> list[str]:
    """What bash makes of a command's words, where no variable is set."""
    words = [word for one in command.words for word in shell.braced(one)]
    return [text for word in words for text in shell.expanded(word, {}, _printed)]


def _joined(words: list[str], releases: Releases) -> str:
    return shlex.join(words) if releases.submit_quotes_for_posix else subprocess.list2cmdline(words)


def _warnings(
    first: shell.Command, others: Sequence[shell.Command], words: list[str], text: str
) -> Iterator[tuple[str, bool]]:
    yield SECOND_COMMAND, bool(others)
    yield SUBSTITUTION, first.expands
    yield PATTERN, first.has_pattern
    yield QUOTING, not shell.is_plain(text, words) or _hides_assignment(text, words)


def _hides_assignment(text: str, words: Sequence[str]) -> bool:
    """Whether a variable in front of the command is none any more: a shell knows it only where its name has no quotes.

    `X="a b" python train.py` becomes `'X=a b' python train.py`, whose first word is a command.
    """
    for word, read in zip(words, shell.commands(text)[0].words, strict=False):
        if not _ASSIGNMENT.match(word):
            return False
        if read[0].quoted or not _ASSIGNMENT.match(read[0].value):
            return True
    return False


# ---- what happens at its end, and where it runs ----------------------------------------------------------------------


@dataclass(frozen=True)
class Cleanup:
    """Whether a job's cluster is deleted at its end, and seconds after that end; None if it is not."""

    cluster_deleted: bool
    after_s: int | None = None


def cleanup(shuts_down: bool, ttl_s: int | None = 0, selector: Mapping[str, str] | None = None) -> Cleanup:
    """What becomes of the cluster when the job has ended: `handleShutdownAfterJobFinishes` in rayjob_controller.go.

    Args:
        shuts_down: shutdownAfterJobFinishes.
        ttl_s: ttlSecondsAfterFinished, seconds.
        selector: clusterSelector; a cluster so chosen is not the job's, and stays.
    """
    return Cleanup(True, ttl_s or 0) if shuts_down and not selector else Cleanup(False)


def clusters_created(backoff_limit: int, succeeds: bool) -> int:
    """How many clusters a job that ends the same way each time makes: `checkBackoffLimitAndUpdateStatusIfNeeded`.

    The tries of the submitter (submitterConfig.backoffLimit) are all for one cluster and one job of Ray.
    """
    return 1 if succeeds else 1 + backoff_limit


def driver_place(cpus: float, head_cpus: float, worker_cpus: float, worker_max: int) -> str:
    """Where the driver of a job runs, when no worker is there yet: `JobManager._get_label_selector`.

    Args:
        cpus: entrypointNumCpus; with 0 the driver is tied to the head.
        head_cpus: what Ray counts on the head.
        worker_cpus: what it counts on a worker.
        worker_max: how many workers there may be.

    Returns:
        "head", "worker" or "nowhere".
    """
    if not cpus or cpus <= head_cpus:
        return "head"
    return "worker" if worker_max > 0 and cpus <= worker_cpus else "nowhere"
