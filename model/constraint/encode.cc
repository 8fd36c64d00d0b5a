// Languages of code points as automata over bytes.
#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/status_macros.h"
#include "model/constraint/regular.h"

namespace ovq::constraint {
namespace {

// The bytes of code points, as a graph without circles whose leaves are classes of an alphabet.
// Equal nodes are one.
class ByteGraph {
 public:
  static constexpr int32_t kNone = -1;
  static int32_t Leaf(int32_t code_class) { return -2 - code_class; }
  static bool IsLeaf(int32_t node) { return node <= -2; }
  static int32_t Class(int32_t leaf) { return -2 - leaf; }
  struct Edge {
    uint8_t first, last;
    int32_t to;  // a node, or a leaf
    auto operator<=>(const Edge&) const = default;
  };
  using Edges = std::vector<Edge>;

  ByteGraph(const Alphabet& alphabet, Encoding encoding) : alphabet_(alphabet) {
    Edges root;
    for (uint32_t byte = 0; byte < 0x80; ++byte) {
      const bool is_escaped = byte < 0x20 || byte == '"' || byte == '\\';
      if (encoding == Encoding::kUtf8 || !is_escaped) {
        Append(root, byte, Block(byte, 0, 0));
      } else if (byte == '\\') {
        Append(root, byte, Escapes());
      }
    }
    for (uint32_t byte = 0xc2; byte < 0xe0; ++byte) {
      Append(root, byte, Block((byte & 0x1f) << 6, 1, 0));
    }
    for (uint32_t byte = 0xe0; byte < 0xf0; ++byte) {
      Append(root, byte, Block((byte & 0x0f) << 12, 2, 0x800));
    }
    for (uint32_t byte = 0xf0; byte < 0xf5; ++byte) {
      Append(root, byte, Block((byte & 0x07) << 18, 3, 0x10000));
    }
    root_ = Node(std::move(root));
  }

  int32_t root() const { return root_; }
  const Edges& edges(int32_t node) const { return nodes_[node]; }

 private:
  static void Append(Edges& edges, uint32_t byte, int32_t to) {
    if (to == kNone) return;
    const auto value = static_cast<uint8_t>(byte);
    if (!edges.empty() && edges.back().to == to && edges.back().last + 1 == value) {
      edges.back().last = value;
    } else {
      edges.push_back({value, value, to});
    }
  }

  int32_t Node(Edges edges) {
    if (edges.empty()) return kNone;
    const auto [found, is_new] = known_.try_emplace(edges, static_cast<int32_t>(nodes_.size()));
    if (is_new) nodes_.push_back(std::move(edges));
    return found->second;
  }

  // The code points from `first` on that share all but their last `n` bytes; those below `least`
  // are written in fewer bytes.
  int32_t Block(uint32_t first, int n, uint32_t least) {
    const uint32_t last = first + (1u << (6 * n)) - 1;
    if (last < least || first > kLastCodePoint) return kNone;
    const auto& segments = alphabet_.segments();
    const auto after = std::upper_bound(
        segments.begin(), segments.end(), first,
        [](uint32_t code, const Alphabet::Segment& segment) { return code < segment.first; });
    const int32_t code_class = std::prev(after)->code_class;
    const bool is_uniform = first >= least && (after == segments.end() || after->first > last);
    if (is_uniform && code_class < 0) return kNone;
    if (n == 0) return Leaf(code_class);
    if (is_uniform) {
      const auto found = uniform_.find({code_class, n});
      if (found != uniform_.end()) return found->second;
    }
    Edges edges;
    for (uint32_t i = 0; i < 64; ++i) {
      Append(edges, 0x80 + i, Block(first + (i << (6 * (n - 1))), n - 1, least));
    }
    const int32_t node = Node(std::move(edges));
    if (is_uniform) uniform_[{code_class, n}] = node;
    return node;
  }

  // The rest of an escape behind its backslash.
  int32_t Escapes() {
    std::map<uint32_t, uint32_t> letters = {{'"', '"'},  {'\\', '\\'}, {'b', '\b'}, {'f', '\f'},
                                            {'n', '\n'}, {'r', '\r'},  {'t', '\t'}};
    const auto hex = [&](uint32_t high) {
      Edges edges;
      for (uint32_t low = 0; low < 16; ++low) {
        const uint32_t code = high << 4 | low;
        const bool has_letter = (code >= 8 && code <= 10) || code == 12 || code == 13;
        if (!has_letter) Append(edges, "0123456789abcdef"[low], Block(code, 0, 0));
      }
      return Node(std::move(edges));
    };
    Edges fourth;
    Append(fourth, '0', hex(0));
    Append(fourth, '1', hex(1));
    int32_t digits = Node(std::move(fourth));
    for (int i = 0; i < 2 && digits != kNone; ++i) digits = Node({{'0', '0', digits}});
    Edges edges;
    for (uint32_t byte = 0; byte < 0x80; ++byte) {
      if (const auto letter = letters.find(byte); letter != letters.end()) {
        Append(edges, byte, Block(letter->second, 0, 0));
      } else if (byte == 'u') {
        Append(edges, byte, digits);
      }
    }
    return Node(std::move(edges));
  }

  const Alphabet& alphabet_;
  std::map<Edges, int32_t> known_;
  std::map<std::pair<int32_t, int>, int32_t> uniform_;
  std::vector<Edges> nodes_;
  int32_t root_ = kNone;
};

class Encoder {
 public:
  Encoder(const Language& language, Encoding encoding, Budget& budget)
      : language_(language), graph_(language.alphabet(), encoding), budget_(budget) {}

