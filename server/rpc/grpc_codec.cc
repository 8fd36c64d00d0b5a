#include "server/rpc/grpc_codec.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/stubs/common.h>
#include <google/protobuf/stubs/logging.h>
#include <google/protobuf/wire_format.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "ovq/v1/inference.pb.h"
#include "server/calls/convert.h"
#include "server/calls/service_context.h"
#include "server/engine/common/error_facts.h"

namespace ovq::server {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::internal::WireFormat;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// Whether the field has this wire type: else the parser takes it for an unknown field.
bool IsWrittenAs(const FieldDescriptor& field, WireFormatLite::WireType type) {
  if (type == WireFormat::WireTypeForFieldType(field.type())) return true;
  return field.is_packable() && type == WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
}

// The cost of a message, measured on its bytes.
struct Extent {
  int64_t unknown = 0;  // bytes of unknown fields, at any depth
  int64_t parts = 0;    // messages and texts, itself included
  size_t parsed = 0;    // bytes of memory, roughly, with tokens and copies

  bool TooLarge() const { return unknown > kMaxUnknownBytes || parts > kMaxParts; }
};
// Bytes of an object in an array or a map, and of a copy of it.
constexpr size_t kMessageBytes = 128;
constexpr size_t kTextBytes = 64;
constexpr size_t kNumberBytes = 16;  // with its token id
// A character and its copy, and a token for each byte.
constexpr size_t kBytesPerChar = 2 + sizeof(int32_t);

// Skips an unknown field whose tag began at `begin`; of a group, only as much as makes the message
// too large. False if the bytes are not a field.
bool SkipUnknown(CodedInputStream& in, uint32_t tag, int begin, Extent& extent) {
  const CodedInputStream::Limit outer =
      in.PushLimit(static_cast<int>(kMaxUnknownBytes - extent.unknown) + 1);
  const bool skipped = WireFormatLite::SkipField(&in, tag);
  in.PopLimit(outer);
  extent.unknown += in.CurrentPosition() - begin;
  return skipped || extent.TooLarge();
}

// Walks over the fields of a message of this type without storing them, until it is too large.
// False if the bytes are not such a message.
bool Measure(CodedInputStream& in, const Descriptor& descriptor, Extent& extent) {
  extent.parsed += kMessageBytes;
  ++extent.parts;
  while (!extent.TooLarge()) {
    const int begin = in.CurrentPosition();
    const uint32_t tag = in.ReadTag();
    if (tag == 0) return in.ConsumedEntireMessage();
    const FieldDescriptor* const field =
        descriptor.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
    const bool known = field != nullptr && IsWrittenAs(*field, WireFormatLite::GetTagWireType(tag));
    if (known && field->message_type() != nullptr) {
      int length = 0;
      if (!in.ReadVarintSizeAsInt(&length)) return false;
      const CodedInputStream::Limit outer = in.PushLimit(length);
      if (!Measure(in, *field->message_type(), extent)) return false;
      if (extent.TooLarge()) return true;
      if (in.BytesUntilLimit() != 0) return false;
      in.PopLimit(outer);
      continue;
    }
    if (!known) {
      if (!SkipUnknown(in, tag, begin, extent)) return false;
      continue;
    }
    if (!WireFormatLite::SkipField(&in, tag)) return false;
    const int length = in.CurrentPosition() - begin;
    if (field->type() == FieldDescriptor::TYPE_STRING ||
        field->type() == FieldDescriptor::TYPE_BYTES) {
      extent.parsed += kTextBytes + kBytesPerChar * static_cast<size_t>(length);
      ++extent.parts;
    } else {
      extent.parsed += kNumberBytes * static_cast<size_t>(length);  // packed: at least a byte each
    }
  }
  return true;
}

// The full name of a field with text that is not UTF-8, at which the parser stopped; "" for none.
std::string NotUtf8(const Message& message) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const int count = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      std::string name, scratch;
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        name = NotUtf8(field->is_repeated() ? reflection.GetRepeatedMessage(message, field, i)
                                            : reflection.GetMessage(message, field));
      } else if (field->type() == FieldDescriptor::TYPE_STRING) {
        const std::string& text =
            field->is_repeated()
                ? reflection.GetRepeatedStringReference(message, field, i, &scratch)
                : reflection.GetStringReference(message, field, &scratch);
        const bool valid = google::protobuf::internal::IsStructurallyValidUTF8(
            text.data(), static_cast<int>(text.size()));
        if (!valid) name = field->full_name();
      }
      if (!name.empty()) return name;
    }
  }
  return "";
}

absl::Status NotTheMessage(const Message& message) {
  return absl::InvalidArgumentError(
      absl::StrCat("the bytes are not a ", message.GetDescriptor()->full_name()));
}

absl::StatusOr<Extent> MeasureMessage(grpc::ByteBuffer& bytes, const Message& message) {
  grpc::ProtoBufferReader reader(&bytes);
  if (!reader.status().ok()) return NotTheMessage(message);
  CodedInputStream in(&reader);
  Extent extent;
  if (!Measure(in, *message.GetDescriptor(), extent)) return NotTheMessage(message);
  const std::string& name = message.GetDescriptor()->full_name();
  if (extent.unknown > kMaxUnknownBytes) {
    return engine::BadField(name,
                            absl::StrCat("at most ", kMaxUnknownBytes,
                                         " bytes of fields that this server does not know"),
                            "more");
  }
  if (extent.parts > kMaxParts) {
    return engine::BadField(name, absl::StrCat("at most ", kMaxParts, " messages and texts"),
                            "more");
  }
  return extent;
}

// The serialized google.rpc.Status in which standard clients look for details; "" without facts.
std::string Details(const absl::Status& status) {
  const engine::ErrorFacts facts = engine::GetErrorFacts(status);
  if (facts.empty()) return "";
  v1::ErrorInfo info;
  Fill(facts, info);
  v1::ErrorStatus details;
  details.set_code(status.raw_code());
  details.set_message(std::string(status.message()));
  details.add_details()->PackFrom(info);
  return details.SerializeAsString();
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(status.raw_code()), std::string(status.message()),
          Details(status)};
}

absl::Status ParseMessage(const grpc::ByteBuffer& bytes, Message& message, ByteHold& hold) {
  // Keeps the library from logging parse errors: the client gets them.
  static const auto silenced = google::protobuf::SetLogHandler(nullptr);
  (void)silenced;
  grpc::ByteBuffer copy = bytes;  // shares the data; reading needs a mutable one
  if (!copy.Valid()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const Extent extent, MeasureMessage(copy, message));
  RETURN_IF_ERROR(ReserveBytes(hold, extent.parsed));
  grpc::ProtoBufferReader reader(&copy);
  if (!reader.status().ok() || !message.ParseFromZeroCopyStream(&reader)) {
    const std::string field = NotUtf8(message);
    if (field.empty()) return NotTheMessage(message);
    return engine::WithFacts(
        absl::InvalidArgumentError(absl::StrCat(field, ": expected UTF-8 text")), {.field = field});
  }
  message.DiscardUnknownFields();
  return absl::OkStatus();
}

grpc::ByteBuffer SerializeMessage(const Message& message) {
  grpc::ByteBuffer bytes;
  bool own_buffer = false;
  // Fails only beyond 2 GiB, which the limits on answers exclude; the buffer is then empty.
  (void)grpc::SerializationTraits<Message>::Serialize(message, &bytes, &own_buffer);
  return bytes;
}

}  // namespace ovq::server
