#include "server/http/http_body.h"

#include <google/protobuf/util/json_util.h>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "server/engine/common/error_facts.h"

namespace ovq::server {
namespace {

constexpr int kMaxDepth = 32;
// Bytes of a value with its place in a list or object, in the parsed JSON and in the message.
constexpr size_t kValueBytes = 192;
// A character as JSON, in the message, in the engine's request, and as a token of one byte.
constexpr size_t kBytesPerChar = 4 + sizeof(int32_t);

struct Extent {
  size_t values = 1;
  int depth = 0;
};
Extent MeasureText(std::string_view text) {
  Extent extent;
  int depth = 0;
  bool in_text = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_text) {
      if (c == '\\') ++i;
      in_text = c != '"';
      continue;
    }
    if (c == '"') in_text = true;
    if (c == ',' || c == '[' || c == '{') ++extent.values;
    if (c == '[' || c == '{') extent.depth = std::max(extent.depth, ++depth);
    if (c == ']' || c == '}') --depth;
  }
  return extent;
}

absl::Status Check(HttpCall& call) {
  const std::string& body = call.request().body;
  const std::string type = call.Value("content-type").value_or("");
  const std::string_view media = std::string_view(type).substr(0, type.find(';'));
  if (!absl::EqualsIgnoreCase(absl::StripAsciiWhitespace(AbslView(media)), "application/json")) {
    return engine::BadField("header content-type", "application/json", Quoted(type));
  }
  const std::string coding = call.Value("content-encoding").value_or("identity");
  if (!absl::EqualsIgnoreCase(coding, "identity")) {
    return engine::BadField("header content-encoding", "none, as no coding is served",
                            Quoted(coding));
  }
  if (const std::optional<size_t> at = FirstInvalidUtf8(body)) {
    return engine::BadField("body", "UTF-8 text", absl::StrCat("another byte at offset ", *at));
  }
  const Extent extent = MeasureText(body);
  if (extent.depth > kMaxDepth) {
    return engine::BadField("body", absl::StrCat("JSON nested at most ", kMaxDepth, " levels deep"),
                            extent.depth);
  }
  return ReserveBytes(call.record().memory(),
                      extent.values * kValueBytes + body.size() * kBytesPerChar);
}

absl::Status BadBody(const std::string& message) {
  return engine::WithLogText(absl::InvalidArgumentError(message),
                             "body: not an object as JSON that can be read");
}

}  // namespace

absl::StatusOr<Json> JsonBody(HttpCall& call) {
  if (call.request().body.empty()) return Json::object();
  RETURN_IF_ERROR(Check(call));
  absl::StatusOr<Json> json = ParseOrderedObject(call.request().body, "body");
  if (json.ok()) return json;
  return BadBody(std::string(json.status().message()));
}

absl::Status MessageBody(HttpCall& call, google::protobuf::Message& message) {
  if (call.request().body.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(Check(call));
  const auto parsed = google::protobuf::util::JsonStringToMessage(call.request().body, &message);
  if (parsed.ok()) return absl::OkStatus();
  // Protobuf's text does not say where JSON's syntax is broken.
  const auto json = ParseJsonObject(call.request().body, "body");
  if (!json.ok()) return BadBody(std::string(json.status().message()));
  return BadBody(
      absl::StrCat("body: expected a ", message.GetDescriptor()->full_name(),
                   " as JSON: ", std::string(parsed.message().data(), parsed.message().size())));
}

}  // namespace ovq::server
