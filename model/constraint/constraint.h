// Constraint: the form that an answer has to keep, compiled.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/constraint/grammar.h"

namespace ovq::constraint {

class Automaton;  // automaton.h: bytes and a stack

// A source is what callers give. It can be serialized: everything else follows from it.
struct Source {
  enum class Kind : uint8_t { kJsonSchema, kJsonObject, kRegex, kChoice, kGrammar };
  Kind kind = Kind::kJsonObject;          // kJsonObject: any JSON object, without `text`
  std::string text = {};                  // the schema (JSON), the regular expression, or GBNF
  std::vector<std::string> choices = {};  // kChoice
  bool operator==(const Source&) const = default;
};

// Adds the language of the source to the grammar. InvalidArgument names the place in the source
// (a JSON pointer, or line and column) and what is not supported there.
absl::StatusOr<Grammar::Node> AddSource(const Source& source, Grammar& grammar,
                                        const Limits& limits);
// One for each kind; AddSource calls them.
absl::StatusOr<Grammar::Node> AddJsonSchema(std::string_view schema, Grammar& grammar,
                                            const Limits& limits);
absl::StatusOr<Grammar::Node> AddJsonObject(Grammar& grammar, const Limits& limits);
absl::StatusOr<Grammar::Node> AddRegex(std::string_view regex, Grammar& grammar,
                                       const Limits& limits);
absl::StatusOr<Grammar::Node> AddGbnf(std::string_view text, Grammar& grammar,
                                      const Limits& limits);

// Compiles a grammar with a root. InvalidArgument for a rule that is not defined, that is left
// recursive (with its name) or that no text ends; ResourceExhausted beyond the limits.
absl::StatusOr<std::shared_ptr<const Automaton>> CompileGrammar(const Grammar& grammar,
                                                                const Limits& limits);

}  // namespace ovq::constraint
