// What an answer's text goes through: stop strings in a text that comes in parts, and tokens whose
// bytes are no whole characters. However either is cut, the same comes out.
#include "base/check.h"
#include "base/text.h"
#include "server/engine/answer.h"
#include "tests/fuzz/bytes.h"

namespace ovq::fuzz {
namespace {

struct Cut {
  std::string text;
  std::optional<std::string> matched;
  bool operator==(const Cut&) const = default;
};

// Parts of the lengths that `next` says.
template <class Next>
Cut Match(const std::vector<std::string>& strings, bool include, std::string_view text, Next next) {
  StopMatcher matcher(strings, include);
  Cut cut;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, next());
    text.remove_prefix(part.size());
    StopMatcher::Result result = matcher.Push(part);
    cut.text += result.text;
    if (result.matched) {
      cut.matched = result.matched;
      return cut;
    }
  }
  cut.text += matcher.Flush();
  return cut;
}

// The first end of any of them, of several that end together the longest: looked for at each byte.
Cut Naive(const std::vector<std::string>& strings, bool include, std::string_view text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    const std::string* longest = nullptr;
    for (const std::string& string : strings) {
      if (text.substr(0, end).ends_with(string) &&
          (longest == nullptr || string.size() > longest->size())) {
        longest = &string;
      }
    }
    if (longest == nullptr) continue;
    const size_t kept = include ? end : end - longest->size();
    return {std::string(text.substr(0, kept)), *longest};
  }
  return {std::string(text), {}};
}

void StopStrings(Bytes& bytes) {
  const bool include = bytes.Upto(1) == 1;
  std::vector<std::string> strings(static_cast<size_t>(1 + bytes.Upto(3)));
  for (std::string& string : strings) string = bytes.Take(static_cast<size_t>(1 + bytes.Upto(6)));
  std::erase(strings, "");
  if (strings.empty()) return;
  Bytes lengths = bytes;
  const std::string_view text = bytes.Rest();
  const Cut expected = Naive(strings, include, text);
  Check(Match(strings, include, text, [&] { return size_t{1}; }) == expected, "byte by byte");
  Check(Match(strings, include, text, [&] { return text.size(); }) == expected, "all at once");
  Check(Match(strings, include, text, [&] { return static_cast<size_t>(1 + lengths.Upto(4)); }) ==
            expected,
        "in parts");
}

void Tokens(Bytes& bytes) {
  ModelConfig config;
  config.vocab_size = 260;
  config.tokenizer = TokenizerKind::kBytes;
  static const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load("", config);
  Check(tokenizer.ok(), "a tokenizer of bytes");
  std::vector<int32_t> ids;
  while (!bytes.empty()) ids.push_back(bytes.Byte() + (bytes.Upto(31) == 0 ? 4 : 0));
  Detokenizer detokenizer(tokenizer->get());
  std::string text;
  for (const int32_t id : ids) {
    const std::string part = detokenizer.Push(id);
    Check(!FirstInvalidUtf8(part), "every part is whole characters");
    text += part;
  }
  text += detokenizer.Finish();
  const absl::StatusOr<std::string> whole = (*tokenizer)->Decode(ids);
  Check(whole.ok() && *whole == text, "one by one and all at once");
  const absl::StatusOr<std::vector<int32_t>> again = (*tokenizer)->Encode(text, false);
  const absl::StatusOr<std::string> round =
      again.ok() ? (*tokenizer)->Decode(*again) : again.status();
  Check(round.ok() && *round == text, "valid text comes back as it is");
}

}  // namespace
}  // namespace ovq::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 4096) return 0;  // the naive search takes their square
  ovq::fuzz::Bytes bytes(data, size);
  if (bytes.Upto(1) == 0) {
    ovq::fuzz::StopStrings(bytes);
  } else {
    ovq::fuzz::Tokens(bytes);
  }
  return 0;
}
