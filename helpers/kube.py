"""The API server, over the `kubernetes` client: reading, applying, deleting, watching, logs, exec.

Objects are plain dicts, as `kubectl get -o json` shows them. What kinds there are is asked of the API server, so that
CRDs need no code here.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from helpers.errors import CourseError
from helpers.wait import WaitTimeout, wait_until

T = TypeVar("T")
FIELD_MANAGER = "ray-course"
CONNECT_S, READ_S = 5.0, 30.0  # on a machine that is busy with much else, an answer has taken more than 10 s
APPLY = "application/apply-patch+yaml"  # of JSON, which is YAML too
MERGE = "application/merge-patch+json"
DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"  # every kind in one answer
BUSY = 429  # "storage is (re)initializing" after its start, or more requests than it takes: it wants to be asked again
BUSY_S = 20.0
STDIN, STDOUT, STDERR = 0, 1, 2  # channels of an exec


class KubeError(CourseError):
    """The API server refused, in its own words.

    Attributes:
        status: of HTTP, such as 404.
        reason: in one word, such as NotFound.
        message: its own sentence.
        causes: one mapping for each field that it names: reason, message, field.
    """

    def __init__(self, status: int, reason: str, message: str, causes: list[dict] | None = None):
        super().__init__(
            f"The API server refuses that: {message.rstrip('.')}.", "Mend what it names, and run the cell again."
        )
        self.status, self.reason, self.message, self.causes = status, reason, message, causes or []


class NoAnswer(CourseError):
    """Nobody answers at the API server's address, or not in time.

    Attributes:
        why: as far as it is known.
    """

    def __init__(self, why: str):
        self.why = why
        super().__init__(
            f"The API server does not answer ({why}).",
            "See `course status`; `course up` starts what is missing. Then run the cell again: nothing is lost.",
        )


@dataclass(frozen=True)
class Resource:
    """A kind of object, and where the API server has it.

    Attributes:
        prefix: of its paths, such as `/apis/ray.io/v1`.
        plural: as in its paths: `rayclusters`.
        kind: `RayCluster`.
        names: by which kubectl knows it: plural, singular and short ones.
        namespaced: whether its objects lie in a namespace.
    """

    prefix: str
    plural: str
    kind: str
    names: frozenset[str]
    namespaced: bool

    @property
    def api_version(self) -> str:
        return self.prefix.removeprefix("/apis/").removeprefix("/api/")

    def path(self, namespace: str, name: str = "") -> str:
        """Of the collection in a namespace, or of one object there."""
        place = f"/namespaces/{quote(namespace)}" if self.namespaced and namespace else ""
        return f"{self.prefix}{place}/{self.plural}" + (f"/{quote(name)}" if name else "")

    def label(self, name: str) -> str:
        """An object's name as people write it: `raycluster/demo`."""
        return f"{self.kind.lower()}/{name}"


