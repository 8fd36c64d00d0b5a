// JSON Schema as a grammar of JSON texts; docs/constraints.md says what is kept.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "model/constraint/constraint.h"
#include "model/constraint/json_logic.h"
#include "model/constraint/json_shape_reader.h"
#include "model/constraint/regex.h"

namespace ovq::constraint {
namespace {

using Node = Grammar::Node;

constexpr int kMostNested = 300;         // schemas between the root and one that it leads to
constexpr size_t kMostNamePatterns = 4;  // of patternProperties that apply to one object

// White space: nothing, a space, or a line's end and up to 32 spaces.
constexpr char kSpace[] = "( |\\n {0,32})?";
// A character of a string, in any way that JSON may write it; surrogates in pairs.
constexpr char kCharacter[] =
    "([^\"\\\\\\x00-\\x1f]|\\\\([\"\\\\/"
    "bfnrt]|u([0-9a-cefA-CEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}"
    "|[dD][89abAB][0-9a-fA-F]{2}\\\\u[dD][c-fC-F][0-9a-fA-F]{2})))";

// A listed value as an answer writes it. An integer has neither point nor exponent, however the
// schema writes it.
std::string ListedText(const Json& value, const NumberBounds& number) {
  if (!number.is_integer || !value.is_number_float()) return value.dump();
  const auto integer = value.get<double>();
  return integer == 0 ? "0" : absl::StrFormat("%.0f", integer);
}

class SchemaCompiler {
 public:
  SchemaCompiler(ShapeReader& reader, Grammar& grammar, const Limits& limits)
      : reader_(reader),
        logic_([&reader](const SchemaSet& set) { return reader.Read(set); }, reader.languages(),
               reader.budget()),
        grammar_(grammar),
        limits_(limits) {}

  // Before all others: makes the terminals that are everywhere.
  absl::Status Prepare();
  // A value for which all schemas hold.
  absl::StatusOr<Node> Value(const SchemaSet& set);
  absl::StatusOr<Node> Object(const Shape& shape);

 private:
  struct Rule {
    std::optional<Node> node = {};       // nothing: being made
    std::optional<Node> recursive = {};  // declared when the value refers to itself
    absl::Status status = {};
  };
  // A member of an object: its key, and its value.
  struct Member {
    Node node;
    bool is_required;
  };

  absl::StatusOr<Node> MakeValue(const SchemaSet& set);
  absl::StatusOr<Node> ShapeNode(const Shape& shape);
  absl::StatusOr<Node> TypeNode(const Shape& shape, Types type);
  absl::StatusOr<Node> Listed(const Shape& shape);
  Node Composite(const Json& value);
  absl::StatusOr<Node> String(const Shape& shape);
  absl::StatusOr<Node> Number(const Shape& shape);
  absl::StatusOr<Node> Array(const Shape& shape);
  absl::StatusOr<std::vector<Member>> Members(const Shape& shape, std::vector<std::string>& names);
  absl::StatusOr<std::optional<Node>> OtherMembers(const Shape& shape,
                                                   const std::vector<std::string>& names);
  absl::StatusOr<Language> Names(const Shape& shape);
  std::optional<Node> Close(const Shape& shape, const std::optional<Node>& others, int64_t n);
  // The fixed terminal of a regular expression, made once.
  absl::StatusOr<Node> Fixed(const std::string& regex);
  absl::StatusOr<Node> Text(const Language& language);
  absl::Status CheckSize() const;
  SchemaDocument& document() { return reader_.document(); }

