// Regular languages over code points, as complete tables: what regular expressions, formats, bounds
// of numbers and names of properties are made of, and combined in.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "model/constraint/dfa.h"
#include "model/constraint/grammar.h"
#include "model/constraint/utf8_ranges.h"

namespace ovq::constraint {

// The work that one constraint may still cost. Every loop whose length a caller chooses spends from
// it. ResourceExhausted when nothing is left.
class Budget {
 public:
  explicit Budget(const Limits& limits)
      : states_(limits.dfa_states), steps_(limits.compile_steps) {}
  int64_t states() const { return states_; }  // that one automaton may have
  absl::Status Spend(int64_t steps);
  // Also spends a step for each state.
  absl::Status CheckStates(int64_t n_states);

 private:
  int64_t states_;
  int64_t steps_;
};

using CodeSet = std::vector<CodePointRange>;  // normal, see utf8_ranges.h

// Appends the code points of the text; false if it is not valid UTF-8.
bool DecodeUtf8(std::string_view text, std::u32string& out);

// Sets of code points that no state tells apart.
class Alphabet {
 public:
  // Two code points are of one class if exactly the same sets have them; those in no set have none.
  // members: filled with the classes of each set, ascending.
  Alphabet(const std::vector<CodeSet>& sets, std::vector<std::vector<int32_t>>& members);
  // The classes of both: pairs[c] are those of `a` and `b` whose common code points are class c;
  // one of the two may be -1.
  Alphabet(const Alphabet& a, const Alphabet& b, std::vector<std::pair<int32_t, int32_t>>& pairs);

  // The classes renamed: names[c], or -1 for one whose code points are of no class from now on.
  Alphabet(const Alphabet& other, const std::vector<int32_t>& names);

  int32_t n_classes() const { return n_classes_; }
  int32_t Class(uint32_t code) const;  // -1: none
  // Segments that cover all code points: each is [first, first of the next) and of one class.
  struct Segment {
    uint32_t first;
    int32_t code_class;
  };
  const std::vector<Segment>& segments() const { return segments_; }

 private:
  void Append(uint32_t first, int32_t code_class);

  std::vector<Segment> segments_;
  int32_t n_classes_ = 0;
};

// A regular language as a deterministic automaton. Immutable.
class Language {
 public:
  // next: [states, classes], -1 for nothing. State 0 is the start.
  Language(Alphabet alphabet, std::vector<int32_t> next, std::vector<bool> accepts);

  int32_t n_states() const { return static_cast<int32_t>(accepts_.size()); }
  const Alphabet& alphabet() const { return alphabet_; }
  bool accepts(int32_t state) const { return accepts_[state]; }
  int32_t Next(int32_t state, int32_t code_class) const {
    return next_[size_t(state) * alphabet_.n_classes() + code_class];
  }
  bool Matches(std::u32string_view text) const;
  bool MatchesUtf8(std::string_view text) const;  // false for invalid UTF-8
  bool IsEmpty() const;

 private:
  Alphabet alphabet_;
  std::vector<int32_t> next_;
  std::vector<bool> accepts_;
};

// A nondeterministic automaton. Begin and end edges consume nothing, and may be passed before the
// first and behind the last code point.
class Nfa {
 public:
  enum class Kind : uint8_t { kCodes, kEmpty, kBegin, kEnd };
  struct Edge {
    Kind kind;
    int32_t set;  // index into sets(), kCodes
    int32_t to;
  };

  int32_t AddState();
  void AddEdge(int32_t from, int32_t to, const CodeSet& set);
  void AddEdge(int32_t from, int32_t to, Kind kind);
  const std::vector<CodeSet>& sets() const { return sets_; }
  const std::vector<std::vector<Edge>>& edges() const { return edges_; }

 private:
  std::vector<CodeSet> sets_;
  std::vector<std::vector<Edge>> edges_;
};

// The texts that lead from `start` to `accept`, as the smallest automaton.
absl::StatusOr<Language> Determinise(const Nfa& nfa, int32_t start, int32_t accept, Budget& budget);
// From every state of the result an accepting one can be reached, but from the start if it is
// empty.
absl::StatusOr<Language> Minimise(const Language& language, Budget& budget);
absl::StatusOr<Language> Intersection(const Language& a, const Language& b, Budget& budget);
absl::StatusOr<Language> Difference(const Language& a, const Language& b, Budget& budget);

// All texts of at least `least` and at most `most` code points; most < 0: no bound.
absl::StatusOr<Language> TextsOfLength(int64_t least, int64_t most, Budget& budget);
// These texts, which are valid UTF-8.
absl::StatusOr<Language> ListedTexts(const std::vector<std::string>& texts, Budget& budget);

// A state machine over the characters of `symbols`: `step` returns the next state, or -1. States
// are numbers that the caller encodes; only those that can be reached are kept.
struct Machine {
  int64_t start;
  std::string symbols;
  std::function<int64_t(int64_t state, char symbol)> step;
  std::function<bool(int64_t state)> accepts;
};
absl::StatusOr<Language> MachineLanguage(const Machine& machine, Budget& budget);

enum class Encoding : uint8_t {
  kUtf8,
  // A JSON string with its quotes, as JSON.stringify writes it: only what has to be is escaped.
  kJsonString,
};
// The language is not empty and has no dead ends (Minimise); neither has the result.
absl::StatusOr<Dfa> Encode(const Language& language, Encoding encoding, Budget& budget);

// These byte strings, at least one, as the smallest automaton.
absl::StatusOr<Dfa> ListedBytes(std::vector<std::string> texts, Budget& budget);

}  // namespace ovq::constraint
