#include "model/tokenizers/merges.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <utility>

namespace ovq::model::test {
namespace {

using ::testing::ElementsAre;
using Symbols = std::vector<int32_t>;

// Repeatedly scans for the lowest rank, by the definition.
Symbols Naive(const std::map<std::pair<int, int>, std::pair<size_t, int>>& merges,
              Symbols symbols) {
  for (;;) {
    size_t at = symbols.size();
    size_t lowest = SIZE_MAX;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto merge = merges.find({symbols[i], symbols[i + 1]});
      if (merge == merges.end() || merge->second.first >= lowest) continue;
      lowest = merge->second.first;
      at = i;
    }
    if (at == symbols.size()) return symbols;
    symbols[at] = merges.at({symbols[at], symbols[at + 1]}).second;
    symbols.erase(symbols.begin() + static_cast<int64_t>(at) + 1);
  }
}

TEST(Merges, LowestRankFirstThenLeftmost) {
  Merges merges;
  merges.Add(1, 2, 10);  // rank 0
  merges.Add(0, 1, 11);
  merges.Add(0, 0, 12);
  const auto apply = [&](Symbols symbols) {
    merges.Apply(symbols);
    return symbols;
  };
  EXPECT_THAT(apply({0, 1, 2}), ElementsAre(0, 10));
  EXPECT_THAT(apply({0, 1, 1}), ElementsAre(11, 1));
  EXPECT_THAT(apply({0, 0, 0}), ElementsAre(12, 0));
  EXPECT_THAT(apply({}), ElementsAre());
  EXPECT_THAT(apply({1}), ElementsAre(1));
}

TEST(Merges, APairGivenAgainHasItsLastRank) {
  Merges merges;
  merges.Add(0, 1, 10);
  merges.Add(1, 2, 11);
  merges.Add(0, 1, 10);
  Symbols symbols = {0, 1, 2};
  merges.Apply(symbols);
  EXPECT_THAT(symbols, ElementsAre(0, 11));
}

// Short words are scanned, long ones use the heap; both follow the definition.
TEST(Merges, EveryLengthIsAsByDefinition) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 200; ++trial) {
    Merges merges;
    std::map<std::pair<int, int>, std::pair<size_t, int>> table;
    int next = 3;
    for (size_t rank = 0; rank < 40; ++rank) {
      const int left = static_cast<int>(random() % static_cast<unsigned>(next));
      const int right = static_cast<int>(random() % static_cast<unsigned>(next));
      if (!table.try_emplace({left, right}, rank, next).second) {
        table[{left, right}] = {rank, next};
      }
      merges.Add(left, right, next++);
    }
    for (const size_t n : {2, 3, 31, 32, 33, 100, 500}) {
      Symbols symbols(n);
      for (int32_t& symbol : symbols) symbol = static_cast<int32_t>(random() % 3);
      const Symbols expected = Naive(table, symbols);
      merges.Apply(symbols);
      ASSERT_EQ(symbols, expected) << "trial " << trial << ", " << n << " symbols";
    }
  }
}

}  // namespace
}  // namespace ovq::model::test