  ShapeReader& reader_;
  SchemaLogic logic_;
  Grammar& grammar_;
  const Limits& limits_;
  std::map<SchemaSet, Rule> rules_;
  std::map<std::string, Node> fixed_;
  std::map<StringBounds, Node> strings_;
  int depth_ = 0;
};

absl::Status SchemaCompiler::CheckSize() const {
  if (static_cast<int64_t>(grammar_.expressions().size()) <= limits_.nodes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("#: needs a grammar of more than ", limits_.nodes, " parts"));
}

absl::StatusOr<Node> SchemaCompiler::Fixed(const std::string& regex) {
  if (const auto found = fixed_.find(regex); found != fixed_.end()) return found->second;
  Budget& budget = reader_.budget();
  ASSIGN_OR_RETURN(const Language language,
                   RegexLanguage(regex, Match::kWhole, /*depth=*/16, budget));
  ASSIGN_OR_RETURN(Dfa dfa, Encode(language, Encoding::kUtf8, budget));
  return fixed_[regex] = grammar_.Terminal(std::move(dfa));
}

absl::Status SchemaCompiler::Prepare() {
  for (const char* before : {"", ","}) {
    RETURN_IF_ERROR(Fixed(absl::StrCat(before, kSpace)).status());
  }
  return absl::OkStatus();
}

absl::StatusOr<Node> SchemaCompiler::Text(const Language& language) {
  ASSIGN_OR_RETURN(Dfa dfa, Encode(language, Encoding::kJsonString, reader_.budget()));
  return grammar_.Terminal(std::move(dfa));
}

absl::StatusOr<Node> SchemaCompiler::Value(const SchemaSet& given) {
  SchemaSet set;
  for (const SchemaId id : given) {
    ASSIGN_OR_RETURN(const SchemaId target, document().Resolve(id));
    if (document().json(target) != true) set.push_back(target);
  }
  std::sort(set.begin(), set.end());
  set.erase(std::unique(set.begin(), set.end()), set.end());
  const auto [at, is_new] = rules_.try_emplace(set);
  Rule& rule = at->second;
  const std::string path = set.empty() ? "any value" : document().path(set[0]);
  if (!is_new) {
    if (!rule.status.ok()) return rule.status;
    if (rule.node) return *rule.node;
    if (!rule.recursive) rule.recursive = grammar_.Rule(path);
    return *rule.recursive;
  }
  if (depth_ >= kMostNested) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": more than ", kMostNested, " schemas lead to each other"));
  }
  ++depth_;
  const absl::StatusOr<Node> made = MakeValue(set);
  --depth_;
  if (!made.ok()) {
    rule.status = made.status();
    // A limit is named where it is met, by code that knows no paths.
    if (absl::IsResourceExhausted(made.status()) && made.status().message()[0] != '#') {
      rule.status = absl::ResourceExhaustedError(absl::StrCat(path, ": ", made.status().message()));
    }
    if (rule.recursive && IsUnsatisfiable(made.status())) {
      rule.status = absl::InvalidArgumentError(made.status().message());
    }
    return rule.status;
  }
  RETURN_IF_ERROR(CheckSize());
  Node node = *made;
  const Grammar::Kind kind = grammar_.expressions()[node].kind;
  const bool is_small = kind == Grammar::Kind::kTerminal || kind == Grammar::Kind::kRule;
  if (rule.recursive || !is_small) {
    const Node name = rule.recursive ? *rule.recursive : grammar_.Rule(path);
    grammar_.Define(name, node);
    node = name;
  }
  rule.node = node;
  return node;
}

absl::StatusOr<Node> SchemaCompiler::MakeValue(const SchemaSet& set) {
  ASSIGN_OR_RETURN(const auto shapes, reader_.Read(set));
  std::vector<Node> options;
  absl::Status reason;
  for (const Shape& shape : *shapes) {
    const absl::StatusOr<Node> option = ShapeNode(shape);
    if (option.ok()) {
      options.push_back(*option);
    } else if (IsUnsatisfiable(option.status())) {
      reason.Update(option.status());
    } else {
      return option.status();
    }
  }
  if (options.empty()) return reason;
  return options.size() == 1 ? options[0] : grammar_.Choice(std::move(options));
}

absl::StatusOr<Node> SchemaCompiler::ShapeNode(const Shape& shape) {
  if (shape.values) return Listed(shape);
  std::vector<Node> options;
  absl::Status reason = UnsatisfiableError(shape.path, "no value is allowed here");
  bool has_reason = false;
  std::vector<std::string> words;
  if ((shape.types & kNull) != 0) words.push_back("null");
  if ((shape.types & kBoolean) != 0) words.insert(words.end(), {"true", "false"});
  if (!words.empty()) {
    ASSIGN_OR_RETURN(Dfa dfa, ListedBytes(std::move(words), reader_.budget()));
    options.push_back(grammar_.Terminal(std::move(dfa)));
  }
  for (const Types type : {kNumber, kString, kArray, kObject}) {
    if ((shape.types & type) == 0) continue;
    const absl::StatusOr<Node> option = TypeNode(shape, type);
    if (option.ok()) {
      options.push_back(*option);
    } else if (!IsUnsatisfiable(option.status())) {
      return option.status();
    } else if (!std::exchange(has_reason, true)) {
      reason = option.status();
    }
  }
  if (options.empty()) return reason;
  return options.size() == 1 ? options[0] : grammar_.Choice(std::move(options));
}

