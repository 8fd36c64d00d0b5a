"""Message classes of ovq.v1, made at import from proto/ovq/v1/inference.proto.

No generated code is kept in git or written to disk: protoc turns the proto into a descriptor set
(about 20 ms), from which protobuf builds the classes at run time. Unlike generated Python modules,
a descriptor set has no ties between the versions of protoc and of the protobuf package. protoc is
the protobuf-compiler package's, else the one inside grpc_tools (Debian 12's grpc_tools is too old
for proto3's `optional`).
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    message_factory,
    timestamp_pb2,
)

_FILE = "ovq/v1/inference.proto"


def _proto_root() -> Path:
    """The folder holding ovq/v1/inference.proto: $OVQ_PROTO_ROOT, else this source tree's."""
    root = Path(os.environ.get("OVQ_PROTO_ROOT", Path(__file__).resolve().parents[3] / "proto"))
    if not (root / _FILE).is_file():
        raise ImportError(f"{root / _FILE} not found; set OVQ_PROTO_ROOT to the folder of {_FILE}")
    return root


def _descriptor_set() -> descriptor_pb2.FileDescriptorSet:
    protoc = shutil.which("protoc")
    command = [protoc] if protoc else [sys.executable, "-m", "grpc_tools.protoc"]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "descriptors"
        includes = [f"-I{_proto_root()}"]
        if not protoc:
            from importlib.resources import files

            includes.append(f"-I{files('grpc_tools') / '_proto'}")
        run = subprocess.run(
            [*command, *includes, f"--descriptor_set_out={out}", _FILE],
            capture_output=True,
            text=True,
        )
        if run.returncode != 0:
            raise ImportError(
                "compiling the proto failed (needs protoc: package protobuf-compiler): "
                + run.stderr.strip()
            )
        return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())


def _class_of(descriptor: Any) -> Any:
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(descriptor)
    return message_factory.MessageFactory(_POOL).GetPrototype(descriptor)


# A pool of its own: a program may have generated modules of the same proto in the default one.
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
Duration = _class_of(_POOL.FindMessageTypeByName("google.protobuf.Duration"))
#: Service descriptors by name.
SERVICES: dict[str, Any] = dict(_DESCRIPTOR.services_by_name)


class Stub:
    """The calls of one service as attributes, as a generated stub has them."""

    def __init__(self, channel: Any, service: str, metadata: tuple = ()):
        """A call takes session_key beside the request and gRPC's own arguments."""
        descriptor = SERVICES[service]
        for method in descriptor.methods:
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
    def start(request: Any, *, session_key: str | None = None, **arguments: Any) -> Any:
        key = (("ovq-session", session_key),) if session_key else ()
        return call(request, metadata=metadata + key, **arguments)

    return start
