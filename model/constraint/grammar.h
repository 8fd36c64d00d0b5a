// Grammar: a context-free language over bytes, as expressions that refer to each other. What parses
// schemas, regular expressions and grammars builds one; CompileGrammar makes an automaton of it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/constraint/dfa.h"

namespace ovq::constraint {

class Grammar {
 public:
  using Node = int32_t;

  Node Literal(std::string_view bytes);
  Node Terminal(Dfa language);
  Node Sequence(std::vector<Node> parts);
  Node Choice(std::vector<Node> options);  // at least one
  // `item` at least `least` and at most `most` times; no bound without `most`. A large bound costs
  // no memory: the automaton counts.
  Node Repeat(Node item, int64_t least, std::optional<int64_t> most);
  // Declares a rule, which other nodes may refer to before Define gives it a body. name: for
  // errors.
  Node Rule(std::string name);
  void Define(Node rule, Node body);
  void SetRoot(Node root);

  enum class Kind : uint8_t { kLiteral, kTerminal, kSequence, kChoice, kRepeat, kRule };
  struct Expression {
    Kind kind;
    std::string text = {};                     // kLiteral: bytes; kRule: name
    std::vector<Node> parts = {};              // kRule: the body, once defined; kRepeat: the item
    int64_t least = 0;                         // kRepeat
    std::optional<int64_t> most = {};          // kRepeat
    std::shared_ptr<const Dfa> language = {};  // kTerminal
  };
  const std::vector<Expression>& expressions() const { return expressions_; }
  Node root() const { return root_; }

 private:
  Node Add(Expression expression);

  std::vector<Expression> expressions_;
  Node root_ = -1;
};

// Bounds of what one constraint may cost. A source that needs more is refused.
struct Limits {
  size_t source_bytes = size_t{1} << 18;
  int64_t nodes = 200000;              // of a Grammar
  int64_t dfa_states = 50000;          // of all terminals together, and of any step that makes one
  int depth = 64;                      // of nesting in the source
  int64_t literal_bytes = 1 << 20;     // of all literals together
  int64_t compile_steps = 20'000'000;  // units of work; about a second
};

}  // namespace ovq::constraint