absl::StatusOr<Node> SchemaCompiler::TypeNode(const Shape& shape, Types type) {
  switch (type) {
    case kNumber:
      return Number(shape);
    case kString:
      return String(shape);
    case kArray:
      return Array(shape);
    default:
      return Object(shape);
  }
}

absl::StatusOr<Node> SchemaCompiler::Listed(const Shape& shape) {
  Shape others = shape;
  others.values = nullptr;
  std::vector<std::string> scalars;
  std::vector<Node> options;
  for (const Json* value : shape.values->list) {
    ASSIGN_OR_RETURN(const bool allows, logic_.Allows(others, *value));
    if (!allows) continue;
    if (value->is_structured()) {
      options.push_back(Composite(*value));
      RETURN_IF_ERROR(CheckSize());
    } else {
      scalars.push_back(ListedText(*value, shape.number));
    }
  }
  if (!scalars.empty()) {
    ASSIGN_OR_RETURN(Dfa dfa, ListedBytes(std::move(scalars), reader_.budget()));
    options.push_back(grammar_.Terminal(std::move(dfa)));
  }
  if (options.empty()) {
    return UnsatisfiableError(shape.path, "none of the listed values is allowed");
  }
  return options.size() == 1 ? options[0] : grammar_.Choice(std::move(options));
}

// A given value, with white space where it may be.
Node SchemaCompiler::Composite(const Json& value) {
  if (!value.is_structured()) return grammar_.Literal(value.dump());
  const Node space = fixed_.at(kSpace);
  std::vector<Node> parts = {grammar_.Literal(value.is_object() ? "{" : "[")};
  bool is_first = true;
  for (const auto& [key, item] : value.items()) {
    if (!std::exchange(is_first, false)) parts.push_back(grammar_.Literal(","));
    parts.push_back(space);
    if (value.is_object()) {
      parts.push_back(grammar_.Literal(absl::StrCat(Json(key).dump(), ":")));
      parts.push_back(space);
    }
    parts.push_back(Composite(item));
  }
  parts.push_back(space);
  parts.push_back(grammar_.Literal(value.is_object() ? "}" : "]"));
  return grammar_.Sequence(std::move(parts));
}

absl::StatusOr<Node> SchemaCompiler::String(const Shape& shape) {
  const StringBounds& bounds = shape.string;
  if (const auto found = strings_.find(bounds); found != strings_.end()) return found->second;
  if (bounds.most && *bounds.most < bounds.least) {
    return UnsatisfiableError(shape.path, "maxLength is below minLength");
  }
  Node node = 0;
  if (bounds.has_form()) {
    const absl::StatusOr<const Language*> texts = reader_.languages().Texts(bounds);
    if (!texts.ok()) return texts.status();
    if ((*texts)->IsEmpty()) {
      return UnsatisfiableError(shape.path, "no string has the pattern, the format and the length");
    }
    ASSIGN_OR_RETURN(node, Text(**texts));
  } else if (bounds.least == 0 && !bounds.most) {
    ASSIGN_OR_RETURN(node, Fixed(absl::StrCat("\"", kCharacter, "*\"")));
  } else {
    ASSIGN_OR_RETURN(const Node character, Fixed(kCharacter));
    const Node quote = grammar_.Literal("\"");
    node = grammar_.Sequence({quote, grammar_.Repeat(character, bounds.least, bounds.most), quote});
  }
  return strings_[bounds] = node;
}

absl::StatusOr<Node> SchemaCompiler::Number(const Shape& shape) {
  ASSIGN_OR_RETURN(const Language texts, NumberTexts(shape.number, reader_.budget()));
  if (texts.IsEmpty()) {
    return UnsatisfiableError(
        shape.path, "no number that is written here keeps minimum, maximum and multipleOf");
  }
  ASSIGN_OR_RETURN(Dfa dfa, Encode(texts, Encoding::kUtf8, reader_.budget()));
  return grammar_.Terminal(std::move(dfa));
}

