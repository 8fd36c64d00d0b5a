#include "server/calls/call_forms.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "model/answers/marker.h"
#include "server/engine/common/error_facts.h"

namespace ovq::server {
namespace {

using answers::CallForm;
using answers::CallSyntax;
using engine::AnswerForm;
using OrderedJson = nlohmann::ordered_json;
using Source = constraint::Source;

// The characters of names in calls that are not JSON, which CallReader reads back.
constexpr const char* kNames = "A-Z a-z 0-9 _ . -";
constexpr const char* kAnyName = "[A-Za-z0-9_.\\-]{1,64}";

bool IsPlainName(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '-';
  });
}

std::string ToText(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

// A call's arguments are an object, whether its schema, or what that refers to, says so or not.
void NameType(OrderedJson& schema) {
  if (!schema.contains("type")) schema["type"] = "object";
}

AnswerForm Optional(AnswerForm part) { return AnswerForm::Repeat(std::move(part), 0, 1); }
AnswerForm AnyNumber(AnswerForm part) {
  return AnswerForm::Repeat(std::move(part), 0, std::nullopt);
}
AnswerForm Pattern(std::string regex) {
  return AnswerForm::Given({.kind = Source::Kind::kRegex, .text = std::move(regex)});
}
AnswerForm AnyObject() { return AnswerForm::Given({.kind = Source::Kind::kJsonObject}); }
AnswerForm AnyJson() {
  return AnswerForm::Given({.kind = Source::Kind::kJsonSchema, .text = "{}"});
}

// A text of the template's. Where it has the id of the call that the template was asked about,
// there stands any id of that length.
AnswerForm Written(std::string_view text) {
  const size_t at = text.find(answers::kProbeCallId);
  if (at == text.npos) return AnswerForm::Literal(std::string(text));
  return AnswerForm::Sequence(
      {AnswerForm::Literal(std::string(text.substr(0, at))),
       Pattern(absl::StrCat("[A-Za-z0-9]{", answers::kProbeCallId.size(), "}")),
       Written(text.substr(at + answers::kProbeCallId.size()))});
}

// The number of objects that the text, a beginning of JSON, leaves open.
size_t OpenObjects(std::string_view json) {
  size_t depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    if (json[i] == '\\' && in_string) {
      ++i;
    } else if (json[i] == '"') {
      in_string = !in_string;
    } else if (!in_string && json[i] == '{') {
      ++depth;
    } else if (!in_string && json[i] == '}' && depth > 0) {
      --depth;
    }
  }
  return depth;
}

// The texts of a call around its name and its arguments.
struct CallTexts {
  std::string before_name = {}, after_name = {}, end = {};
};

CallTexts JsonTexts(const CallSyntax& syntax) {
  CallTexts texts = {.after_name = syntax.opening_after_name};
  if (syntax.opening.starts_with(syntax.begin)) {
    texts.before_name = syntax.opening.substr(syntax.begin.size());
  }
  // A text that begins a call for the model ends with the key, as a token may join what follows.
  if (texts.after_name.ends_with(syntax.arguments_key)) texts.after_name += "\": ";
  const bool shown = texts.before_name.starts_with('{') &&
                     absl::StrContains(texts.after_name, absl::StrCat("\"", syntax.arguments_key));
  if (!shown) {
    texts.before_name = syntax.holder.empty() ? "{" : absl::StrCat("{\"", syntax.holder, "\": {");
    absl::StrAppend(&texts.before_name, "\"", syntax.name_key, "\": \"");
    texts.after_name = absl::StrCat("\", \"", syntax.arguments_key, "\": ");
  }
  texts.end = std::string(OpenObjects(texts.before_name + texts.after_name), '}');
  return texts;
}

CallTexts TextsAround(const CallSyntax& syntax) {
  switch (syntax.form) {
    case CallForm::kJson:
      return JsonTexts(syntax);
    case CallForm::kPython:
      return {.before_name = "", .after_name = "(", .end = ")"};
    case CallForm::kNamedJson:
    case CallForm::kTagged:
    case CallForm::kNone:
      break;
  }
  return {.before_name = "", .after_name = syntax.after_name, .end = ""};
}

// An argument of a call that is written one by one.
struct Argument {
  std::string name;
  bool required = false;
  AnswerForm value;  // with the text that ends it
};

