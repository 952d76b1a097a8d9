"""The container runtime interface (CRI): its messages, made from the descriptor, and the gRPC around them.

No generated code: `descriptor` is the FileDescriptorSet of k8s.io/cri-api's `runtime/v1/api.proto`, which the kubelet
program writes (`kubelet --cri-descriptor FILE`), so runtime and kubelet speak the same version by construction.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from helpers.errors import CourseError

PACKAGE = "runtime.v1"
SERVICES = ("RuntimeService", "ImageService")
MAX_MESSAGE = 32 << 20  # an answer of ExecSync may hold twice 16 MiB less its framing; the kubelet itself takes 16 MiB
log = logging.getLogger("cri")


class Refused(Exception):
    """A call that fails: its gRPC status code and the sentence that the kubelet shows in an event.

    Args:
        code: name of the gRPC code, such as "NOT_FOUND".
        text: what is wrong, in one sentence.
    """

    def __init__(self, code: str, text: str):
        super().__init__(text)
        self.code, self.text = grpc.StatusCode[code], text


class Messages:
    """All messages and enum values of the CRI as attributes: `pb.VersionResponse(...)`, `pb.SANDBOX_READY`.

    Args:
        descriptor: file with the FileDescriptorSet.

    Raises:
        CourseError: there is no such file, or it is not the descriptor of the CRI.
    """

    def __init__(self, descriptor: Path):
        fix = "Run `course tools build`, which writes it."
        try:
            files = descriptor_pb2.FileDescriptorSet.FromString(descriptor.read_bytes()).file
        except (OSError, DecodeError) as error:
            raise CourseError(f"The description of the CRI in {descriptor} cannot be read: {error}.", fix) from error
        self._pool = descriptor_pool.DescriptorPool()
        for file in files:
            self._pool.Add(file)
        found = {enum.name: enum for file in files if file.package == PACKAGE for enum in file.enum_type}
        self._numbers = {value.name: value.number for enum in found.values() for value in enum.value}
        try:
            self.services = {name: self._pool.FindServiceByName(f"{PACKAGE}.{name}") for name in SERVICES}
        except KeyError as error:
            raise CourseError(f"{descriptor} does not describe {PACKAGE} of the CRI: {error}.", fix) from error

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            value = self._numbers.get(name)
            if value is None:
                value = message_factory.GetMessageClass(self._pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        except KeyError:
            raise AttributeError(f"the CRI has no message or enum value {name}") from None
        self.__dict__[name] = value  # the next time it is found without coming here
        return value

    def enum_name(self, enum: str, number: int) -> str:
        """Name of an enum's value; `UNKNOWN_<number>` if this version does not know it."""
        value = self._pool.FindEnumTypeByName(f"{PACKAGE}.{enum}").values_by_number.get(number)
        return value.name if value else f"UNKNOWN_{number}"


def snake(name: str) -> str:
    """`RunPodSandbox` as `run_pod_sandbox`: how a method of the CRI is called here."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def handlers(messages: Messages, service: str, implementation: object) -> grpc.GenericRpcHandler:
    """The gRPC side of a service. What `implementation` lacks is answered with UNIMPLEMENTED and its name.

    Args:
        messages: the messages of the CRI.
        service: `RuntimeService` or `ImageService`.
        implementation: has `async def run_pod_sandbox(request) -> response` and so on.
    """
    table = {}
    for method in messages.services[service].methods:
        request = message_factory.GetMessageClass(method.input_type)
        response = message_factory.GetMessageClass(method.output_type)
        call = getattr(implementation, snake(method.name), None)
        codecs = {"request_deserializer": request.FromString, "response_serializer": response.SerializeToString}
        if method.server_streaming:
            table[method.name] = grpc.unary_stream_rpc_method_handler(_refuse_stream(method.name), **codecs)
        else:
            table[method.name] = grpc.unary_unary_rpc_method_handler(_answer(method.name, call), **codecs)
    return grpc.method_handlers_generic_handler(f"{PACKAGE}.{service}", table)


def _answer(
    name: str, call: Callable[[Message], Awaitable[Message]] | None
) -> Callable[[Message, grpc.aio.ServicerContext], Awaitable[Message]]:
    async def answer(request: Message, context: grpc.aio.ServicerContext) -> Message:
        begun = time.monotonic()
        try:
            if call is None:
                raise Refused("UNIMPLEMENTED", f"the process runtime does not implement {name}")
            return await call(request)
        except Refused as refused:
            code, text = refused.code, refused.text
        except Exception as error:
            # the kubelet tries again, and the trace is in this log
            log.exception("%s", name)
            code, text = grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}"
        log.warning("%s failed after %.2f s: %s: %s", name, time.monotonic() - begun, code.name, text)
        return await context.abort(code, text)

    return answer


def _refuse_stream(name: str) -> Callable[[Message, grpc.aio.ServicerContext], AsyncIterator[Message]]:
    """Streams are alpha (lists in parts) or off (container events): the kubelet asks without them then."""

    async def refuse(request: Message, context: grpc.aio.ServicerContext) -> AsyncIterator[Message]:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"the process runtime does not implement {name}")
        yield  # never reached: it makes this an async generator, as gRPC wants for a stream

    return refuse


async def serve(socket: Path, messages: Messages, runtime: object, images: object) -> grpc.aio.Server:
    """Starts to answer on a Unix socket that only our own user may open.

    Args:
        socket: where; what is left there of a run before is replaced.
        messages: the messages of the CRI.
        runtime: implementation of RuntimeService.
        images: implementation of ImageService.
    """
    server = grpc.aio.server(
        options=[("grpc.max_receive_message_length", MAX_MESSAGE), ("grpc.max_send_message_length", MAX_MESSAGE)]
    )
    server.add_generic_rpc_handlers(
        (handlers(messages, "RuntimeService", runtime), handlers(messages, "ImageService", images))
    )
    socket.unlink(missing_ok=True)
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    socket.chmod(0o600)
    return server
