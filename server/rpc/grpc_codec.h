// Parses and serializes messages, and maps statuses. The services take raw bytes from gRPC and
// parse them here, because gRPC answers a message that does not parse with UNIMPLEMENTED and no
// text, and within a stream takes it for the end of the stream.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "base/byte_budget.h"

namespace ovq::server {

// Limit on the bytes of unknown fields in one request. proto3 skips such fields, but they take many
// times their bytes while the message is parsed.
inline constexpr int64_t kMaxUnknownBytes = 64 << 10;
// Limit on the messages and texts in one request, itself included: several times the longest lists
// that are accepted. Even an empty one takes many times its bytes.
inline constexpr int64_t kMaxParts = 64 << 10;

// Maps an error to the wire: the codes have the same numbers, and the facts of the error go along
// as an ovq.v1.ErrorInfo.
grpc::Status ToGrpcStatus(const absl::Status& status);

// InvalidArgument for bytes that are not the message (an error about UTF-8 names the field) or that
// exceed kMaxUnknownBytes or kMaxParts. Before it parses, it takes from `hold` the memory of the
// message once parsed and tokenized, which for small fields is many times their bytes:
// ResourceExhausted.
absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message& message,
                          ByteHold& hold);
grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message);

}  // namespace ovq::server