absl::Status NotKept(const std::string& field, std::string_view pointer, std::string_view why) {
  // The pointer has names that the caller chose.
  const std::string message = absl::StrCat(field, ": ", AbslView(pointer), ": ", AbslView(why));
  return engine::WithLogText(
      engine::WithFacts(absl::InvalidArgumentError(message), {.field = field}),
      absl::StrCat(field, ": ", AbslView(why)));
}

// Makes the calls of tools whose arguments are given.
class CallsMaker {
 public:
  CallsMaker(const CallSyntax& syntax, std::vector<PlacedSource>& sources)
      : syntax_(syntax), texts_(TextsAround(syntax)), sources_(sources) {}

  absl::StatusOr<AnswerForm> Call(std::span<const Tool> tools) {
    std::vector<AnswerForm> calls, others;
    for (const Tool& tool : tools) {
      if (syntax_.form != CallForm::kJson && !IsPlainName(tool.name)) {
        return NotKept(tool.field, Quoted(tool.name),
                       absl::StrCat("expected a tool's name of ", kNames,
                                    ", as the model's form of calls has no others"));
      }
      AnswerForm name = AnswerForm::Literal(NameText(tool));
      if (!tool.strict) {
        others.push_back(std::move(name));
        continue;
      }
      ASSIGN_OR_RETURN(AnswerForm arguments, StrictArguments(tool));
      calls.push_back(AnswerForm::Sequence(
          {std::move(name), Written(texts_.after_name), std::move(arguments)}));
    }
    if (!others.empty()) {
      calls.push_back(AnswerForm::Sequence(
          {AnswerForm::Choice(std::move(others)), Written(texts_.after_name), AnyArguments()}));
    }
    std::vector<AnswerForm> parts;
    if (!texts_.before_name.empty()) parts.push_back(Written(texts_.before_name));
    parts.push_back(calls.size() == 1 ? std::move(calls[0]) : AnswerForm::Choice(std::move(calls)));
    if (!texts_.end.empty()) parts.push_back(AnswerForm::Literal(texts_.end));
    return AnswerForm::Sequence(std::move(parts));
  }

 private:
  bool one_by_one() const {
    return syntax_.form == CallForm::kTagged || syntax_.form == CallForm::kPython;
  }

  std::string NameText(const Tool& tool) const {
    if (syntax_.form != CallForm::kJson) return tool.name;
    const std::string quoted = ToText(tool.name);
    return quoted.substr(1, quoted.size() - 2);
  }

  AnswerForm AnyArguments() const {
    if (!one_by_one()) return AnyObject();
    if (syntax_.form == CallForm::kTagged) {
      return AnyNumber(AnswerForm::Sequence(
          {Written(syntax_.before_key), Pattern(kAnyName), Written(syntax_.after_key), AnyText()}));
    }
    const auto argument = [](std::string before) {
      return AnswerForm::Sequence({AnswerForm::Literal(std::move(before)), Pattern(kAnyName),
                                   AnswerForm::Literal("="), AnyJson()});
    };
    AnswerForm first = AnswerForm::Sequence(
        {Pattern(kAnyName), AnswerForm::Literal("="), AnyJson(), AnyNumber(argument(", "))});
    return Optional(std::move(first));
  }

  // Any text up to the marker behind it. The line break that ends the marker before an empty text
  // may begin that behind it, too.
  AnswerForm AnyText() const {
    AnswerForm text = AnswerForm::Through(syntax_.after_value);
    const std::string_view marker = syntax_.after_value;
    const bool shares = syntax_.after_key.ends_with('\n') && marker.starts_with('\n') &&
                        marker.size() > 1 && !answers::IsSpace(marker[1]);
    if (!shares) return text;
    return AnswerForm::Choice(
        {AnswerForm::Literal(std::string(marker.substr(1))), std::move(text)});
  }

  absl::StatusOr<AnswerForm> StrictArguments(const Tool& tool) {
    OrderedJson schema = tool.parameters;
    if (schema.is_null()) {
      schema = {{"type", "object"},
                {"properties", OrderedJson::object()},
                {"additionalProperties", false}};
    }
    if (!schema.is_object()) return NotKept(tool.field, "#", "expected a JSON schema of an object");
    NameType(schema);
    if (schema.contains("type") && schema["type"] != "object") {
      return NotKept(tool.field, "#/type", "expected \"object\", as a call has named arguments");
    }
    if (!one_by_one()) return Schema(schema, tool.field, "#");
    std::vector<Argument> arguments;
    RETURN_IF_ERROR(ReadArguments(tool, schema, arguments));
    return syntax_.form == CallForm::kTagged ? TaggedArguments(std::move(arguments))
                                             : PythonArguments(std::move(arguments));
  }

