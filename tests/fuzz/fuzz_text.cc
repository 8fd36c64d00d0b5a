// Fuzzes the processing of an answer's text: stop strings in text that comes in parts, tokens whose
// bytes are not whole characters, and both together, token by token. The result does not depend on
// how the text is split.
#include <algorithm>
#include <span>

#include "absl/strings/ascii.h"
#include "base/check.h"
#include "base/text.h"
#include "model/logits_reader.h"
#include "server/engine/common/answer.h"
#include "tests/fuzz/bytes.h"

namespace ovq::fuzz {
namespace {

struct Cut {
  std::string text;
  std::optional<std::string> matched;
  bool operator==(const Cut&) const = default;
};

// Splits the text into parts whose lengths `next` returns.
template <class Next>
Cut Match(const std::vector<std::string>& strings, bool include, std::string_view text, Next next) {
  engine::StopMatcher matcher(strings, include);
  Cut cut;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, next());
    text.remove_prefix(part.size());
    engine::StopMatcher::Result result = matcher.Push(part);
    cut.text += result.text;
    if (result.matched) {
      cut.matched = result.matched;
      return cut;
    }
  }
  cut.text += matcher.Flush();
  return cut;
}

// Naive search at each byte: the first end of any string; of several with one end, the longest.
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
  for (std::string& string : strings)
    string = bytes.ReadBytes(static_cast<size_t>(1 + bytes.Upto(6)));
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

constexpr int64_t kVocab = 260;

const model::Tokenizer& OfBytes() {
  model::ModelConfig config;
  config.vocab_size = kVocab;
  config.tokenizer = model::TokenizerKind::kBytes;
  static const absl::StatusOr<std::unique_ptr<model::Tokenizer>> tokenizer =
      model::Tokenizer::Load("", config);
  Check(tokenizer.ok(), "a tokenizer of bytes");
  return **tokenizer;
}

std::vector<int32_t> Ids(Bytes& bytes) {
  std::vector<int32_t> ids;
  while (!bytes.empty()) ids.push_back(bytes.Byte() + (bytes.Upto(31) == 0 ? 4 : 0));
  return ids;
}

void Tokens(Bytes& bytes) {
  const model::Tokenizer& tokenizer = OfBytes();
  const std::vector<int32_t> ids = Ids(bytes);
  model::Detokenizer detokenizer(&tokenizer);
  std::string text;
  for (const int32_t id : ids) {
    const std::string part = detokenizer.Push(id);
    Check(!FirstInvalidUtf8(part), "every part is whole characters");
    text += part;
  }
  text += detokenizer.Finish();
  const absl::StatusOr<std::string> whole = tokenizer.Decode(ids);
  Check(whole.ok() && *whole == text, "one by one and all at once");
  const absl::StatusOr<std::vector<int32_t>> again = tokenizer.Encode(text, false);
  const absl::StatusOr<std::string> round = again.ok() ? tokenizer.Decode(*again) : again.status();
  Check(round.ok() && *round == text, "valid text comes back as it is");
}

engine::GenerateRequest MakeGenerateRequest(Bytes& bytes) {
  engine::GenerateRequest request;
  engine::StopConditions& stop = request.stop;
  stop.include_stop_text = bytes.Upto(1) == 1;
  stop.ignore_eos = bytes.Upto(1) == 1;
  stop.max_tokens = 1 + bytes.Byte();
  stop.min_tokens = bytes.Upto(7);
  stop.strings.resize(static_cast<size_t>(bytes.Upto(3)));
  for (std::string& string : stop.strings)
    string = bytes.ReadBytes(static_cast<size_t>(1 + bytes.Upto(6)));
  // Stop strings in messages are valid text.
  std::erase_if(stop.strings, [](const std::string& string) {
    return string.empty() || FirstInvalidUtf8(string);
  });
  for (int i = bytes.Upto(2); i > 0; --i) stop.token_ids.push_back(bytes.Byte());
  request.output.logprobs = bytes.Upto(1) == 1;
  request.output.top_logprobs = bytes.Upto(2);
  return request;
}

// Compares with a naive search in the whole text of the accepted tokens.
void Answer(Bytes& bytes) {
  const std::vector<int32_t> eos = {257};
  engine::EngineModel model;
  model.vocab_size = kVocab;
  model.eos_token_ids = eos;
  model.tokenizer = &OfBytes();
  const engine::GenerateRequest request = MakeGenerateRequest(bytes);
  const engine::StopConditions& stop = request.stop;
  const std::vector<int32_t> ids = Ids(bytes);
  const size_t prompt = std::min<size_t>(ids.size(), 3);
  engine::RunningAnswer answer(request, 0, 1, model);
  answer.ObservePrompt(std::span(ids).first(prompt));
  model::Detokenizer detokenizer(&OfBytes(), /*at_start=*/false);
  detokenizer.Precede(std::span(ids).first(prompt));
  std::string text, whole;
  std::optional<engine::Finished> finished;
  for (size_t i = prompt; i < ids.size() && !finished; ++i) {
    model::Sampled drawn;
    drawn.token_id = ids[i];
    drawn.top.resize(static_cast<size_t>(request.output.top_logprobs));
    engine::StreamEvent event;
    answer.AddDraw(std::move(drawn), event);
    Check(event.chunk->token_ids.size() == 1, "a token at a time");
    Check(event.chunk->logprobs.size() == (request.output.logprobs ? 1u : 0u), "if asked for");
    Check(!FirstInvalidUtf8(event.chunk->text), "every part is whole characters");
    text += event.chunk->text;
    finished = std::move(event.finished);
    const bool is_eos = ids[i] == eos[0];
    const bool is_stop = is_eos || std::ranges::count(stop.token_ids, ids[i]) > 0;
    if (!is_stop || (stop.include_stop_text && !is_eos)) whole += detokenizer.Push(ids[i]);
    Check(!is_stop || finished, "a stop token ends it");
    Check(answer.generated() <= stop.max_tokens, "and so does its length");
  }
  if (finished) whole += detokenizer.Finish();
  const Cut expected = Naive(stop.strings, stop.include_stop_text, whole);
  if (finished) {
    Check(finished->matched_stop == expected.matched.value_or(""),
          "the stop string that ends first");
    Check(text == expected.text, "what is before it");
  } else {
    Check(!expected.matched && whole.starts_with(text), "what is certain so far");
  }
}

// Fuzzes names from outside as they appear in messages.
void Names(Bytes& bytes) {
  const std::string_view name = bytes.Rest();
  const std::string quoted = Quoted(name);
  Check(!FirstInvalidUtf8(quoted) && quoted.find('\n') == quoted.npos, "one line of text");
  Check(quoted.size() <= 4 * 120 + 5, "of a length that a message can bear");
  const bool plain = !name.empty() && name.size() <= 64 && std::ranges::all_of(name, [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  });
  Check(IsName(name) == plain, "a name is what it is said to be");
}

}  // namespace
}  // namespace ovq::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 4096) return 0;  // the naive search takes quadratic time
  ovq::fuzz::Bytes bytes(data, size);
  switch (bytes.Upto(3)) {
    case 0:
      ovq::fuzz::StopStrings(bytes);
      break;
    case 1:
      ovq::fuzz::Tokens(bytes);
      break;
    case 2:
      ovq::fuzz::Answer(bytes);
      break;
    default:
      ovq::fuzz::Names(bytes);
  }
  return 0;
}
