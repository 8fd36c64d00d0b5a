#include "model/constraint/utf8_ranges.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"

namespace ovq::constraint {
namespace {

constexpr char32_t kFirstSurrogate = 0xd800, kLastSurrogate = 0xdfff;

// Makes the states of a CodePointDfa. States with equal continuations are one.
class Utf8Builder {
 public:
  // The start is state 0, the one accepting state is 1.
  Utf8Builder() : states_(2) { states_[1].accepts = true; }

  // Adds the encodings of `ranges` that have `n_tail` bytes behind a lead byte `lead` + the bits
  // that do not fit the tail, for code points first .. last.
  void Add(const std::vector<CodePointRange>& ranges, char32_t first, char32_t last, int lead,
           int n_tail) {
    std::vector<CodePointRange> part;
    for (const CodePointRange& range : ranges) {
      const CodePointRange cut{std::max(range.first, first), std::min(range.last, last)};
      if (cut.first <= cut.last) part.push_back(cut);
    }
    AddBlocks(0, part, lead, n_tail);
  }
  std::vector<Dfa::State> Build() { return std::move(states_); }

 private:
  // Adds ranges to `state`: code points are split by the bits above 6 * n_tail, which give the
  // byte.
  void AddBlocks(int32_t state, const std::vector<CodePointRange>& ranges, int lead, int n_tail) {
    const int shift = 6 * n_tail;
    const char32_t low = (char32_t{1} << shift) - 1;
    std::map<char32_t, std::vector<CodePointRange>> blocks;
    for (const CodePointRange& range : ranges) {
      for (char32_t block = range.first >> shift; block <= range.last >> shift; ++block) {
        blocks[block].push_back({std::max<char32_t>(range.first, block << shift) & low,
                                 std::min<char32_t>(range.last, (block << shift) | low) & low});
      }
    }
    for (const auto& [block, tails] : blocks) {
      AddByte(state, static_cast<uint8_t>(lead + static_cast<int>(block)),
              n_tail == 0 ? 1 : Tail(tails, n_tail));
    }
  }

  // The state from which `n_tail` continuation bytes encode one of `ranges`.
  int32_t Tail(const std::vector<CodePointRange>& ranges, int n_tail) {
    std::vector<char32_t> key{static_cast<char32_t>(n_tail)};
    for (const CodePointRange& range : ranges) key.insert(key.end(), {range.first, range.last});
    const auto [at, is_new] =
        tails_.try_emplace(std::move(key), static_cast<int32_t>(states_.size()));
    const int32_t state = at->second;
    if (is_new) {
      states_.emplace_back();
      AddBlocks(state, ranges, 0x80, n_tail - 1);
    }
    return state;
  }

  void AddByte(int32_t state, uint8_t byte, int32_t to) {
    std::vector<Dfa::Range>& ranges = states_[state].ranges;
    if (!ranges.empty() && ranges.back().to == to && ranges.back().last + 1 == byte) {
      ranges.back().last = byte;
    } else {
      ranges.push_back({byte, byte, to});
    }
  }

  std::vector<Dfa::State> states_;
  std::map<std::vector<char32_t>, int32_t> tails_;
};

}  // namespace

std::vector<CodePointRange> NormalRanges(std::vector<CodePointRange> ranges) {
  std::vector<CodePointRange> cut;
  for (const CodePointRange& range : ranges) {
    const CodePointRange below{range.first, std::min<char32_t>(range.last, kFirstSurrogate - 1)};
    const CodePointRange above{std::max<char32_t>(range.first, kLastSurrogate + 1),
                               std::min(range.last, kLastCodePoint)};
    if (below.first <= below.last) cut.push_back(below);
    if (above.first <= above.last) cut.push_back(above);
  }
  std::sort(cut.begin(), cut.end(), [](const CodePointRange& a, const CodePointRange& b) {
    return std::pair(a.first, a.last) < std::pair(b.first, b.last);
  });
  std::vector<CodePointRange> normal;
  for (const CodePointRange& range : cut) {
    if (!normal.empty() && range.first <= normal.back().last + 1) {
      normal.back().last = std::max(normal.back().last, range.last);
    } else {
      normal.push_back(range);
    }
  }
  return normal;
}

std::vector<CodePointRange> ComplementRanges(std::vector<CodePointRange> ranges) {
  std::vector<CodePointRange> others;
  char32_t next = 0;
  for (const CodePointRange& range : NormalRanges(std::move(ranges))) {
    if (next < range.first) others.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastCodePoint) others.push_back({next, kLastCodePoint});
  return NormalRanges(std::move(others));
}

Dfa CodePointDfa(std::vector<CodePointRange> ranges) {
  ranges = NormalRanges(std::move(ranges));
  Utf8Builder builder;
  builder.Add(ranges, 0, 0x7f, 0, 0);
  builder.Add(ranges, 0x80, 0x7ff, 0xc0, 1);
  builder.Add(ranges, 0x800, 0xffff, 0xe0, 2);
  builder.Add(ranges, 0x10000, kLastCodePoint, 0xf0, 3);
  return Dfa(builder.Build());
}

void AppendUtf8(char32_t code, std::string& text) {
  Check(code <= kLastCodePoint && (code < kFirstSurrogate || code > kLastSurrogate),
        "a code point that UTF-8 has");
  const auto tail = [&](int shift) { text += static_cast<char>(0x80 | (code >> shift & 0x3f)); };
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += static_cast<char>(0xc0 | code >> 6);
    tail(0);
  } else if (code < 0x10000) {
    text += static_cast<char>(0xe0 | code >> 12);
    tail(6);
    tail(0);
  } else {
    text += static_cast<char>(0xf0 | code >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

}  // namespace ovq::constraint
