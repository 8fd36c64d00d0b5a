// Texts of a grammar, found by trying everything.
#pragma once

#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "model/constraint/grammar.h"

namespace ovq::constraint {

class NaiveGrammar {
 public:
  NaiveGrammar(const Grammar& grammar, std::string_view text) : grammar_(grammar), text_(text) {}

  bool Accepts(Grammar::Node root) { return Ends(root, 0).contains(text_.size()); }

 private:
  using Places = std::set<size_t>;

  const Places& Ends(Grammar::Node node, size_t begin) {
    const auto key = std::make_pair(node, begin);
    if (const auto known = ends_.find(key); known != ends_.end()) return known->second;
    Places ends = Find(node, begin);
    return ends_[key] = std::move(ends);
  }

  Places Find(Grammar::Node node, size_t begin) {
    const Grammar::Expression& expression = grammar_.expressions()[node];
    switch (expression.kind) {
      case Grammar::Kind::kLiteral:
        if (!text_.substr(begin).starts_with(expression.text)) return {};
        return {begin + expression.text.size()};
      case Grammar::Kind::kTerminal: {
        Places ends;
        int32_t state = 0;
        for (size_t at = begin;; ++at) {
          if (expression.language->states()[state].accepts) ends.insert(at);
          int32_t next = -1;
          if (at < text_.size()) {
            for (const Dfa::Range& range : expression.language->states()[state].ranges) {
              const auto byte = static_cast<uint8_t>(text_[at]);
              if (byte >= range.first && byte <= range.last) next = range.to;
            }
          }
          if (next < 0) return ends;
          state = next;
        }
      }
      case Grammar::Kind::kSequence: {
        Places places = {begin};
        for (const Grammar::Node part : expression.parts) places = EndsFromAll(part, places);
        return places;
      }
      case Grammar::Kind::kRepeat: {
        Places ends;
        Places places = {begin};
        for (int64_t n = 0; !places.empty(); ++n) {
          if (n >= expression.least) ends.insert(places.begin(), places.end());
          if (expression.most && n == *expression.most) break;
          places = EndsFromAll(expression.parts[0], places);
        }
        return ends;
      }
      default: {  // a choice, or a rule, which has one part
        Places ends;
        for (const Grammar::Node part : expression.parts) {
          const Places& some = Ends(part, begin);
          ends.insert(some.begin(), some.end());
        }
        return ends;
      }
    }
  }

  Places EndsFromAll(Grammar::Node node, const Places& begins) {
    Places ends;
    for (const size_t begin : begins) {
      const Places& some = Ends(node, begin);
      ends.insert(some.begin(), some.end());
    }
    return ends;
  }

  const Grammar& grammar_;
  const std::string_view text_;
  std::map<std::pair<Grammar::Node, size_t>, Places> ends_;
};

}  // namespace ovq::constraint