  AnswerForm Schema(const OrderedJson& schema, const std::string& field, std::string pointer) {
    Source source = {.kind = Source::Kind::kJsonSchema, .text = ToText(schema)};
    sources_.push_back({.source = source, .field = field, .pointer = std::move(pointer)});
    return AnswerForm::Given(std::move(source));
  }

  absl::Status ReadArguments(const Tool& tool, const OrderedJson& schema,
                             std::vector<Argument>& to) {
    for (const auto& [key, value] : schema.items()) {
      constexpr std::array kKnown = {
          "type",    "properties",  "required", "$defs",    "definitions", "title",
          "$schema", "description", "$comment", "examples", "default",     "additionalProperties",
          "strict"};
      if (std::ranges::find(kKnown, key) == kKnown.end()) {
        return NotKept(tool.field, absl::StrCat("#/", PointerToken(key)),
                       "is not kept where the model's form of calls writes arguments one by one");
      }
    }
    const OrderedJson properties = schema.value("properties", OrderedJson::object());
    const OrderedJson required = schema.value("required", OrderedJson::array());
    if (!properties.is_object()) return NotKept(tool.field, "#/properties", "expected an object");
    if (!required.is_array()) return NotKept(tool.field, "#/required", "expected a list of names");
    for (const OrderedJson& name : required) {
      if (!name.is_string() || !properties.contains(name.get<std::string>())) {
        return NotKept(tool.field, "#/required", "expected names of properties");
      }
    }
    for (const auto& [name, property] : properties.items()) {
      const std::string pointer = absl::StrCat("#/properties/", PointerToken(name));
      if (!IsPlainName(name)) {
        return NotKept(tool.field, pointer,
                       absl::StrCat("expected a name of ", kNames,
                                    ", as the model's form of calls has no "
                                    "others"));
      }
      ASSIGN_OR_RETURN(AnswerForm value, Value(tool, schema, property, pointer));
      to.push_back({.name = name,
                    .required = std::ranges::find(required, OrderedJson(name)) != required.end(),
                    .value = std::move(value)});
    }
    return absl::OkStatus();
  }

  // The value of an argument, with the text that ends it.
  absl::StatusOr<AnswerForm> Value(const Tool& tool, const OrderedJson& schema,
                                   const OrderedJson& property, const std::string& pointer) {
    const bool tagged = syntax_.form == CallForm::kTagged;
    if (tagged && property.is_object() && property.value("type", OrderedJson()) == "string") {
      return PlainText(tool, property, pointer);
    }
    OrderedJson whole = property;
    for (const char* definitions : {"$defs", "definitions"}) {
      if (whole.is_object() && schema.contains(definitions)) {
        whole[definitions] = schema[definitions];
      }
    }
    AnswerForm value = Schema(whole, tool.field, pointer);
    if (!tagged) return value;
    return AnswerForm::Sequence({std::move(value), AnswerForm::Literal(syntax_.after_value)});
  }

  // A text that stands in the call as it is, up to the marker behind it.
  absl::StatusOr<AnswerForm> PlainText(const Tool& tool, const OrderedJson& property,
                                       const std::string& pointer) {
    for (const auto& [key, value] : property.items()) {
      constexpr std::array kKnown = {"type",     "enum",    "const",    "title",     "description",
                                     "$comment", "default", "examples", "deprecated"};
      if (std::ranges::find(kKnown, key) != kKnown.end()) continue;
      return NotKept(tool.field, absl::StrCat(pointer, "/", PointerToken(key)),
                     "is not kept where the model's form of calls writes texts as they are");
    }
    OrderedJson values = property.value("enum", OrderedJson());
    if (property.contains("const")) values = OrderedJson::array({property["const"]});
    if (values.is_null()) return AnswerForm::Through(syntax_.after_value);
    std::vector<AnswerForm> texts;
    if (!values.is_array()) return NotKept(tool.field, pointer, "expected a list of texts");
    for (const OrderedJson& value : values) {
      if (!value.is_string()) continue;  // no text equals it
      const std::string text = value.get<std::string>();
      if (absl::StrContains(text, syntax_.after_value) || text.starts_with('\n')) {
        return NotKept(tool.field, pointer,
                       "has a text that the model's form of calls cannot write");
      }
      texts.push_back(AnswerForm::Literal(text));
    }
    if (texts.empty()) return NotKept(tool.field, pointer, "no text has this form");
    return AnswerForm::Sequence(
        {AnswerForm::Choice(std::move(texts)), AnswerForm::Literal(syntax_.after_value)});
  }

