// Messages as bytes, and statuses. The services take raw bytes from gRPC and parse them here,
// because gRPC answers a message that does not parse with UNIMPLEMENTED and no text, and takes one
// inside a stream for the end of the stream.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "base/byte_budget.h"

namespace ovq {

// Of one request, all its fields that this server does not know together. They are skipped, as
// proto3 has it, but would take many times their bytes while the message is parsed.
inline constexpr int64_t kMaxUnknownBytes = 64 << 10;
// Of one request, the messages and texts in it, itself included: several times what the longest
// lists that are taken hold. Each takes many times its bytes, too, if it is empty.
inline constexpr int64_t kMaxParts = 64 << 10;

// The project's one mapping of errors to the wire; the codes have the same numbers. The facts of an
// error go along as an ovq.v1.ErrorInfo.
grpc::Status ToGrpcStatus(const absl::Status& status);

// InvalidArgument for bytes that are not the message (text that is not UTF-8 names its field) or
// hold more than kMaxUnknownBytes of unknown fields or kMaxParts. First takes from `hold` what the
// message comes to, once parsed and tokenized, which is many times its bytes for small fields:
// ResourceExhausted.
absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message& message,
                          ByteHold& hold);
grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message);

}  // namespace ovq
