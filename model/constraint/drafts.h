// Drafts: the expressions of a grammar on their way to an Automaton.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "model/constraint/grammar.h"

namespace ovq::constraint {

// Measures of expressions: kNoText is that of an expression without a text, others stay below it.
inline constexpr int32_t kNoText = std::numeric_limits<int32_t>::max();

// An expression while it is compiled. A kRule is an alias of its one part.
struct Draft {
  Grammar::Kind kind = Grammar::Kind::kSequence;
  std::string text = {};
  std::vector<int32_t> parts = {};
  int64_t least = 0, most = -1;
  std::shared_ptr<const Dfa> language = {};
  bool nullable = false;
  int32_t height = kNoText;    // Automaton::Expression::height
  int32_t shortest = kNoText;  // bytes of its shortest text
};

// Copies what is reachable from the grammar's root and finds what is wrong with it. The grammar and
// the limits outlive it.
class Drafts {
 public:
  Drafts(const Grammar& grammar, const Limits& limits) : grammar_(grammar), limits_(limits) {}

  // After it, drafts() have no left recursion, no repeat of an item that may be empty, and their
  // measures. Errors are those of CompileGrammar.
  absl::Status Make();
  const std::vector<Draft>& drafts() const { return drafts_; }

 private:
  absl::Status Charge(int64_t steps);
  absl::Status Copy();
  absl::Status CopyOne(Grammar::Node node);
  absl::Status CountLanguage(const Dfa& language);
  absl::Status MergeTexts(int32_t choice);
  int32_t Add(Draft draft);
  int32_t AddPair(Grammar::Kind kind, int32_t first, int32_t second, bool nullable);
  std::vector<std::vector<int32_t>> Users() const;  // [draft]: whose part it is
  void FindNullable();
  absl::Status CheckLeftRecursion() const;
  std::vector<int32_t> FirstParts(int32_t i) const;
  void RemoveEmptyItems();
  int32_t NonEmpty(int32_t draft);
  void FillNonEmpty(int32_t from, int32_t to);
  absl::Status Measure();
  template <class Value>
  void MeasureBy(int32_t Draft::*measure, const Value& value);
  int32_t Height(const Draft& draft, int32_t n_measured, int32_t newest) const;
  int32_t Shortest(const Draft& draft, int32_t n_measured, int32_t newest) const;

  const Grammar& grammar_;
  const Limits& limits_;
  std::vector<Draft> drafts_;  // [node of the grammar, then what is added]
  std::vector<int32_t> copied_;
  std::vector<int32_t> non_empty_;  // [draft]: the expression without the empty text, or -1
  std::vector<std::pair<int32_t, int32_t>> to_fill_;
  int64_t steps_ = 0, literal_bytes_ = 0, dfa_states_ = 0;
  std::set<const Dfa*> counted_;
};

}  // namespace ovq::constraint
