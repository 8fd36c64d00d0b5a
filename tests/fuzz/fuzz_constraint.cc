// Fuzzes the sources of constraints: each is refused with a message, or compiled within its limits.
// A compiled one is walked along tokens that its masks allow: there is no dead end, places do not
// depend on the cache, and memory is bounded.
//
// An input is the kind of the source, its text up to a byte 0 (for a choice, a text a line), and
// the tokens of the walk.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/text.h"
#include "model/constraint/matcher.h"
#include "tests/fuzz/bytes.h"

namespace ovq::fuzz {
namespace {

using constraint::Matcher;
using constraint::Place;
using constraint::Source;
using constraint::TokenMask;
using constraint::Vocabulary;

constexpr size_t kCacheBytes = size_t{1} << 20;
// A call may add as much; see Matcher.
constexpr size_t kMaxBytes = kCacheBytes + (size_t{192} << 20);

std::shared_ptr<const Vocabulary> MakeVocabulary() {
  std::vector<std::string> texts;
  for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
  for (const std::string text : {"a", "b", "1", "\"", "{", "}", "[", "é", "中", "😀", " ", "\n"}) {
    for (const std::string other : {"a", "1", "\"", "\\", "{\"", "\":", "中", " ", ",", ""}) {
      texts.push_back(text + other);
      texts.push_back(text + other + other + text);
    }
  }
  texts.insert(texts.end(), {"true", "false", "null", "\": \"", "\"},", "2024-02-29", ""});
  const auto end = static_cast<int32_t>(texts.size()) - 1;
  return std::make_shared<const Vocabulary>(texts, std::vector<int32_t>{end});
}

void CheckMask(const Vocabulary& vocabulary, const Place& place, const TokenMask& mask) {
  int64_t n_allowed = 0;
  for (int32_t id = 0; id < vocabulary.size(); ++id) n_allowed += mask.Allows(id) ? 1 : 0;
  Check(n_allowed == mask.n_allowed, "the mask counts its tokens");
  Check(n_allowed > 0 || !place.may_go_on(), "there is no dead end");
  Check(place.may_end() == mask.Allows(vocabulary.ends()[0]), "a text may end where it is one");
}

void Walk(const std::shared_ptr<const constraint::Automaton>& automaton, Bytes& bytes) {
  static const std::shared_ptr<const Vocabulary> vocabulary = MakeVocabulary();
  Matcher matcher(automaton, vocabulary, kCacheBytes), other(automaton, vocabulary, 0);
  Place place = matcher.Begin();
  Check(place.may_end() || place.may_go_on(), "the language has a text");
  for (int step = 0; step < 60 && !bytes.empty() && place.may_go_on(); ++step) {
    const std::shared_ptr<const TokenMask> mask = matcher.Mask(place);
    Check(matcher.bytes() <= kMaxBytes, "a mask's memory is bounded");
    if (matcher.exhausted()) return;
    CheckMask(*vocabulary, place, *mask);
    if (step % 16 == 0) {
      Check(other.Mask(place)->bits == mask->bits, "a mask does not depend on the cache");
    }
    auto token = static_cast<int32_t>((256 * bytes.Byte() + bytes.Byte()) % vocabulary->size());
    for (int i = 0;
         i < vocabulary->size() && !(mask->Allows(token) && token != vocabulary->ends()[0]); ++i) {
      token = (token + 1) % static_cast<int32_t>(vocabulary->size());
    }
    const std::optional<Place> next = matcher.Advance(place, token);
    if (!next) {
      Check(matcher.exhausted(), "an allowed token leads on");
      return;
    }
    Check(next->may_end() || next->may_go_on(), "a place is no dead end");
    place = *next;
  }
}

}  // namespace
}  // namespace ovq::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ovq;
  fuzz::Bytes bytes(data, size);
  constraint::Source source;
  source.kind = static_cast<constraint::Source::Kind>(bytes.Upto(4));
  source.text = std::string(bytes.Word());
  if (source.kind == constraint::Source::Kind::kChoice) {
    source.choices = absl::StrSplit(source.text, '\n');
    source.text.clear();
  }
  if (source.kind == constraint::Source::Kind::kJsonObject) source.text.clear();
  constraint::Limits limits;
  limits.compile_steps = 200000;
  limits.nodes = 5000;
  limits.dfa_states = 5000;
  limits.literal_bytes = 10000;
  constraint::Grammar grammar;
  const absl::StatusOr<constraint::Grammar::Node> root =
      constraint::AddSource(source, grammar, limits);
  if (!root.ok()) {
    Check(!root.status().message().empty(), "an error says what is wrong");
    Check(!FirstInvalidUtf8(std::string(root.status().message())), "an error is UTF-8");
    return 0;
  }
  grammar.SetRoot(*root);
  const auto automaton = constraint::CompileGrammar(grammar, limits);
  if (!automaton.ok()) {
    Check(!automaton.status().message().empty(), "an error says what is wrong");
    return 0;
  }
  fuzz::Walk(*automaton, bytes);
  return 0;
}
