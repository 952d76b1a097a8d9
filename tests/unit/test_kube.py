"""The API server's answers, from one that a test makes up."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from helpers import kube as module
from helpers.kube import Kube, KubeError, NoAnswer

REINITIALIZING = {"kind": "Status", "reason": "TooManyRequests", "message": "storage is (re)initializing"}


class Server(ThreadingHTTPServer):
    """Gives the answers of a list, one after the other, and the last one for ever."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict, dict]] = []
        self.asked = 0

        class Handler(BaseHTTPRequestHandler):
            def do_GET(handler) -> None:
                status, body, headers = self.answers[min(self.asked, len(self.answers) - 1)]
                self.asked += 1
                data = json.dumps(body).encode() + b"\n"  # one line of a watch
                handler.send_response(status)
                for name, value in (headers | {"Content-Length": str(len(data))}).items():
                    handler.send_header(name, value)
                handler.end_headers()
                handler.wfile.write(data)

            def log_message(handler, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def kube(server: Server, tmp_path: Path) -> Kube:
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
    context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    config = {"apiVersion": "v1", "kind": "Config", "current-context": "x", "clusters": [cluster],
              "contexts": [context], "users": [{"name": "u", "user": {}}]}  # fmt: skip
    (tmp_path / "config").write_text(json.dumps(config))
    return Kube(tmp_path / "config")


def test_a_server_that_has_no_time_yet_is_asked_again(kube, server):
    server.answers = [(429, REINITIALIZING, {}), (200, {"gitVersion": "v1.2.3"}, {})]
    assert kube.version() == "1.2.3" and server.asked == 2


def test_a_server_that_never_has_time(kube, server, monkeypatch):
    monkeypatch.setattr(module, "BUSY_S", 0.0)
    server.answers = [(429, REINITIALIZING, {})]
    with pytest.raises(NoAnswer, match=r"does not answer \(storage is \(re\)initializing\)"):
        kube.version()


def test_a_refusal_is_said_at_once(kube, server):
    server.answers = [(403, {"reason": "Forbidden", "message": "you may not."}, {})]
    with pytest.raises(KubeError, match="refuses that: you may not. Mend"):
        kube.version()
    assert server.asked == 1


@pytest.mark.parametrize(("seconds", "ahead"), [(0, 0.0), (1, 0.0), (90, 90.0), (-3600, -3600.0)])
def test_how_far_the_servers_clock_is_ahead(kube, server, seconds, ahead, monkeypatch):
    now = 1_800_000_000.0
    monkeypatch.setattr(module.time, "time", lambda: now)
    monkeypatch.setattr(BaseHTTPRequestHandler, "date_time_string", lambda self, timestamp=None: _date(now + seconds))
    server.answers = [(200, {}, {})]
    assert kube.ahead_s() == pytest.approx(ahead, abs=0.6)


def _date(timestamp: float) -> str:
    from email.utils import formatdate

    return formatdate(timestamp, usegmt=True)


PODS = module.Resource("/api/v1", "pods", "Pod", frozenset({"pods"}), True)


def test_a_list_and_where_a_watch_goes_on(server: Server, kube: Kube) -> None:
    server.answers = [(200, {"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "a"}}]}, {})]
    things, since = kube.list_at(PODS, "x")
    assert since == "7" and things == [{"metadata": {"name": "a"}, "kind": "Pod", "apiVersion": "v1"}]
    server.answers = [(200, {"metadata": {}, "items": []}, {})]  # as of componentstatuses
    assert kube.list_at(PODS, "x") == ([], "") and kube.list(PODS, "x") == []


def test_an_error_in_a_watch_is_raised(server: Server, kube: Kube) -> None:
    gone = {"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old resource version: 1 (9)"}}
    server.answers = [(200, gone, {})]
    with pytest.raises(KubeError, match="too old resource version") as raised:
        list(kube.watch(PODS, "x", "1", 1))
    assert (raised.value.status, raised.value.reason) == (410, "Expired")