  // quoted: with quotes, which no edge of the graph's root may have.
  absl::StatusOr<Dfa> Run(bool quoted) {
    constexpr int32_t kBefore = 0;
    constexpr int32_t kBehind = 1;
    if (quoted) {
      states_.resize(2);
      states_[kBehind].accepts = true;
      pairs_.resize(2);
      const int32_t inside = Add(0, graph_.root());
      states_[kBefore].ranges.push_back({'"', '"', inside});
    } else {
      Add(0, graph_.root());
    }
    for (size_t i = quoted ? 2 : 0; i < states_.size(); ++i) {
      const auto [state, node] = pairs_[i];
      std::vector<Dfa::Range> ranges;
      int64_t steps = 1;
      if (node >= 0) {
        for (const ByteGraph::Edge& edge : graph_.edges(node)) {
          AppendRange(ranges, {edge.first, edge.last, Follow(state, edge.to)});
          ++steps;
        }
      }
      const bool is_whole = node == graph_.root() && language_.accepts(state);
      if (is_whole && quoted) {
        const auto behind = std::find_if(ranges.begin(), ranges.end(),
                                         [](const Dfa::Range& range) { return range.first > '"'; });
        ranges.insert(behind, {'"', '"', kBehind});
      }
      states_[i].ranges = std::move(ranges);
      states_[i].accepts = is_whole && !quoted;
      RETURN_IF_ERROR(budget_.Spend(steps));
      RETURN_IF_ERROR(budget_.CheckStates(static_cast<int64_t>(states_.size())));
    }
    return Dfa(std::move(states_));
  }

 private:
  int32_t Follow(int32_t state, int32_t node) {
    if (!ByteGraph::IsLeaf(node)) return Add(state, node);
    const int32_t to = language_.Next(state, ByteGraph::Class(node));
    return to < 0 ? -1 : Add(to, graph_.root());
  }

  int32_t Add(int32_t state, int32_t node) {
    const int64_t key = int64_t{state} << 32 | uint32_t(node);
    const auto [found, is_new] = ids_.try_emplace(key, static_cast<int32_t>(states_.size()));
    if (is_new) {
      states_.emplace_back();
      pairs_.emplace_back(state, node);
    }
    return found->second;
  }

  static void AppendRange(std::vector<Dfa::Range>& ranges, const Dfa::Range& range) {
    if (range.to < 0) return;
    if (!ranges.empty() && ranges.back().to == range.to && ranges.back().last + 1 == range.first) {
      ranges.back().last = range.last;
    } else {
      ranges.push_back(range);
    }
  }

  const Language& language_;
  const ByteGraph graph_;
  Budget& budget_;
  std::unordered_map<int64_t, int32_t> ids_;
  std::vector<std::pair<int32_t, int32_t>> pairs_;
  std::vector<Dfa::State> states_;
};

}  // namespace

absl::StatusOr<Dfa> Encode(const Language& language, Encoding encoding, Budget& budget) {
  RETURN_IF_ERROR(budget.Spend(static_cast<int64_t>(language.alphabet().segments().size()) * 64));
  return Encoder(language, encoding, budget).Run(encoding == Encoding::kJsonString);
}

absl::StatusOr<Dfa> ListedBytes(std::vector<std::string> texts, Budget& budget) {
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  int64_t n_bytes = 0;
  for (const std::string& text : texts) n_bytes += static_cast<int64_t>(text.size());
  RETURN_IF_ERROR(budget.Spend(n_bytes));

  // The path of the last text is open: its states may still get ranges. Behind where the next text
  // leaves it states are closed, the last one first, and equal ones are one.
  struct Less {
    bool operator()(const Dfa::State& a, const Dfa::State& b) const {
      if (a.accepts != b.accepts) return b.accepts;
      const auto key = [](const Dfa::Range& range) {
        return std::make_pair(range.first, range.to);
      };
      return std::lexicographical_compare(
          a.ranges.begin(), a.ranges.end(), b.ranges.begin(), b.ranges.end(),
          [&](const Dfa::Range& x, const Dfa::Range& y) { return key(x) < key(y); });
    }
  };
  std::map<Dfa::State, int32_t, Less> closed;
  std::vector<Dfa::State> open(1);
  std::vector<Dfa::State> states(1);  // the start is the last to be known
  const auto close_behind = [&](size_t depth) {
    while (open.size() > depth + 1) {
      const auto [found, is_new] =
          closed.try_emplace(open.back(), static_cast<int32_t>(states.size()));
      if (is_new) states.push_back(open.back());
      open.pop_back();
      open.back().ranges.back().to = found->second;
    }
  };
  std::string_view last;
  for (const std::string& text : texts) {
    const size_t common =
        std::mismatch(text.begin(), text.end(), last.begin(), last.end()).first - text.begin();
    close_behind(common);
    for (const char byte : text.substr(common)) {
      open.back().ranges.push_back({uint8_t(byte), uint8_t(byte), -1});
      open.emplace_back();
    }
    open.back().accepts = true;
    last = text;
    RETURN_IF_ERROR(budget.CheckStates(static_cast<int64_t>(states.size() + open.size())));
  }
  close_behind(0);
  states[0] = open[0];
  return Dfa(std::move(states));
}

}  // namespace ovq::constraint
