#include "model/chat_template/chat_template.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "model/chat_template/program.h"
#include "model/chat_template/value.h"

namespace ovq::jinja {
namespace {

using OrderedJson = nlohmann::ordered_json;

absl::Status ToStatus(const std::string& what, const Error& error) {
  const auto status = [&](absl::StatusCode code, const char* kind) {
    return absl::Status(code, absl::StrCat(what, ", line ", error.line, ": ", kind, error.message));
  };
  switch (error.kind) {
    case ErrorKind::kRaised:
      return status(absl::StatusCode::kInvalidArgument, "the template refuses: ");
    case ErrorKind::kUndefined:
      return status(absl::StatusCode::kInvalidArgument, "not there: ");
    case ErrorKind::kType:
      return status(absl::StatusCode::kInvalidArgument, "");
    case ErrorKind::kSyntax:
      return status(absl::StatusCode::kDataLoss, "syntax: ");
    case ErrorKind::kSecurity:
      return status(absl::StatusCode::kInvalidArgument, "forbidden: ");
    case ErrorKind::kLimit:
      return status(absl::StatusCode::kResourceExhausted, "limit: ");
  }
  return absl::InternalError(error.message);
}

Value FromText(Heap& heap, const std::string& text) {
  if (FirstInvalidUtf8(text).has_value()) {
    heap.Fail(ErrorKind::kType, "a variable is not valid UTF-8");
  }
  return heap.Text(text);
}

Value FromJson(Heap& heap, const OrderedJson& json) {
  const Level level(heap);
  switch (json.type()) {
    case OrderedJson::value_t::boolean:
      return Value::Bool(json.get<bool>());
    case OrderedJson::value_t::number_unsigned:
      if (json.get<uint64_t>() > INT64_MAX) {
        heap.Fail(ErrorKind::kLimit, "an integer of more than 64 bits");
      }
      [[fallthrough]];
    case OrderedJson::value_t::number_integer:
      return Value::Int(json.get<int64_t>());
    case OrderedJson::value_t::number_float:
      return Value::Float(json.get<double>());
    case OrderedJson::value_t::string:
      return FromText(heap, json.get_ref<const std::string&>());
    case OrderedJson::value_t::array: {
      std::vector<Value> items;
      for (const OrderedJson& item : json) items.push_back(FromJson(heap, item));
      return heap.Make(Kind::kList, std::move(items));
    }
    case OrderedJson::value_t::object: {
      const Value dict = heap.MakeDict();
      for (const auto& [key, value] : json.items()) {
        heap.Set(dict, FromText(heap, key), FromJson(heap, value));
      }
      return dict;
    }
    default:
      return Value::None();
  }
}

}  // namespace

ChatTemplate::ChatTemplate(std::shared_ptr<const Template> parsed, std::string what)
    : parsed_(std::move(parsed)), what_(std::move(what)) {}

absl::StatusOr<ChatTemplate> ChatTemplate::Parse(std::string_view text, std::string what) {
  if (text.size() > kMaxTemplateBytes) {
    return absl::DataLossError(absl::StrCat(what, ": more than ", kMaxTemplateBytes, " bytes"));
  }
  if (const std::optional<size_t> at = FirstInvalidUtf8(text); at.has_value()) {
    return absl::DataLossError(absl::StrCat(what, ": byte ", *at, " is not valid UTF-8"));
  }
  try {
    std::shared_ptr<const Template> parsed = jinja::Parse(text);
    return ChatTemplate(std::move(parsed), std::move(what));
  } catch (const Error& error) {
    const absl::Status status = ToStatus(what, error);
    return absl::DataLossError(status.message());
  }
}

absl::StatusOr<std::string> ChatTemplate::Render(const OrderedJson& variables, const std::tm& now,
                                                 const RenderLimits& limits) const {
  Heap heap(limits, now);
  try {
    Rendering rendering(heap, variables.is_object() ? FromJson(heap, variables) : heap.MakeDict());
    rendering.Run(parsed_->body);
    return std::move(rendering.output);
  } catch (const Error& error) {
    return ToStatus(what_, error);
  }
}

}  // namespace ovq::jinja
