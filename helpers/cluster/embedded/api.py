"""The few calls of the Kubernetes API that `course up` makes itself, without waiting for a client library to load."""

from __future__ import annotations

import http.client
import json
import ssl
from urllib.parse import urlsplit

from helpers.cluster.embedded.pki import ADMIN, CA, Pki

FIELD_MANAGER = "course"
JSON = "application/json"
METADATA_ONLY = f"{JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
TIMEOUT_S = 10
LONG_S = 60  # for what is large: a custom resource definition of KubeRay has a megabyte


class ApiError(Exception):
    """The API server refused, in its own words."""


class Api:
    """The API server, as the administrator.

    Args:
        keys: the cluster's certificates.
        server: such as `https://127.0.0.1:26443`.
    """

    def __init__(self, keys: Pki, server: str):
        self._address = urlsplit(server)
        self._context = ssl.create_default_context(cafile=str(keys.certificate(CA)))
        self._context.load_cert_chain(keys.certificate(ADMIN.name), keys.key(ADMIN.name))

    def get(self, path: str) -> dict | None:
        """The object at `path`; None if there is none.

        Raises:
            OSError: if nobody answers.
            ApiError: if the API server refuses.
        """
        return self._request("GET", path)

    def metadata(self, collection: str) -> list[dict]:
        """Names, labels and annotations of all objects of a collection, without the objects.

        Raises:
            OSError: if nobody answers.
            ApiError: if the API server refuses.
        """
        found = self._request("GET", collection, accept=METADATA_ONLY)["items"]
        return [one["metadata"] for one in found or []]  # none is null, not an empty list

    def apply(self, collection: str, thing: dict) -> None:
        """Make an object so, whether it is there or not (server-side apply).

        Raises:
            OSError: if nobody answers.
            ApiError: if the API server refuses.
        """
        self.apply_text(f"{collection}/{thing['metadata']['name']}", json.dumps(thing).encode())

    def apply_text(self, path: str, manifest: bytes) -> None:
        """As `apply`, of an object at `path` that is written in YAML or JSON."""
        path = f"{path}?fieldManager={FIELD_MANAGER}&force=true"
        self._request("PATCH", path, manifest, "application/apply-patch+yaml", timeout_s=LONG_S)

    def delete(self, path: str) -> None:
        """Delete the object at `path`, if there is one."""
        self._request("DELETE", path)

    def _request(
        self, method: str, path: str, body: bytes | None = None, kind: str = JSON, accept: str = JSON,
        timeout_s: float = TIMEOUT_S,
    ) -> dict | None:  # fmt: skip
        connection = http.client.HTTPSConnection(
            self._address.hostname, self._address.port, timeout=timeout_s, context=self._context
        )
        try:
            connection.request(method, path, body, {"Content-Type": kind, "Accept": accept})
            answer = connection.getresponse()
            text = answer.read()
        except http.client.HTTPException as error:
            raise OSError(f"the API server broke off: {error}") from error
        finally:
            connection.close()
        if answer.status == 404 and method != "PATCH":
            return None
        if answer.status >= 300:
            raise ApiError(f"{method} {path}: {answer.status} {_message(text)}")
        return json.loads(text)


def _message(text: bytes) -> str:
    try:
        return json.loads(text)["message"]
    except (ValueError, KeyError, TypeError):
        return text[:200].decode(errors="replace")
