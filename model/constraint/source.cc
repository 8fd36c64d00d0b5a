#include "absl/strings/str_cat.h"
#include "model/constraint/constraint.h"

namespace ovq::constraint {
namespace {

absl::StatusOr<Grammar::Node> AddChoice(const std::vector<std::string>& choices, Grammar& grammar) {
  if (choices.empty()) return absl::InvalidArgumentError("a choice needs at least one text");
  std::vector<Grammar::Node> options;
  for (const std::string& choice : choices) options.push_back(grammar.Literal(choice));
  return grammar.Choice(std::move(options));
}

}  // namespace

absl::StatusOr<Grammar::Node> AddSource(const Source& source, Grammar& grammar,
                                        const Limits& limits) {
  size_t bytes = source.text.size();
  for (const std::string& choice : source.choices) bytes += choice.size();
  if (bytes > limits.source_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("the constraint has ", bytes, " bytes, at most ",
                                                   limits.source_bytes, " are allowed"));
  }
  switch (source.kind) {
    case Source::Kind::kJsonSchema:
      return AddJsonSchema(source.text, grammar, limits);
    case Source::Kind::kJsonObject:
      return AddJsonObject(grammar, limits);
    case Source::Kind::kRegex:
      return AddRegex(source.text, grammar, limits);
    case Source::Kind::kChoice:
      return AddChoice(source.choices, grammar);
    case Source::Kind::kGrammar:
      return AddGbnf(source.text, grammar, limits);
  }
  return absl::InvalidArgumentError("unknown kind of constraint");
}

}  // namespace ovq::constraint
