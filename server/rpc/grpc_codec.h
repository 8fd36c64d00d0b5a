// Messages as bytes, and statuses. The services take raw bytes from gRPC and parse them here,
// because gRPC answers a message that does not parse with UNIMPLEMENTED and no text, and takes one
// inside a stream for the end of the stream.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace ovq {

// The project's one mapping of errors to the wire; the codes have the same numbers.
grpc::Status ToGrpcStatus(const absl::Status& status);

// InvalidArgument for bytes that are not the message (text that is not UTF-8 names its field),
// Unimplemented for a field this server does not know: it is never ignored.
absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message& message);
grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message);

}  // namespace ovq
