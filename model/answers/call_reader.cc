#include "model/answers/call_reader.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "base/json.h"
#include "base/text.h"
#include "model/answers/python_value.h"
#include "model/answers/value_end.h"

namespace ovq::answers {
namespace {

using Json = nlohmann::json;
using Result = CallReader::Result;

// Whether the names of tools and arguments have this character.
bool InName(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '-';
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// The first character of the marker behind calls, if JSON has it nowhere but in texts: a value that
// lacks brackets breaks off before it.
std::optional<char> BreakingCharacter(const CallSyntax& syntax) {
  const size_t at = syntax.end.find_first_not_of(" \t\r\n");
  if (at == std::string::npos || (syntax.end[at] != '<' && syntax.end[at] != '`')) {
    return std::nullopt;
  }
  return syntax.end[at];
}

// {"name": NAME, "arguments": {...}}, keys in any order, other keys ignored.
class JsonCall final : public CallReader {
 public:
  explicit JsonCall(const CallSyntax& syntax)
      : syntax_(syntax), break_(BreakingCharacter(syntax)) {}

  Result Read(char c) override {
    switch (place_) {
      case Place::kObject:
        if (c == '{') return To(Place::kKey);
        return Skip(c);
      case Place::kKey:
        if (c == '"') {
          text_ = c;
          value_ = ValueEnd();
          value_.Add(c);
          return To(Place::kKeyText);
        }
        if (c == '}') return Close();
        return c == ',' ? Result::kMore : Skip(c);
      case Place::kKeyText:
        text_ += c;
        value_.Add(c);
        return value_.closed() ? EndKey() : Result::kMore;
      case Place::kColon:
        return c == ':' ? To(Place::kValue) : Skip(c);
      case Place::kValue:
        return ReadValue(c);
    }
    return Result::kWrong;
  }

 private:
  enum class Place : uint8_t { kObject, kKey, kKeyText, kColon, kValue };

  Result To(Place place) {
    place_ = place;
    return Result::kMore;
  }
  Result Skip(char c) const { return IsSpace(c) ? Result::kMore : Result::kWrong; }

  Result EndKey() {
    const Json key = Json::parse(text_, nullptr, false);
    if (!key.is_string()) return Result::kWrong;
    key_ = key.get<std::string>();
    text_.clear();
    // Without a marker, an object is a call only if it begins like one.
    const bool known = key_ == syntax_.name_key || key_ == syntax_.holder || key_ == "type" ||
                       key_ == "id" || key_ == syntax_.arguments_key;
    if (syntax_.marker.empty() && !known && !has_name) return Result::kWrong;
    value_ = ValueEnd();
    return To(Place::kColon);
  }

  Result ReadValue(char c) {
    if (!value_.begun()) {
      if (IsSpace(c)) return Result::kMore;
      if (c == ',' || c == '}' || c == ']' || c == ')') return Result::kWrong;
      if (c == '{' && key_ == syntax_.holder && !syntax_.holder.empty() && !in_holder_) {
        in_holder_ = true;
        return To(Place::kKey);
      }
      streams_ = key_ == syntax_.arguments_key && c != '"' && c != 'n';
    }
    if (value_.EndsBefore(c)) {
      const Result result = EndValue();
      return result == Result::kMore ? Read(c) : result;
    }
    if (c == break_ && !value_.in_string()) return Result::kWrong;
    value_.Add(c);
    (streams_ && has_name ? arguments : text_) += c;
    if (value_.closed()) return EndValue();
    return Result::kMore;
  }

  Result EndValue() {
    place_ = Place::kKey;
    if (key_ == syntax_.name_key) {
      const Json value = Json::parse(text_, nullptr, false);
      if (!value.is_string()) return Result::kWrong;
      name = value.get<std::string>();
      has_name = true;
      arguments = std::exchange(early_, "");
    } else if (key_ == syntax_.arguments_key) {
      has_arguments_ = true;
      if (!streams_) {  // a text that holds the JSON, or null
        const Json value = Json::parse(text_, nullptr, false);
        if (!value.is_string() && text_.starts_with('"')) return Result::kWrong;
        if (value.is_string()) text_ = value.get<std::string>();
        if (value.is_null() || std::ranges::all_of(text_, IsSpace)) text_ = "{}";
      }
      (has_name ? arguments : early_) += std::exchange(text_, "");
    }
    text_.clear();
    return Result::kMore;
  }

  Result Close() {
    if (in_holder_) {
      in_holder_ = false;
      return To(Place::kKey);
    }
    if (!has_name) return Result::kWrong;
    if (!has_arguments_) arguments += "{}";
    return Result::kDone;
  }

  const CallSyntax& syntax_;
  const std::optional<char> break_;
  Place place_ = Place::kObject;
  bool in_holder_ = false, has_arguments_ = false, streams_ = false;
  std::string key_, text_;
  std::string early_;  // arguments that came before the name
  ValueEnd value_;
};

// NAME after_name {...}
class NamedJsonCall final : public CallReader {
 public:
  explicit NamedJsonCall(const CallSyntax& syntax)
      : after_name_(syntax.after_name), break_(BreakingCharacter(syntax)) {}

  Result Read(char c) override {
    if (!has_name) {
      if (!name.empty() && after_name_.done() && c == '{') {
        has_name = true;
      } else if (InName(c) && !after_name_.begun() && !spaced_) {
        name += c;
        return Result::kMore;
      } else {
        spaced_ = spaced_ || (IsSpace(c) && !name.empty());
        const bool follows = IsSpace(c) || (!name.empty() && after_name_.Follow(c));
        return follows ? Result::kMore : Result::kWrong;
      }
    }
    if (c == break_ && !value_.in_string()) return Result::kWrong;
    value_.Add(c);
    arguments += c;
    return value_.closed() ? Result::kDone : Result::kMore;
  }

 private:
  Marker after_name_;
  const std::optional<char> break_;
  bool spaced_ = false;  // white space ended the name
  ValueEnd value_;
};

// Adds one member to the JSON object of arguments that grows in `to`.
void AddKey(const std::string& key, bool first, std::string& to) {
  to += first ? "{" : ", ";
  to += Dump(key) + ": ";
}

std::string_view WithoutFirstSpace(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
}

std::string TypeName(const Json& value) { return value.is_number() ? "number" : value.type_name(); }

const Json& FindField(const Json& object, std::string_view name) {
  static const Json kNone;
  if (!object.is_object()) return kNone;
  const auto found = object.find(name);
  return found == object.end() ? kNone : *found;
}

// The schema at a place such as "#/$defs/Size" of the document; null if there is none.
const Json& FindReferenced(const Json& document, const Json& reference) {
  static const Json kNone;
  if (!reference.is_string()) return kNone;
  std::string_view place = reference.get_ref<const std::string&>();
  if (const Json& id = FindField(document, "$id"); id.is_string()) {
    std::string_view base = id.get_ref<const std::string&>();
    base = base.substr(0, base.find('#'));
    if (place.starts_with(base)) place.remove_prefix(base.size());
  }
  if (place == "#") return document;
  const std::optional<std::string> decoded = PercentDecoded(place);
  if (!decoded || !decoded->starts_with("#/")) return kNone;
  const Json* const found = FindAt(document, std::string_view(*decoded).substr(1));
  return found == nullptr ? kNone : *found;
}

// The names of types that a schema of the document allows; empty: it does not say. left: the most
// schemas that are looked at, as references may lead to where they stand.
std::set<std::string> AllowedTypes(const Json& schema, const Json& document, int& left) {
  std::set<std::string> types;
  if (!schema.is_object() || left == 0) return types;
  --left;
  if (const Json& type = FindField(schema, "type"); type.is_string()) {
    types.insert(type.get<std::string>());
  } else if (type.is_array()) {
    for (const Json& each : type) {
      if (each.is_string()) types.insert(each.get<std::string>());
    }
  } else if (const Json& values = FindField(schema, "enum"); values.is_array()) {
    for (const Json& value : values) types.insert(TypeName(value));
  } else if (schema.contains("const")) {
    types.insert(TypeName(schema["const"]));
  } else if (schema.contains("$ref")) {
    return AllowedTypes(FindReferenced(document, schema["$ref"]), document, left);
  } else if (const Json& all = FindField(schema, "allOf"); all.is_array()) {
    for (size_t i = 0; i < all.size() && types.empty(); ++i) {
      types = AllowedTypes(all[i], document, left);
    }
  } else {
    for (const Json& option : FindField(schema, schema.contains("anyOf") ? "anyOf" : "oneOf")) {
      const std::set<std::string> more = AllowedTypes(option, document, left);
      if (more.empty()) return {};
      types.insert(more.begin(), more.end());
    }
  }
  return types;
}

// The schema of an argument by that of its tool, which may refer to the one that has the
// properties. left: the most references that are followed.
const Json& ArgumentSchema(const Json& document, const std::string& key, int left) {
  const Json* tool = &document;
  while (!tool->contains("properties") && tool->contains("$ref") && left-- > 0) {
    tool = &FindReferenced(document, (*tool)["$ref"]);
  }
  return FindField(FindField(*tool, "properties"), key);
}

// NAME after_name (before_key KEY after_key VALUE after_value)*, until something else follows.
class TaggedCall final : public CallReader {
 public:
  TaggedCall(const CallSyntax& syntax, const Json& schemas, const std::set<std::string>& strict)
      : syntax_(syntax),
        schemas_(schemas),
        strict_(strict),
        after_name_(syntax.after_name),
        before_key_(syntax.before_key),
        after_key_(syntax.after_key),
        bare_end_(WithoutFirstSpace(syntax.after_value)) {}

  Result Read(char c) override {
    switch (place_) {
      case Place::kName:
        return ReadName(c);
      case Place::kBetween:
        return ReadBetween(c);
      case Place::kKey:
        return ReadWord(c, after_key_, key_);
      case Place::kValue:
        return ReadValue(c);
    }
    return Result::kWrong;
  }

 private:
  enum class Place : uint8_t { kName, kBetween, kKey, kValue };

  Result ReadName(char c) {
    // Without a marker behind it the name ends at white space or at the next tag.
    if (after_name_.empty() && !name.empty() && (IsSpace(c) || c == '<')) {
      place_ = Place::kBetween;
      return ReadBetween(c);
    }
    const Result result = ReadWord(c, after_name_, name);
    if (result == Result::kMore && !after_name_.empty() && after_name_.done()) {
      has_name = true;
      place_ = Place::kBetween;
    }
    return result;
  }

  // Reads a word up to the marker behind it.
  Result ReadWord(char c, Marker& marker, std::string& word) {
    if (!marker.empty() && !IsSpace(c) && marker.Follow(c)) {
      if (marker.done() && place_ == Place::kKey) BeginValue();
      return Result::kMore;
    }
    if (IsSpace(c) && (word.empty() || marker.begun())) return Result::kMore;
    if (!InName(c) || marker.begun() || word.size() > kMostWord) return Result::kWrong;
    word += c;
    return Result::kMore;
  }

  // Before a key, or the end of the call.
  Result ReadBetween(char c) {
    unread += c;
    if (!before_key_.Follow(c)) {
      if (!has_name && !before_key_.begun() && c != '<') return Result::kWrong;
      return Finish();
    }
    if (!before_key_.done()) return Result::kMore;
    has_name = true;
    before_key_.Reset();
    unread.clear();
    key_.clear();
    place_ = Place::kKey;
    return Result::kMore;
  }

  Result Finish() {
    has_name = true;
    arguments += first_ ? "{}" : "}";
    return Result::kDone;
  }

  void BeginValue() {
    place_ = Place::kValue;
    after_key_.Reset();
    value_.clear();
    const Json& document = FindField(schemas_, name);
    const Json& schema = ArgumentSchema(document, key_, kMostSchemas);
    int left = kMostSchemas;
    types_ = AllowedTypes(schema, document, left);
    is_text_ = FindField(schema, "type") == "string";
    is_json_ = !is_text_ && strict_.contains(name);
    json_ = ValueEnd();
    AddKey(key_, first_, arguments);
    first_ = false;
    if (is_text_) arguments += '"';
    given_ = 0;
  }

  Result ReadValue(char c) {
    value_ += c;
    if (is_json_) {
      json_.Add(c);
      if (json_.in_string()) return Result::kMore;
    }
    const size_t begin = ValueBegin(), end = EndLength(begin);
    if (end > 0) {
      value_.resize(value_.size() - end);
      EndValue(begin);
      place_ = Place::kBetween;
    } else if (is_text_) {
      // All but what may begin the marker behind the value.
      size_t held = std::min(syntax_.after_value.size(), value_.size() - begin);
      const auto may_end = [&](std::string_view text) {
        return syntax_.after_value.starts_with(text) || bare_end_.starts_with(text);
      };
      while (!may_end(std::string_view(value_).substr(value_.size() - held))) --held;
      GiveText(begin, value_.size() - held);
    }
    return Result::kMore;
  }

  // The line break that the template writes after the marker is no part of the value.
  bool leads() const { return syntax_.after_key.ends_with('\n'); }
  size_t ValueBegin() const { return leads() && value_.starts_with('\n') ? 1 : 0; }

  // The length of the marker that ends the value; 0 if there is none.
  size_t EndLength(size_t begin) const {
    const std::string& marker = syntax_.after_value;
    if (value_.size() >= begin + marker.size() && value_.ends_with(marker)) return marker.size();
    // A model that writes no line break behind the key may write none before the marker, and one
    // may stand for both around an empty value. A form that is kept has both.
    const bool is_empty = value_.size() == begin + bare_end_.size() && !strict_.contains(name);
    const bool may_be_bare = leads() && !bare_end_.empty() && (begin == 0 || is_empty);
    return may_be_bare && value_.ends_with(bare_end_) ? bare_end_.size() : 0;
  }

  void GiveText(size_t begin, size_t end) {
    begin = std::max(begin, given_);
    if (begin >= end) return;
    // A character of several bytes goes out whole.
    while (end > begin && end < value_.size() && (value_[end] & 0xC0) == 0x80) --end;
    size_t last = end;
    while (last > begin && (value_[last - 1] & 0xC0) == 0x80) --last;
    if (last > begin && (value_[last - 1] & 0x80) != 0) {
      const auto lead = static_cast<unsigned char>(value_[last - 1]);
      const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
      if (last - 1 + length > end) end = last - 1;
    }
    if (begin >= end) return;
    const std::string quoted = Dump(value_.substr(begin, end - begin));
    arguments.append(quoted, 1, quoted.size() - 2);
    given_ = end;
  }

  void EndValue(size_t begin) {
    if (is_text_) {
      GiveText(begin, value_.size());
      arguments += '"';
      return;
    }
    const std::string text = value_.substr(std::min(begin, value_.size()));
    constexpr std::pair<std::string_view, std::string_view> kWords[] = {
        {"True", "true"}, {"False", "false"}, {"None", "null"}};
    const auto* word =
        std::ranges::find(kWords, text, &std::pair<std::string_view, std::string_view>::first);
    const std::string json(word == std::end(kWords) ? text : word->second);
    const Json value = Json::parse(json, nullptr, false);
    arguments += value.is_discarded() || IsText(value) ? Dump(text) : json;
  }

  // Whether the schema allows a text here, and not this value.
  bool IsText(const Json& value) const {
    if (!types_.contains("string")) return false;
    const bool is_whole = value.is_number() && value == std::floor(value.get<double>());
    return !types_.contains(TypeName(value)) && !(is_whole && types_.contains("integer"));
  }

  static constexpr size_t kMostWord = 256;  // bytes of a name
  static constexpr int kMostSchemas = 256;  // that may say of which types an argument is

  const CallSyntax& syntax_;
  const Json& schemas_;
  const std::set<std::string>& strict_;
  Place place_ = Place::kName;
  Marker after_name_, before_key_, after_key_;
  const std::string bare_end_;  // the marker behind a value without the white space before it
  std::string key_, value_;
  std::set<std::string> types_;  // of the value
  ValueEnd json_;                // of a value that is surely JSON
  bool is_text_ = false, is_json_ = false, first_ = true;
  size_t given_ = 0;  // bytes of value_ that are in the arguments already
};

// NAME(KEY=VALUE, ...)
class PythonCall final : public CallReader {
 public:
  Result Read(char c) override {
    if (!has_name) return ReadName(c);
    if (!in_value_) return ReadKey(c);
    if (text_.empty() && IsSpace(c)) return Result::kMore;
    if (!value_.EndsBefore(c)) {
      value_.Add(c);
      text_ += c;
      return Result::kMore;
    }
    if (text_.empty()) return Result::kWrong;
    while (IsSpace(text_.back())) text_.pop_back();
    AddKey(key_, first_, arguments);
    first_ = in_value_ = false;
    key_.clear();
    arguments += FromPython(std::exchange(text_, ""));
    return c == ')' ? Finish() : Result::kMore;
  }

 private:
  Result ReadName(char c) {
    if (c == '(' && !name.empty()) {
      has_name = true;
      return Result::kMore;
    }
    const bool is_name =
        absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '-';
    if (is_name) name += c;
    return is_name || (IsSpace(c) && name.empty()) ? Result::kMore : Result::kWrong;
  }
  // Before a key and in it, up to the = behind it; or the end of the call.
  Result ReadKey(char c) {
    if (c == ')' && key_.empty()) return Finish();
    if (c == '=' && !key_.empty()) {
      in_value_ = true;
      spaced_ = false;
      value_ = PythonValueEnd();
      return Result::kMore;
    }
    if (IsSpace(c)) {
      spaced_ = !key_.empty();
      return Result::kMore;
    }
    if (!InName(c) || spaced_) return c == ',' && key_.empty() ? Result::kMore : Result::kWrong;
    key_ += c;
    return Result::kMore;
  }
  Result Finish() {
    arguments += first_ ? "{}" : "}";
    return Result::kDone;
  }

  std::string key_, text_;
  bool in_value_ = false, first_ = true;
  bool spaced_ = false;  // white space ended the key
  PythonValueEnd value_;
};

}  // namespace

std::unique_ptr<CallReader> MakeCallReader(const CallSyntax& syntax, const Json& schemas,
                                           const std::set<std::string>& strict) {
  switch (syntax.form) {
    case CallForm::kJson:
      return std::make_unique<JsonCall>(syntax);
    case CallForm::kNamedJson:
      return std::make_unique<NamedJsonCall>(syntax);
    case CallForm::kTagged:
      return std::make_unique<TaggedCall>(syntax, schemas, strict);
    case CallForm::kPython:
      return std::make_unique<PythonCall>();
    case CallForm::kNone:
      break;
  }
  return nullptr;
}

}  // namespace ovq::answers
