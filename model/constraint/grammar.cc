#include "model/constraint/grammar.h"

#include <utility>

#include "base/check.h"

namespace ovq::constraint {

Grammar::Node Grammar::Add(Expression expression) {
  expressions_.push_back(std::move(expression));
  return static_cast<Node>(expressions_.size()) - 1;
}

Grammar::Node Grammar::Literal(std::string_view bytes) {
  return Add({.kind = Kind::kLiteral, .text = std::string(bytes)});
}

Grammar::Node Grammar::Terminal(Dfa language) {
  return Add(
      {.kind = Kind::kTerminal, .language = std::make_shared<const Dfa>(std::move(language))});
}

Grammar::Node Grammar::Sequence(std::vector<Node> parts) {
  return Add({.kind = Kind::kSequence, .parts = std::move(parts)});
}

Grammar::Node Grammar::Choice(std::vector<Node> options) {
  Check(!options.empty(), "a choice has options");
  return Add({.kind = Kind::kChoice, .parts = std::move(options)});
}

Grammar::Node Grammar::Repeat(Node item, int64_t least, std::optional<int64_t> most) {
  return Add({.kind = Kind::kRepeat, .parts = {item}, .least = least, .most = most});
}

Grammar::Node Grammar::Rule(std::string name) {
  return Add({.kind = Kind::kRule, .text = std::move(name)});
}

void Grammar::Define(Node rule, Node body) {
  Expression& expression = expressions_[rule];
  Check(expression.kind == Kind::kRule && expression.parts.empty(), "a rule is defined once");
  expression.parts = {body};
}

void Grammar::SetRoot(Node root) { root_ = root; }

}  // namespace ovq::constraint
