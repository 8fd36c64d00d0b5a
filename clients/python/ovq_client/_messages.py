"""Message classes of ovq.v1, built at import from the descriptors of its proto.

An installed package contains descriptors.pb, so that it needs no protoc. In the source tree protoc
compiles proto/ovq/v1/inference.proto at each import (about 20 ms), so that no generated file is in
git or out of date. Classes that protobuf builds at run time do not tie the versions of protoc and
of the protobuf package to each other, as generated Python modules do."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from google.protobuf import (
    any_pb2, descriptor_pb2, descriptor_pool, duration_pb2, message_factory, timestamp_pb2,
)

_FILE = "ovq/v1/inference.proto"


def _descriptor_set() -> descriptor_pb2.FileDescriptorSet:
    here = Path(__file__).resolve().parent
    tree = here.parents[2] / "proto"
    if here.parts[-3:-1] != ("clients", "python") or not (tree / _FILE).is_file():
        return descriptor_pb2.FileDescriptorSet.FromString((here / "descriptors.pb").read_bytes())
    command = ["protoc", f"-I{tree}", "--descriptor_set_out=/dev/stdout", _FILE]
    try:
        run = subprocess.run(command, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        why = getattr(error, "stderr", b"").decode().strip() or error
        raise ImportError(
            f"compiling the proto failed (needs protoc: package protobuf-compiler): {why}"
        ) from None
    return descriptor_pb2.FileDescriptorSet.FromString(run.stdout)


def _class_of(descriptor: Any) -> Any:
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(descriptor)
    return message_factory.MessageFactory(_POOL).GetPrototype(descriptor)


# A separate pool, because a program may have generated modules of the same proto in the default
# one.
_POOL = descriptor_pool.DescriptorPool()
for _imported in (any_pb2, duration_pb2, timestamp_pb2):
    _POOL.AddSerializedFile(_imported.DESCRIPTOR.serialized_pb)
for _file in _descriptor_set().file:
    _POOL.AddSerializedFile(_file.SerializeToString())
_DESCRIPTOR = _POOL.FindFileByName(_FILE)

#: Message classes by name: MESSAGES["Prompt"](text="hi").
MESSAGES: dict[str, Any] = {
    name: _class_of(descriptor) for name, descriptor in _DESCRIPTOR.message_types_by_name.items()
}
_METHODS = [(s, method) for s in _DESCRIPTOR.services_by_name.values() for method in s.methods]
#: Message classes by the method that takes them: REQUESTS["Score"](prompt={"text": "hi"}).
REQUESTS: dict[str, Any] = {method.name: _class_of(method.input_type) for _, method in _METHODS}


class Stub:
    """The methods of all services as attributes, like those of generated stubs for grpc.aio. Each
    takes session_key beside the request and gRPC's own arguments."""

    def __init__(self, channel: Any, metadata: tuple, adapt: Callable[[str, Any], Any]):
        """adapt: makes a call of the channel look like one of grpc.aio; its first argument is the
        call's kind, such as "unary_stream"."""
        arity = ("unary", "stream")
        for service, method in _METHODS:
            kind = f"{arity[method.client_streaming]}_{arity[method.server_streaming]}"
            call = getattr(channel, kind)(
                f"/{service.full_name}/{method.name}",
                request_serializer=REQUESTS[method.name].SerializeToString,
                response_deserializer=_class_of(method.output_type).FromString,
            )
            setattr(self, method.name, _with_metadata(adapt(kind, call), metadata))


def _with_metadata(call: Any, metadata: tuple) -> Any:
    def start(*request: Any, session_key: str = "", **arguments: Any) -> Any:
        key = (("ovq-session", session_key),) if session_key else ()
        return call(*request, metadata=metadata + key, **arguments)

    return start