absl::StatusOr<Node> SchemaCompiler::Array(const Shape& shape) {
  const Node space = fixed_.at(kSpace);
  const Node comma = fixed_.at(absl::StrCat(",", kSpace));
  // Items with schemas of their own, up to the first that can't be.
  std::vector<Node> prefix;
  const size_t n_prefix = shape.n_prefix();
  std::optional<int64_t> most = shape.max_items;
  std::optional<Node> rest;
  absl::Status reason;
  for (size_t i = 0; i <= n_prefix && (!most || static_cast<int64_t>(i) < *most); ++i) {
    const absl::StatusOr<Node> item = Value(shape.ItemSchemas(i));
    if (item.ok()) {
      i < n_prefix ? prefix.push_back(*item) : static_cast<void>(rest = *item);
      continue;
    }
    if (!IsUnsatisfiable(item.status())) return item.status();
    most = static_cast<int64_t>(i);
    reason = item.status();
  }
  if (most && *most < shape.min_items) {
    if (!reason.ok()) return reason;
    return UnsatisfiableError(shape.path, "maxItems is below minItems");
  }
  const auto n = static_cast<int64_t>(prefix.size());
  const Node end = grammar_.Sequence({space, grammar_.Literal("]")});
  Node tail = end;
  if (rest && (!most || *most > n)) {
    const Node next = grammar_.Sequence({comma, *rest});
    const int64_t least = std::max<int64_t>(0, shape.min_items - n);
    const std::optional<int64_t> further = most ? std::optional(*most - n) : std::nullopt;
    if (n > 0) {
      tail = grammar_.Sequence({grammar_.Repeat(next, least, further), end});
    } else {
      const auto after = further ? std::optional(*further - 1) : std::nullopt;
      tail = grammar_.Sequence(
          {space, *rest, grammar_.Repeat(next, std::max<int64_t>(0, least - 1), after), end});
      if (least == 0) tail = grammar_.Choice({tail, end});
    }
  }
  for (int64_t i = n - 1; i >= 0; --i) {
    tail = grammar_.Sequence({i == 0 ? space : comma, prefix[i], tail});
    if (i >= shape.min_items) tail = grammar_.Choice({tail, end});
  }
  return grammar_.Sequence({grammar_.Literal("["), tail});
}

// The declared properties, in the order of the schema, and those that are only required. names:
// filled with all of them, allowed or not.
absl::StatusOr<std::vector<SchemaCompiler::Member>> SchemaCompiler::Members(
    const Shape& shape, std::vector<std::string>& names) {
  std::set<std::string> known;
  const auto add = [&](const std::string& name) {
    if (known.insert(name).second) names.push_back(name);
  };
  for (const ObjectPart& part : shape.objects) {
    for (const auto& [name, schema] : part.properties) add(name);
  }
  for (const std::string& name : shape.required) add(name);
  const std::set<std::string> required(shape.required.begin(), shape.required.end());
  const Node space = fixed_.at(kSpace);
  std::vector<Member> members;
  for (const std::string& name : names) {
    const bool is_required = required.contains(name);
    ASSIGN_OR_RETURN(const bool allows_name, logic_.Allows(shape.names, Json(name)));
    if (!allows_name) {
      if (!is_required) continue;
      return UnsatisfiableError(shape.path, absl::StrCat("propertyNames does not allow ",
                                                         Quoted(name), ", which is required"));
    }
    ASSIGN_OR_RETURN(const SchemaSet schemas, logic_.Property(shape, name));
    const absl::StatusOr<Node> value = Value(schemas);
    if (!value.ok() && IsUnsatisfiable(value.status()) && !is_required) continue;
    if (!value.ok()) return value.status();
    const Node key = grammar_.Literal(absl::StrCat(Json(name).dump(), ":"));
    members.push_back({grammar_.Sequence({key, space, *value}), is_required});
  }
  return members;
}

