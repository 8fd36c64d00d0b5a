#include "server/rpc/grpc_codec.h"

#include <google/protobuf/stubs/logging.h>
#include <google/protobuf/unknown_field_set.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace ovq {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Protobuf tells which field is not UTF-8 to its log only. The last such line of this thread.
thread_local std::string last_parse_complaint;

void KeepComplaint(google::protobuf::LogLevel, const char*, int, const std::string& text) {
  last_parse_complaint = text;
}

// "String field 'ovq.v1.Prompt.text' contains invalid UTF-8 data when ..." -> the quoted name.
std::string ComplaintField() {
  const size_t begin = last_parse_complaint.find('\'');
  const size_t end = last_parse_complaint.find('\'', begin + 1);
  if (begin == std::string::npos || end == std::string::npos) return "";
  return last_parse_complaint.substr(begin + 1, end - begin - 1);
}

absl::Status CheckKnown(const Message& message) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  const google::protobuf::UnknownFieldSet& unknown = reflection.GetUnknownFields(message);
  if (!unknown.empty()) {
    return absl::UnimplementedError(absl::StrCat(message.GetDescriptor()->full_name(), ": field ",
                                                 unknown.field(0).number(),
                                                 " is not known to this server"));
  }
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || field->is_map()) continue;
    const int count = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      const Message& child = field->is_repeated() ? reflection.GetRepeatedMessage(message, field, i)
                                                  : reflection.GetMessage(message, field);
      if (absl::Status status = CheckKnown(child); !status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(status.raw_code()), std::string(status.message())};
}

absl::Status ParseMessage(const grpc::ByteBuffer& bytes, Message& message) {
  static std::once_flag handler_set;
  std::call_once(handler_set, [] { google::protobuf::SetLogHandler(&KeepComplaint); });
  last_parse_complaint.clear();
  grpc::ByteBuffer copy = bytes;  // shares the data; reading needs a mutable one
  if (copy.Valid()) {
    grpc::ProtoBufferReader reader(&copy);
    if (!reader.status().ok() || !message.ParseFromZeroCopyStream(&reader)) {
      const std::string field = ComplaintField();
      return absl::InvalidArgumentError(
          field.empty() ? absl::StrCat("the bytes are not a ", message.GetDescriptor()->full_name())
                        : absl::StrCat(field, ": expected UTF-8 text"));
    }
  }
  return CheckKnown(message);
}

grpc::ByteBuffer SerializeMessage(const Message& message) {
  grpc::ByteBuffer bytes;
  bool own_buffer = false;
  // Fails only beyond 2 GiB, which the limits on answers exclude; the buffer is then empty.
  (void)grpc::SerializationTraits<Message>::Serialize(message, &bytes, &own_buffer);
  return bytes;
}

}  // namespace ovq
