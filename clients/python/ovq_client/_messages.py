"""Message classes of ovq.v1, built at import from the descriptors of its proto.

An installed package contains descriptors.pb, so that it needs no protoc. In the source tree protoc
compiles proto/ovq/v1/inference.proto at each import (about 20 ms), so that no generated file is in
git or out of date. Classes that protobuf builds at run time do not tie the versions of protoc and
of the protobuf package to each other, as generated Python modules do. protoc is the
protobuf-compiler package's, else the one inside grpc_tools (Debian 12's grpc_tools is too old for
proto3's `optional`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from google.protobuf import (
    any_pb2, descriptor_pb2, descriptor_pool, duration_pb2, message_factory, timestamp_pb2,
)

from ovq_client._descriptors import FILE, compile_descriptors


def _proto_root() -> Path | None:
    """Returns the folder that contains ovq/v1/inference.proto: $OVQ_PROTO_ROOT, else this source
    tree's; None outside of one."""
    if "OVQ_PROTO_ROOT" in os.environ:
        root = Path(os.environ["OVQ_PROTO_ROOT"])
        if not (root / FILE).is_file():
            raise ImportError(f"OVQ_PROTO_ROOT: {root / FILE} not found")
        return root
    here = Path(__file__).resolve().parent
    root = here.parents[2] / "proto"
    in_tree = here.parts[-3:-1] == ("clients", "python") and (root / FILE).is_file()
    return root if in_tree else None


def _descriptor_set() -> descriptor_pb2.FileDescriptorSet:
    root = _proto_root()
    if root is not None:
        return descriptor_pb2.FileDescriptorSet.FromString(compile_descriptors(root))
    packed = Path(__file__).resolve().parent / "descriptors.pb"
    if not packed.is_file():
        raise ImportError(f"{packed} not found; set OVQ_PROTO_ROOT to the folder of {FILE}")
    return descriptor_pb2.FileDescriptorSet.FromString(packed.read_bytes())


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
_DESCRIPTOR = _POOL.FindFileByName(FILE)

#: Message classes by name: MESSAGES["Prompt"](text="hi").
MESSAGES: dict[str, Any] = {
    name: _class_of(descriptor) for name, descriptor in _DESCRIPTOR.message_types_by_name.items()
}
Duration = _class_of(_POOL.FindMessageTypeByName("google.protobuf.Duration"))
_METHODS = [(s, method) for s in _DESCRIPTOR.services_by_name.values() for method in s.methods]


class Stub:
    """The methods of all services as attributes, like generated stubs; for a channel of grpc or of
    grpc.aio."""

    def __init__(self, channel: Any, metadata: tuple = ()):
        """Each method takes session_key beside the request and gRPC's own arguments."""
        for descriptor, method in _METHODS:
            kind = (
                ("stream" if method.client_streaming else "unary")
                + "_"
                + ("stream" if method.server_streaming else "unary")
            )
            call = getattr(channel, kind)(
                f"/{descriptor.full_name}/{method.name}",
                request_serializer=_class_of(method.input_type).SerializeToString,
                response_deserializer=_class_of(method.output_type).FromString,
            )
            setattr(self, method.name, _with_metadata(call, metadata))


def _with_metadata(call: Any, metadata: tuple) -> Any:
    def start(*request: Any, session_key: str | None = None, **arguments: Any) -> Any:
        key = (("ovq-session", session_key),) if session_key else ()
        return call(*request, metadata=metadata + key, **arguments)

    return start
