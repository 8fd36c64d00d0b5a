#include "model/constraint/vocabulary.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/text.h"

namespace ovq::constraint {
namespace {

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
  AddCharacters();
  AddReaches();
}

void Vocabulary::AddNodes() {
  std::vector<int32_t> path;  // nodes from the root to the newest
  std::string_view before;
  const auto close = [&](size_t depth) {
    for (; path.size() > depth; path.pop_back()) {
      behind_[path.back()] = static_cast<int32_t>(nodes_.size());
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
      nodes_.push_back({.byte = static_cast<uint8_t>(text[depth]),
                        .offset = 0,
                        .depth = static_cast<int32_t>(depth) + 1,
                        .reach = 0});
      behind_.push_back(0);
      first_tokens_.push_back(static_cast<int32_t>(i));
    }
    max_depth_ = std::max(max_depth_, static_cast<int32_t>(text.size()));
    before = text;
  }
  close(0);
  first_tokens_.push_back(static_cast<int32_t>(order_.size()));
}

void Vocabulary::AddCharacters() {
  struct Begun {  // behind a node: the characters, and the bytes of the last that is not complete
    bool is_utf8 = true;
    uint8_t chars = 0;
    std::string character = {};
  };
  std::vector<Begun> path(1);  // [depth]
  for (Node& node : nodes_) {
    path.resize(node.depth);
    Begun begun = path.back();
    node.offset = static_cast<uint8_t>(begun.character.size());
    if (begun.is_utf8) {
      if (node.offset == 0) ++begun.chars;
      begun.character += static_cast<char>(node.byte);
      begun.is_utf8 = begun.chars <= kMaxChars && BeginsCharacter(begun.character);
    }
    codes_.push_back(!begun.is_utf8 ? kNoUtf8 : node.byte < 0x80 ? node.byte : kPiece);
    if (chars_.size() % 64 == 0) most_chars_.push_back(0);
    chars_.push_back(begun.chars);
    most_chars_.back() = std::max(most_chars_.back(), begun.chars);
    if (begun.is_utf8 && !FirstInvalidUtf8(begun.character)) begun.character.clear();
    path.push_back(std::move(begun));
  }
}

void Vocabulary::AddReaches() {
  std::vector<int32_t> path;
  std::vector<int32_t> parents(nodes_.size(), -1);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    path.resize(nodes_[i].depth - 1);
    if (!path.empty()) parents[i] = path.back();
    path.push_back(static_cast<int32_t>(i));
  }
  // Children come behind their parents, so going backwards a node is complete when it is reached.
  for (size_t i = nodes_.size(); i-- > 0;) {
    if (parents[i] < 0) continue;
    int32_t& reach = nodes_[parents[i]].reach;
    reach = std::max(reach, nodes_[i].reach + 1);
  }
}

size_t Vocabulary::bytes() const {
  return bytes_.capacity() + begins_.capacity() * sizeof(uint32_t) +
         (order_.capacity() + without_text_.capacity()) * sizeof(int32_t) +
         nodes_.capacity() * sizeof(Node) +
         (behind_.capacity() + first_tokens_.capacity()) * sizeof(int32_t) + codes_.capacity() +
         chars_.capacity() + most_chars_.capacity();
}

}  // namespace ovq::constraint