// The names that propertyNames allows.
absl::StatusOr<Language> SchemaCompiler::Names(const Shape& shape) {
  ASSIGN_OR_RETURN(const auto shapes, reader_.Read(shape.names));
  const std::string path = shape.names.empty() ? shape.path : document().path(shape.names.front());
  const Shape* only = nullptr;
  for (const Shape& names : *shapes) {
    if ((names.types & kString) == 0) continue;
    if (only != nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": names with alternatives are not kept"));
    }
    only = &names;
  }
  if (only == nullptr) return ListedTexts({}, reader_.budget());
  if (!only->values) {
    ASSIGN_OR_RETURN(const Language* texts, reader_.languages().Texts(only->string));
    return *texts;
  }
  Shape others = *only;
  others.values = nullptr;
  std::vector<std::string> listed;
  for (const Json* value : only->values->list) {
    ASSIGN_OR_RETURN(const bool allows, logic_.Allows(others, *value));
    if (allows && value->is_string()) listed.push_back(*value);
  }
  return ListedTexts(listed, reader_.budget());
}

// A member of any name that is not declared: for each set of patterns that fit a name, the names
// that fit these and no others.
absl::StatusOr<std::optional<Node>> SchemaCompiler::OtherMembers(
    const Shape& shape, const std::vector<std::string>& names) {
  std::set<std::string> distinct;
  for (const ObjectPart& part : shape.objects) {
    for (const auto& [pattern, schema] : part.patterns) distinct.insert(pattern);
  }
  if (distinct.size() > kMostNamePatterns) {
    return absl::InvalidArgumentError(absl::StrCat(shape.path, "/patternProperties: more than ",
                                                   kMostNamePatterns,
                                                   " patterns apply to one object"));
  }
  const std::vector<std::string> patterns(distinct.begin(), distinct.end());
  Budget& budget = reader_.budget();
  std::optional<Language> undeclared;
  std::vector<Node> options;
  for (uint32_t fitting = 0; fitting < (1u << patterns.size()); ++fitting) {
    const SchemaSet schemas = PropertySchemas(shape, nullptr, [&](const std::string& pattern) {
      const size_t i =
          std::lower_bound(patterns.begin(), patterns.end(), pattern) - patterns.begin();
      return (fitting >> i & 1) != 0;
    });
    const absl::StatusOr<Node> value = Value(schemas);
    if (!value.ok() && IsUnsatisfiable(value.status())) continue;
    if (!value.ok()) return value.status();
    Node key = 0;
    if (names.empty() && patterns.empty() && shape.names.empty()) {
      ASSIGN_OR_RETURN(key, Fixed(absl::StrCat("\"", kCharacter, "*\"")));
    } else {
      if (!undeclared) {
        ASSIGN_OR_RETURN(const Language allowed, Names(shape));
        ASSIGN_OR_RETURN(const Language declared, ListedTexts(names, budget));
        ASSIGN_OR_RETURN(undeclared, Difference(allowed, declared, budget));
      }
      Language keys = *undeclared;
      for (size_t i = 0; i < patterns.size(); ++i) {
        ASSIGN_OR_RETURN(const Language* pattern, reader_.languages().Pattern(patterns[i]));
        ASSIGN_OR_RETURN(keys, (fitting >> i & 1) != 0 ? Intersection(keys, *pattern, budget)
                                                       : Difference(keys, *pattern, budget));
      }
      if (keys.IsEmpty()) continue;
      ASSIGN_OR_RETURN(key, Text(keys));
    }
    ASSIGN_OR_RETURN(const Node colon, Fixed(absl::StrCat(":", kSpace)));
    options.push_back(grammar_.Sequence({key, colon, *value}));
  }
  if (options.empty()) return std::nullopt;
  return options.size() == 1 ? options[0] : grammar_.Choice(std::move(options));
}

// The end of an object that has `n` members: others, and the brace. Others may repeat each other's
// names, so only one of them counts for minProperties.
std::optional<Node> SchemaCompiler::Close(const Shape& shape, const std::optional<Node>& others,
                                          int64_t n) {
  const Node space = fixed_.at(kSpace);
  const Node end = grammar_.Sequence({space, grammar_.Literal("}")});
  const int64_t least = std::max<int64_t>(0, shape.min_properties - n);
  const int64_t room = shape.max_properties ? *shape.max_properties - n : 1;
  if (least > 1 || (least == 1 && (!others || room <= 0))) return std::nullopt;
  if (!others || room <= 0) return end;
  const Node comma = fixed_.at(absl::StrCat(",", kSpace));
  const Node next = grammar_.Sequence({comma, *others});
  const auto most = [&](int64_t used) {
    return shape.max_properties ? std::optional(room - used) : std::nullopt;
  };
  if (n > 0) return grammar_.Sequence({grammar_.Repeat(next, least, most(0)), end});
  const Node some = grammar_.Sequence({space, *others, grammar_.Repeat(next, 0, most(1)), end});
  return least > 0 ? some : grammar_.Choice({some, end});
}