class Kube:
    """One cluster, by a kubeconfig.

    Args:
        kubeconfig: the file; it is read again whenever it has changed.
        read_s: seconds that an answer may take.

    Every call raises `NoAnswer` if the API server does not answer, and `KubeError` if it refuses.
    """

    def __init__(self, kubeconfig: Path, read_s: float = READ_S):
        self.kubeconfig, self._read_s = kubeconfig, read_s
        self._read, self._client, self._resources = None, None, []

    # ---- requests ----------------------------------------------------------------------------------------------------

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
        **query: object,
    ) -> dict:
        """Ask the API server for one thing, and return its answer as JSON holds it."""
        answer = self._send(method, path, body, content_type, accept, query)
        try:
            return json.loads(answer.data)
        except ValueError:
            raise NoAnswer("what came back is no JSON") from None

    def text(self, path: str, **query: object) -> str:
        """What the API server answers at `path`, as text."""
        return self._send("GET", path, None, "", "*/*", query).data.decode(errors="replace")

    def _send(
        self, method: str, path: str, body: object, content_type: str, accept: str, query: dict, *, stream: bool = False
    ) -> Any:
        def answered() -> Any:
            answer = self._send_once(method, path, body, content_type, accept, query, stream)
            assert answer.status != BUSY, _refused(answer.status, answer.data).message
            return answer

        try:
            answer = wait_until(answered, BUSY_S, what="the API server to have time for this", every_s=1)
        except WaitTimeout as error:
            raise NoAnswer(error.reason) from None
        if answer.status >= 300:
            raise _refused(answer.status, answer.data)
        return answer

    def _send_once(
        self, method: str, path: str, body: object, content_type: str, accept: str, query: dict, stream: bool
    ) -> Any:
        import urllib3

        client = self._connected()
        url, headers = self._address(path, query)
        headers |= {"Accept": accept} | ({"Content-Type": content_type} if body is not None else {})
        try:
            return client.rest_client.pool_manager.request(
                method, url, body=None if body is None else json.dumps(body), headers=headers, retries=False,
                timeout=urllib3.Timeout(connect=CONNECT_S, read=self._read_s), preload_content=not stream,
            )  # fmt: skip
        except urllib3.exceptions.HTTPError as error:
            raise NoAnswer(_why(error)) from None

    def _connected(self) -> Any:
        """The client, made anew when the kubeconfig has changed."""
        from kubernetes import client, config

        try:
            written = self.kubeconfig.stat().st_mtime_ns
            if written != self._read:
                settings = client.Configuration()
                config.load_kube_config(str(self.kubeconfig), client_configuration=settings)
                self._client, self._read = client.ApiClient(settings), written
        except (OSError, config.ConfigException) as error:
            raise CourseError(
                f"The kubeconfig {self.kubeconfig} cannot be used: {error}.",
                "Run the notebook again from its first cell.",
            ) from None
        return self._client

    def _address(self, path: str, query: dict) -> tuple[str, dict]:
        """URL and the headers that say who asks."""
        _, url, headers, _, _ = self._connected().param_serialize("GET", path, auth_settings=["BearerToken"])
        # an empty value is none; a list stands for several parameters of one name
        given = {name: value for name, value in query.items() if value not in ("", None)}
        return url + (f"?{urlencode(given, doseq=True)}" if given else ""), dict(headers)

    # ---- kinds -------------------------------------------------------------------------------------------------------

    def resource(self, name: str, api_version: str = "") -> Resource:
        """The kind of that name: a plural, a singular, a short name, or the kind itself.

        Args:
            name: such as `raycluster`, `po` or `Deployment`.
            api_version: such as `apps/v1`; left away, the first group that has the name.

        Raises:
            CourseError: if there is none.
        """
        found = self.find(name, api_version)
        if found is None:
            raise CourseError(
                f"The cluster knows no kind {name}" + (f" in {api_version}." if api_version else "."),
                "`kubectl api-resources` lists all that it knows.",
            )
        return found

    def find(self, name: str, api_version: str = "") -> Resource | None:
        """As `resource`, but None if there is none."""
        for known in (lambda: self._resources, self._discover):  # a CRD may have come since
            for resource in known():
                if name.lower() in resource.names and api_version in ("", resource.api_version):
                    return resource
        return None

    def _discover(self) -> list[Resource]:
        found = []
        for top in ("/api", "/apis"):
            for group in self.request("GET", top, accept=DISCOVERY)["items"]:
                name = group["metadata"].get("name", "")
                for version in group["versions"]:
                    prefix = f"/apis/{name}/{version['version']}" if name else f"/api/{version['version']}"
                    found += [_resource(prefix, entry) for entry in version["resources"] if entry.get("responseKind")]
        self._resources = found
        return found

    # ---- objects -----------------------------------------------------------------------------------------------------

    def get(self, resource: Resource, name: str, namespace: str) -> dict | None:
        """An object; None if there is none."""
        try:
            return self.request("GET", resource.path(namespace, name))
        except KubeError as error:
            if error.status != 404:
                raise
            return None

    def list(self, resource: Resource, namespace: str, selector: str = "", fields: str = "") -> list[dict]:
        """All objects of a kind in a namespace (all namespaces if that is empty), by label or field selector."""
        return self.list_at(resource, namespace, selector, fields)[0]

    def list_at(
        self, resource: Resource, namespace: str, selector: str = "", fields: str = ""
    ) -> tuple[list[dict], str]:
        """As `list`, and the list's resourceVersion, from which a `watch` goes on; empty if that kind has no watch."""
        answer = self.request("GET", resource.path(namespace), labelSelector=selector, fieldSelector=fields)
        # in a list, objects do not say what they are
        of_kind = {"kind": resource.kind, "apiVersion": resource.api_version}
        return [item | of_kind for item in answer["items"]], answer["metadata"].get("resourceVersion", "")

    def apply(
        self, resource: Resource, thing: dict, namespace: str, *, force: bool = False, dry_run: bool = False
    ) -> dict:
        """Make an object so, whether it is there or not (server-side apply); unknown fields are refused.

        Args:
            resource: its kind.
            thing: the object, or the part of it that is to be so.
            namespace: where.
            force: take over fields that another field manager holds; else that is refused with status 409.
            dry_run: only say what would be.

        Returns:
            The whole object.
        """
        return self.request(
            "PATCH", resource.path(namespace, thing["metadata"]["name"]), thing, content_type=APPLY,
            fieldManager=FIELD_MANAGER, fieldValidation="Strict", force=str(force).lower(),
            dryRun="All" if dry_run else "",
        )  # fmt: skip

    def patch(self, resource: Resource, name: str, namespace: str, change: dict) -> dict:
        """Change an object by a merge patch (RFC 7386)."""
        return self.request(
            "PATCH", resource.path(namespace, name), change, content_type=MERGE, fieldManager=FIELD_MANAGER
        )

    def create(self, resource: Resource, thing: dict, namespace: str) -> dict:
        """Make a new object."""
        return self.request("POST", resource.path(namespace), thing, fieldManager=FIELD_MANAGER)

    def delete(self, resource: Resource, name: str, namespace: str) -> bool:
        """Begin to delete an object, after all that it owns; returns whether there was one."""
        try:
            self.request("DELETE", resource.path(namespace, name), {"propagationPolicy": "Foreground"})
        except KubeError as error:
            if error.status != 404:
                raise
            return False
        return True

    def watch(
        self, resource: Resource, namespace: str, since: str, timeout_s: int, selector: str = ""
    ) -> Iterator[dict]:
        """What happens to objects of a kind: {"type": ADDED, MODIFIED, DELETED or BOOKMARK, "object": …}.

        A BOOKMARK's object has only the resourceVersion up to which all has been told.

        Args:
            resource: the kind.
            namespace: where.
            since: the resourceVersion of the list from which on changes are wanted.
            timeout_s: seconds after which the API server ends it.
            selector: by label.

        Raises:
            KubeError: with status 410 if the API server does not go back that far any more.
        """
        import urllib3

        query = {"watch": "true", "resourceVersion": since, "timeoutSeconds": timeout_s, "labelSelector": selector}
        query |= {"allowWatchBookmarks": "true"}
        answer = self._send("GET", resource.path(namespace), None, "", "application/json", query, stream=True)
        try:
            begun = b""
            for part in answer.stream(2**16):
                *lines, begun = (begun + part).split(b"\n")
                for told in map(json.loads, filter(None, lines)):
                    if told["type"] == "ERROR":
                        raise _refusal(told["object"])
                    yield told
        except urllib3.exceptions.HTTPError as error:
            raise NoAnswer(_why(error)) from None
        finally:
            answer.close()

    def events(self, namespace: str) -> list[dict]:
        """All Kubernetes events of a namespace (core/v1), in no order."""
        return self.list(self.resource("events", "v1"), namespace)

    def version(self) -> str:
        """Of the API server, such as `1.36.3`."""
        return self.request("GET", "/version")["gitVersion"].removeprefix("v")

    def ahead_s(self) -> float:
        """Seconds that the API server's clock is ahead of this machine's; 0 if they differ by no more than a second.

        From the header `Date` of an answer, which has whole seconds.
        """
        from email.utils import parsedate_to_datetime

        before = time.time()
        told = self._send("GET", "/version", None, "", "application/json", {}).headers.get("Date")
        here = (before + time.time()) / 2
        if not told:
            return 0.0
        ahead = parsedate_to_datetime(told).timestamp() + 0.5 - here
        return ahead if abs(ahead) > 1.5 else 0.0

    # ---- Pods --------------------------------------------------------------------------------------------------------

    def logs(
        self, pod: str, namespace: str, container: str = "", *, tail: int | None = None, previous: bool = False
    ) -> str:
        """What a container has printed; of the run before the last restart if `previous`."""
        path = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(pod)}/log"
        return self.text(path, container=container, tailLines=tail, previous="true" if previous else "")

    def exec(self, pod: str, namespace: str, container: str, command: list[str]) -> Exec:
        """Run a command in a container; its streams go over a WebSocket."""
        path = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(pod)}/exec"
        url, headers = self._address(
            path, {"container": container, "command": command, **dict.fromkeys(("stdin", "stdout", "stderr"), "true")}
        )
        return Exec(self._websocket(url, headers))

    def _websocket(self, url: str, headers: dict) -> Any:
        from kubernetes.client.exceptions import ApiException
        from kubernetes.stream.ws_client import websocket_call

        settings = self._connected().configuration
        headers = {name.lower(): value for name, value in headers.items()}
        try:
            return websocket_call(
                settings, "GET", url, headers=headers, binary=True, capture_all=False, _preload_content=False
            )
        except ApiException as error:
            why = str(error.reason).partition(" -+-+-")[0]
            shaken = re.match(r"Handshake status (\d+) ", why)
            raise (KubeError(int(shaken[1]), "", why) if shaken else NoAnswer(why)) from None