  AnswerForm TaggedArguments(std::vector<Argument> arguments) const {
    std::vector<AnswerForm> parts;
    for (Argument& argument : arguments) {
      AnswerForm part = AnswerForm::Sequence(
          {AnswerForm::Literal(absl::StrCat(syntax_.before_key, argument.name, syntax_.after_key)),
           std::move(argument.value)});
      parts.push_back(argument.required ? std::move(part) : Optional(std::move(part)));
    }
    return AnswerForm::Sequence(std::move(parts));
  }

  // Commas stand between the arguments that are there: those before the first required one have
  // them behind, those after it before.
  static AnswerForm PythonArguments(std::vector<Argument> arguments) {
    const auto assign = [](const std::string& before, const Argument& argument,
                           const std::string& after) {
      return AnswerForm::Sequence({AnswerForm::Literal(absl::StrCat(before, argument.name, "=")),
                                   argument.value, AnswerForm::Literal(after)});
    };
    // The arguments from this one on, which is there.
    const auto from = [&](size_t first) {
      std::vector<AnswerForm> parts = {assign("", arguments[first], "")};
      for (size_t i = first + 1; i < arguments.size(); ++i) {
        AnswerForm part = assign(", ", arguments[i], "");
        parts.push_back(arguments[i].required ? std::move(part) : Optional(std::move(part)));
      }
      return AnswerForm::Sequence(std::move(parts));
    };
    const auto required = std::ranges::find(arguments, true, &Argument::required);
    if (required != arguments.end()) {
      std::vector<AnswerForm> parts;
      for (auto it = arguments.begin(); it != required; ++it) {
        parts.push_back(Optional(assign("", *it, ", ")));
      }
      parts.push_back(from(static_cast<size_t>(required - arguments.begin())));
      return AnswerForm::Sequence(std::move(parts));
    }
    std::vector<AnswerForm> choices;
    for (size_t i = 0; i < arguments.size(); ++i) choices.push_back(from(i));
    if (choices.empty()) return AnswerForm::Literal("");
    return Optional(AnswerForm::Choice(std::move(choices)));
  }

  const CallSyntax& syntax_;
  const CallTexts texts_;
  std::vector<PlacedSource>& sources_;
};

}  // namespace

AnswerForm SpaceForm() {
  constexpr int64_t kMostSpace = 4;
  return AnswerForm::Repeat(
      AnswerForm::Choice({AnswerForm::Literal(" "), AnswerForm::Literal("\n")}), 0, kMostSpace);
}

bool CanFollowSchema(const CallSyntax& syntax, const Tool& tool) {
  const bool is_json = syntax.form == CallForm::kJson || syntax.form == CallForm::kNamedJson;
  if (!is_json || !tool.parameters.is_object() || tool.parameters.empty()) return false;
  OrderedJson schema = tool.parameters;
  NameType(schema);
  if (schema.contains("type") && schema["type"] != "object") return false;
  constraint::Grammar grammar;
  return constraint::AddJsonSchema(ToText(schema), grammar, {}).ok();
}

absl::StatusOr<AnswerForm> MakeCallsForm(const CallSyntax& syntax, std::span<const Tool> tools,
                                         bool one_call, bool marked,
                                         std::vector<PlacedSource>& sources) {
  CallsMaker maker(syntax, sources);
  ASSIGN_OR_RETURN(const AnswerForm call, maker.Call(tools));
  std::vector<AnswerForm> parts;
  std::string begin = syntax.begin;
  if (marked) {
    begin = begin.substr(begin.find(syntax.marker) + syntax.marker.size());
  } else {
    begin = std::string(absl::StripLeadingAsciiWhitespace(begin));
    parts.push_back(SpaceForm());
  }
  if (!begin.empty()) parts.push_back(Written(begin));
  parts.push_back(call);
  if (!one_call && !syntax.between.empty()) {
    parts.push_back(AnyNumber(AnswerForm::Sequence({Written(syntax.between), call})));
  }
  if (!syntax.end.empty()) parts.push_back(Written(syntax.end));
  return AnswerForm::Sequence(std::move(parts));
}

}  // namespace ovq::server
