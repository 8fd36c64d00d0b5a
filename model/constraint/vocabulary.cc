#include "model/constraint/vocabulary.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "base/check.h"
#include "base/text.h"

namespace ovq::constraint {
namespace {

// [position]: whether the text from there on is UTF-8. Complete characters are found from the back.
std::vector<bool> FindUtf8Suffixes(std::string_view text) {
  std::vector<bool> valid(text.size() + 1);
  valid[text.size()] = true;
  for (size_t i = text.size(); i-- > 0;) {
    const auto lead = static_cast<uint8_t>(text[i]);
    const size_t length = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    valid[i] = i + length <= text.size() && valid[i + length] &&
               !FirstInvalidUtf8(text.substr(i, length)).has_value();
  }
  return valid;
}

// Whether the bytes, not more than a character has, are a character or begin one.
bool BeginsCharacter(std::string_view bytes) {
  const auto lead = static_cast<uint8_t>(bytes[0]);
  const size_t length = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (bytes.size() > length) return false;
  std::string character(bytes);
  // The bounds of a second byte depend on the first; others are continued in any way.
  if (bytes.size() == 1 && length > 1) character += lead == 0xe0 || lead == 0xf0 ? '\xa0' : '\x80';
  character.resize(length, '\x80');
  return !FirstInvalidUtf8(character);
}

}  // namespace

Vocabulary::Vocabulary(std::span<const std::string> texts, std::vector<int32_t> ends)
    : ends_(std::move(ends)) {
  const auto is_end = [this](size_t id) {
    return std::binary_search(ends_.begin(), ends_.end(), static_cast<int32_t>(id));
  };
  Check(std::is_sorted(ends_.begin(), ends_.end()) &&
            (ends_.empty() ||
             (ends_.front() >= 0 && ends_.back() < static_cast<int64_t>(texts.size()))),
        "ends are ascending tokens of the vocabulary");
  begins_.push_back(0);
  for (size_t id = 0; id < texts.size(); ++id) {
    if (!is_end(id)) bytes_ += texts[id];
    begins_.push_back(static_cast<uint32_t>(bytes_.size()));
    std::vector<int32_t>& list = begins_[id + 1] > begins_[id] ? order_ : without_text_;
    list.push_back(static_cast<int32_t>(id));
  }
  std::sort(order_.begin(), order_.end(), [this](int32_t a, int32_t b) {
    const int order = Text(a).compare(Text(b));
    return order != 0 ? order < 0 : a < b;
  });
  AddNodes();
  AddSteps();
  AddSets();
}

void Vocabulary::AddNodes() {
  std::vector<int32_t> path;  // nodes from the root to the newest
  std::string_view before;
  const auto close = [&](size_t depth) {
    for (; path.size() > depth; path.pop_back()) {
      nodes_[path.back()].end = static_cast<int32_t>(nodes_.size());
    }
  };
  for (size_t i = 0; i < order_.size(); ++i) {
    const std::string_view text = Text(order_[i]);
    const size_t shared =
        std::mismatch(before.begin(), before.end(), text.begin(), text.end()).first -
        before.begin();
    close(shared);
    for (size_t depth = shared; depth < text.size(); ++depth) {
      path.push_back(static_cast<int32_t>(nodes_.size()));
      nodes_.push_back({static_cast<uint8_t>(text[depth]), static_cast<int32_t>(depth) + 1, 0,
                        static_cast<int32_t>(i), 0, -1, 0});
    }
    ++nodes_[path.back()].n_tokens;
    max_depth_ = std::max(max_depth_, static_cast<int32_t>(text.size()));
    before = text;
  }
  close(0);
}

void Vocabulary::AddSteps() {
  struct Begun {  // behind a node: the characters, and the bytes of the last that is not complete
    bool is_utf8 = true;
    uint8_t chars = 0;
    std::string character = {};
  };
  std::vector<Begun> path(1);  // [depth]
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    path.resize(node.depth);
    Begun begun = path.back();
    Step step{kNoUtf8, begun.chars, static_cast<uint8_t>(begun.character.size()),
              node.end - static_cast<int32_t>(i) > kLargeSubtree};
    if (begun.is_utf8) {
      if (begun.character.empty()) ++step.chars;
      begun.character += static_cast<char>(node.byte);
      begun.is_utf8 = step.chars <= kMaxChars && BeginsCharacter(begun.character);
    }
    if (begun.is_utf8) {
      step.code = node.byte < 0x80 ? node.byte : kPiece;
      begun.chars = step.chars;
      if (!FirstInvalidUtf8(begun.character)) begun.character.clear();
    }
    steps_.push_back(step);
    path.push_back(std::move(begun));
  }
}

void Vocabulary::AddSets() {
  std::vector<Set> below(nodes_.size(), Set{{}, true});
  std::vector<int32_t> path;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    path.resize(nodes_[i].depth - 1);
    path.push_back(static_cast<int32_t>(i));
    if (nodes_[i].n_tokens == 0) continue;
    const std::vector<bool> valid = FindUtf8Suffixes(Text(order_[nodes_[i].first_token]));
    for (size_t depth = 1; depth < path.size(); ++depth) {
      if (!valid[depth]) below[path[depth - 1]].is_utf8 = false;
    }
  }
  path.clear();
  // Children come behind their parents, so going backwards a node is complete when it is reached.
  std::vector<int32_t> parent(nodes_.size(), -1);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    path.resize(nodes_[i].depth - 1);
    if (!path.empty()) parent[i] = path.back();
    path.push_back(static_cast<int32_t>(i));
  }
  for (size_t i = nodes_.size(); i-- > 0;) {
    if (parent[i] < 0) continue;
    nodes_[parent[i]].reach = std::max(nodes_[parent[i]].reach, nodes_[i].reach + 1);
    ByteSet& set = below[parent[i]].bytes;
    for (size_t word = 0; word < set.size(); ++word) set[word] |= below[i].bytes[word];
    set[nodes_[i].byte / 64] |= uint64_t{1} << nodes_[i].byte % 64;
  }
  absl::flat_hash_map<std::pair<ByteSet, bool>, int32_t> known;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].end == static_cast<int32_t>(i) + 1) continue;
    const auto [at, is_new] = known.try_emplace(std::pair(below[i].bytes, below[i].is_utf8),
                                                static_cast<int32_t>(sets_.size()));
    if (is_new) sets_.push_back(below[i]);
    nodes_[i].below = at->second;
  }
}

size_t Vocabulary::bytes() const {
  return bytes_.capacity() + begins_.capacity() * sizeof(uint32_t) +
         (order_.capacity() + without_text_.capacity()) * sizeof(int32_t) +
         nodes_.capacity() * sizeof(Node) + steps_.capacity() * sizeof(Step) +
         sets_.capacity() * sizeof(Set);
}

}  // namespace ovq::constraint