def if_allowed(ask: Callable[[], T]) -> T | None:
    """What `ask` returns; None if this user may not ask that."""
    try:
        return ask()
    except KubeError as error:
        if error.status != 403:
            raise
        return None


def patient(ask: Callable[[], T]) -> Callable[[], T]:
    """For `wait_until`: asks as `ask` does, and goes on asking while the API server does not answer."""

    def asked() -> T:
        try:
            return ask()
        except NoAnswer as error:
            raise AssertionError(f"{error.what.rstrip('.')}; this goes on as soon as it does") from None

    return asked


class Exec:
    """A command that runs in a container.

    Attributes:
        is_open: whether the connection stands; it ends with the command.
    """

    def __init__(self, stream: Any):
        self._stream = stream

    @property
    def is_open(self) -> bool:
        return self._stream.is_open()

    def write(self, data: bytes) -> None:
        """To its standard input."""
        for start in range(0, len(data), 2**15):
            self._stream.write_channel(STDIN, data[start : start + 2**15])

    def read(self, timeout_s: float) -> tuple[bytes, bytes]:
        """What it has written to standard output and error since the last time, after waiting at most so long."""
        try:
            self._stream.update(timeout=timeout_s)
        except Exception as error:  # of three libraries: the connection broke
            self._stream.close()
            raise NoAnswer(f"the connection broke: {error}") from None
        return tuple(self._stream.read_channel(channel) or b"" for channel in (STDOUT, STDERR))

    def status(self) -> str:
        """How it ended, in the API server's words; empty if it ended with status 0."""
        told = self._stream.read_channel(3)
        try:
            answer = json.loads(told)
        except ValueError:
            return "the connection ended"
        return "" if answer.get("status") == "Success" else answer.get("message", "it failed")

    def close(self) -> None:
        self._stream.close()


