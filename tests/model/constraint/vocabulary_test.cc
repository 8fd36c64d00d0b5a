#include "model/constraint/vocabulary.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "tests/model/constraint/constraint_test_util.h"

namespace ovq::constraint {
namespace {

using test::MixedVocabulary;

TEST(VocabularyTest, ItsTrieHasEveryToken) {
  std::mt19937 random(8);
  const std::shared_ptr<const Vocabulary> vocabulary = MixedVocabulary(random);
  std::vector<int> n_seen(vocabulary->size());
  std::vector<std::string> path(vocabulary->max_depth() + 1);
  const auto nodes = vocabulary->nodes();
  for (size_t i = 0; i < nodes.size(); ++i) {
    path[nodes[i].depth] = path[nodes[i].depth - 1] + static_cast<char>(nodes[i].byte);
    for (int32_t k = vocabulary->first_tokens()[i]; k < vocabulary->first_tokens()[i + 1]; ++k) {
      const int32_t token = vocabulary->order()[k];
      ++n_seen[token];
      EXPECT_EQ(vocabulary->Text(token), path[nodes[i].depth]);
    }
    ASSERT_GT(vocabulary->behind()[i], static_cast<int32_t>(i));
    int32_t reach = 0;  // of the descendants, which are all nodes up to its end
    const int32_t end = vocabulary->behind()[i];
    EXPECT_TRUE(end == std::ssize(nodes) || nodes[end].depth <= nodes[i].depth);
    for (int32_t other = static_cast<int32_t>(i) + 1; other < vocabulary->behind()[i]; ++other) {
      ASSERT_GT(nodes[other].depth, nodes[i].depth);
      reach = std::max(reach, nodes[other].depth - nodes[i].depth);
    }
    EXPECT_EQ(nodes[i].reach, reach);
  }
  for (int32_t id = 0; id < vocabulary->size(); ++id) {
    EXPECT_EQ(n_seen[id], vocabulary->Text(id).empty() ? 0 : 1) << id;
  }
}

// Whether the bytes are UTF-8, apart from a last character that may still be completed.
bool BeginsUtf8(const std::string& text) {
  for (const std::string end :
       {"", "\x80", "\xa0", "\x80\x80", "\xa0\x80", "\xa0\x80\x80", "\x80\x80\x80"}) {
    if (!FirstInvalidUtf8(text + end)) return true;
  }
  return false;
}

TEST(VocabularyTest, NodesKnowTheirCharacters) {
  std::mt19937 random(9);
  const std::shared_ptr<const Vocabulary> vocabulary = MixedVocabulary(random);
  std::vector<std::string> path(vocabulary->max_depth() + 1);
  const auto nodes = vocabulary->nodes();
  int n_pieces = 0, n_invalid = 0;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const std::string& before = path[nodes[i].depth - 1];
    const std::string& text = path[nodes[i].depth] = before + static_cast<char>(nodes[i].byte);
    if (!BeginsUtf8(text)) {
      EXPECT_EQ(vocabulary->codes()[i], Vocabulary::kNoUtf8);
      ++n_invalid;
      if (!BeginsUtf8(before)) continue;
    } else if (nodes[i].byte < 0x80) {
      EXPECT_EQ(vocabulary->codes()[i], nodes[i].byte);
    } else {
      EXPECT_EQ(vocabulary->codes()[i], Vocabulary::kPiece);
      ++n_pieces;
    }
    size_t complete = before.size();
    while (FirstInvalidUtf8(before.substr(0, complete))) --complete;
    EXPECT_EQ(nodes[i].offset, before.size() - complete);
    int n_chars = nodes[i].offset > 0 || BeginsUtf8(before) ? 1 : 0;
    for (size_t k = 0; k < complete; ++k) n_chars += (before[k] & 0xc0) != 0x80 ? 1 : 0;
    EXPECT_EQ(vocabulary->chars()[i], n_chars) << i;
  }
  EXPECT_GT(n_pieces, 100);
  EXPECT_GT(n_invalid, 100);
}

}  // namespace
}  // namespace ovq::constraint