absl::StatusOr<Node> SchemaCompiler::Object(const Shape& shape) {
  if (shape.max_properties && *shape.max_properties < shape.min_properties) {
    return UnsatisfiableError(shape.path, "maxProperties is below minProperties");
  }
  std::vector<std::string> names;
  ASSIGN_OR_RETURN(const std::vector<Member> members, Members(shape, names));
  ASSIGN_OR_RETURN(const std::optional<Node> others, OtherMembers(shape, names));
  // States: how many properties are decided, and how many of them there are, as far as that
  // matters. tails[n]: what may follow, once all behind are known.
  const int64_t most = shape.max_properties.value_or(INT64_MAX);
  const int64_t n_members = static_cast<int64_t>(members.size());
  const int64_t cap = std::min(
      n_members, std::max({int64_t{1}, shape.min_properties, shape.max_properties.value_or(0)}));
  const Node space = fixed_.at(kSpace);
  const Node comma = fixed_.at(absl::StrCat(",", kSpace));
  std::vector<std::optional<Node>> tails(cap + 1);
  for (int64_t n = 0; n <= cap; ++n) tails[n] = Close(shape, others, n);
  for (int64_t i = n_members - 1; i >= 0; --i) {
    std::vector<std::optional<Node>> before(cap + 1);
    for (int64_t n = 0; n <= std::min(i, cap); ++n) {
      std::vector<Node> options;
      const std::optional<Node>& with = tails[std::min(n + 1, cap)];
      if (n < most && with) {
        options.push_back(grammar_.Sequence({n == 0 ? space : comma, members[i].node, *with}));
      }
      if (!members[i].is_required && tails[n]) options.push_back(*tails[n]);
      if (options.empty()) continue;
      before[n] = options[0];
      if (options.size() > 1) {
        // Several tails lead here, so it is a rule and not a part of each.
        before[n] = grammar_.Rule(shape.path);
        grammar_.Define(*before[n], grammar_.Choice(std::move(options)));
      }
    }
    RETURN_IF_ERROR(reader_.budget().Spend(cap));
    RETURN_IF_ERROR(CheckSize());
    tails = std::move(before);
  }
  if (!tails[0]) {
    return UnsatisfiableError(
        shape.path,
        "no object has enough properties, of which additional ones count as one, for "
        "they may repeat each other, and not too many");
  }
  return grammar_.Sequence({grammar_.Literal("{"), *tails[0]});
}

absl::StatusOr<Node> CompileJson(const Json& root, bool is_any_object, Grammar& grammar,
                                 const Limits& limits) {
  Budget budget(limits);
  StringLanguages languages(limits.depth, budget);
  SchemaDocument document(root);
  RETURN_IF_ERROR(document.CheckIdentifiers());
  ShapeReader reader(document, languages, budget);
  SchemaCompiler compiler(reader, grammar, limits);
  RETURN_IF_ERROR(compiler.Prepare());
  if (is_any_object) return compiler.Object(Shape{.path = "#", .types = kObject});
  return compiler.Value({document.root()});
}

}  // namespace

absl::StatusOr<Grammar::Node> AddJsonSchema(std::string_view schema, Grammar& grammar,
                                            const Limits& limits) {
  if (schema.size() > limits.source_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("#: the schema has ", schema.size(),
                                                   " bytes, more than ", limits.source_bytes));
  }
  const absl::StatusOr<Json> root = ParseOrderedObject(schema, "#");
  if (!root.ok()) return absl::InvalidArgumentError(root.status().message());
  absl::StatusOr<Grammar::Node> node = CompileJson(*root, /*is_any_object=*/false, grammar, limits);
  if (node.ok() || !IsUnsatisfiable(node.status())) return node;
  return absl::InvalidArgumentError(node.status().message());
}

absl::StatusOr<Grammar::Node> AddJsonObject(Grammar& grammar, const Limits& limits) {
  return CompileJson(Json::object(), /*is_any_object=*/true, grammar, limits);
}

}  // namespace ovq::constraint