def _resource(prefix: str, entry: dict) -> Resource:
    names = [entry["resource"], entry.get("singularResource", ""), *entry.get("shortNames", [])]
    kind = entry["responseKind"]["kind"]
    return Resource(
        prefix, entry["resource"], kind, frozenset({*filter(None, names), kind.lower()}), entry["scope"] == "Namespaced"
    )


def _refused(status: int, data: bytes) -> KubeError:
    try:
        return _refusal(json.loads(data) | {"code": status})
    except (ValueError, TypeError, AttributeError):
        return KubeError(status, "", data[:300].decode(errors="replace") or f"status {status}")


def _refusal(told: dict) -> KubeError:
    causes = (told.get("details") or {}).get("causes", [])
    return KubeError(told["code"], told.get("reason", ""), told.get("message", ""), causes)


def _why(error: Exception) -> str:
    """The reason at the end of a chain of exceptions, without the addresses of objects that urllib3 writes."""
    import urllib3

    reason = getattr(error, "reason", None) or error
    if isinstance(reason, urllib3.exceptions.TimeoutError) and not isinstance(
        reason, urllib3.exceptions.NewConnectionError
    ):
        return "it has said nothing for some seconds"
    text = str(reason).partition(": ")[2] or str(reason)
    return text.strip("()'\"") or type(reason).__name__
