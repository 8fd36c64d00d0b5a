#include "model/tokenizers/decoder.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "model/tokenizers/byte_alphabet.h"
#include "model/tokenizers/chars.h"
#include "model/tokenizers/metaspace.h"

namespace ovq::model {
namespace {

using Kind = DecoderStage::Kind;

void ReadFields(JsonFields& fields, DecoderStage& stage) {
  switch (stage.kind) {
    case Kind::kReplace: {
      absl::StatusOr<Matcher> matcher = ReadPattern(fields, "pattern");
      if (!matcher.ok()) {
        fields.Fail("pattern", std::string(matcher.status().message()));
        return;
      }
      stage.matcher = *std::move(matcher);
      stage.literal = fields.Child("pattern").StringOr("String", "");
      stage.content = fields.String("content");
      return;
    }
    case Kind::kStrip:
      stage.literal = fields.String("content");
      stage.start = fields.IntOr("start", 0, 0, INT32_MAX);
      stage.stop = fields.IntOr("stop", 0, 0, INT32_MAX);
      if (fields.status().ok() && CountChars(stage.literal) != 1) {
        fields.Fail("content", absl::StrCat("expected one character, got ", Quoted(stage.literal)));
      }
      return;
    case Kind::kMetaspace: {
      const Metaspace metaspace = Metaspace::Read(fields);
      stage.literal = metaspace.replacement;
      stage.flag = metaspace.scheme != PrependScheme::kNever;
      return;
    }
    case Kind::kWordPiece:
      stage.literal = fields.StringOr("prefix", "##");
      stage.flag = fields.BoolOr("cleanup", true);
      return;
    case Kind::kBpe:
      stage.literal = fields.StringOr("suffix", "</w>");
      return;
    default:
      return;
  }
}

// The byte of a token <0xAB>; -1 for other tokens.
int FallbackByte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return -1;
  unsigned byte = 0;
  const char* const end = token.data() + 5;
  const auto [parsed, error] = std::from_chars(token.data() + 3, end, byte, 16);
  return error == std::errc() && parsed == end ? static_cast<int>(byte) : -1;
}

std::string Replaced(const DecoderStage& stage, std::string_view token, size_t most) {
  std::string text(token);
  // A token stays as it is if the regex engine gives up on it, or if it would grow beyond `most`
  // bytes: tokens are not text of a request.
  if (!ReplaceAll(stage.matcher, stage.content, most, text).ok()) text = std::string(token);
  return text;
}

std::string Stripped(const DecoderStage& stage, std::string_view token) {
  for (int64_t i = 0; i < stage.start && token.starts_with(stage.literal); ++i) {
    token.remove_prefix(stage.literal.size());
  }
  for (int64_t i = 0; i < stage.stop && token.ends_with(stage.literal); ++i) {
    token.remove_suffix(stage.literal.size());
  }
  return std::string(token);
}

std::string WithBlanks(const DecoderStage& stage, std::string_view token, bool first) {
  const char* blank = first && stage.flag ? "" : " ";
  return absl::StrReplaceAll(std::string(token), {{stage.literal, blank}});
}

std::string FromWordPiece(const DecoderStage& stage, std::string_view token, bool first) {
  std::string text(token);
  if (!first) {
    const bool continues = text.starts_with(stage.literal);
    text = continues ? text.substr(stage.literal.size()) : absl::StrCat(" ", text);
  }
  if (!stage.flag) return text;
  // The library's cleanup: one replacement after the other.
  for (const auto& [from, to] :
       std::initializer_list<std::pair<const char*, const char*>>{{" .", "."},
                                                                  {" ?", "?"},
                                                                  {" !", "!"},
                                                                  {" ,", ","},
                                                                  {" ' ", "'"},
                                                                  {" n't", "n't"},
                                                                  {" 'm", "'m"},
                                                                  {" do not", " don't"},
                                                                  {" 's", "'s"},
                                                                  {" 've", "'ve"},
                                                                  {" 're", "'re"}}) {
    text = absl::StrReplaceAll(text, {{from, to}});
  }
  return text;
}

std::string WithoutSuffix(const DecoderStage& stage, const std::string& token,
                          const char* instead) {
  return stage.literal.empty() ? token : absl::StrReplaceAll(token, {{stage.literal, instead}});
}

// Number of bytes at the end of `text` that may begin `literal`.
size_t BeginningAtEnd(std::string_view text, std::string_view literal) {
  size_t n = std::min(text.size(), literal.size() - 1);
  while (n > 0 && text.substr(text.size() - n) != literal.substr(0, n)) --n;
  return n;
}

}  // namespace

absl::StatusOr<TokenDecoder> TokenDecoder::Read(JsonFields& file, std::string_view key) {
  // In the order of DecoderStage::Kind; Sequence stands in the place of kJoin, which no file names.
  static constexpr std::string_view kTypes[] = {"Sequence",     "ByteLevel", "Replace",
                                                "ByteFallback", "Fuse",      "Strip",
                                                "Metaspace",    "WordPiece", "BPEDecoder"};
  TokenDecoder decoder;
  std::vector<DecoderStage>& stages = decoder.stages_;
  const auto read = [&stages](size_t type, JsonFields& fields, bool) {
    DecoderStage stage;
    stage.kind = static_cast<Kind>(type);
    if (!stages.empty()) {
      const DecoderStage& before = stages.back();
      stage.fused = before.fused || before.kind == Kind::kFuse || before.kind == Kind::kByteLevel;
    }
    ReadFields(fields, stage);
    stages.push_back(std::move(stage));
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(ReadStages(file, key, "decoders", kTypes, read));
  if (!file.Has(key)) stages.emplace_back();
  return decoder;
}

bool TokenDecoder::reads_bytes() const {
  return std::ranges::find(stages_, Kind::kByteLevel, &DecoderStage::kind) != stages_.end();
}

std::string TokenDecoder::Bytes(std::string_view token) const {
  for (const DecoderStage& stage : stages_) {
    if (stage.kind == Kind::kByteLevel) return CharsToBytes(token).value_or(std::string(token));
    const int byte = stage.kind == Kind::kByteFallback ? FallbackByte(token) : -1;
    if (byte >= 0) return {static_cast<char>(byte)};
  }
  DecodeStream stream(*this, /*at_start=*/false);
  const std::string text = stream.Push(token);
  return text + stream.Finish();
}

DecodeStream::DecodeStream(const TokenDecoder& decoder, bool at_start) : decoder_(decoder) {
  for (const DecoderStage& stage : decoder.stages()) {
    states_.push_back({.first = at_start, .left = at_start ? stage.start : 0});
  }
}

std::string DecodeStream::Push(std::string_view token) {
  most_ = MostBytes(token.size());
  Process(0, token);
  return std::exchange(text_, {});
}

std::string DecodeStream::Finish() {
  size_t held = 0;
  for (const State& state : states_) held += state.held.size();
  most_ = MostBytes(held);
  for (size_t stage = 0; stage < states_.size(); ++stage) End(stage);
  return std::exchange(text_, {});
}

void DecodeStream::Forget() {
  for (size_t i = 0; i < states_.size(); ++i) {
    const DecoderStage& stage = decoder_.stages()[i];
    State& state = states_[i];
    state.left = 0;
    state.first = false;
    const bool bytes = stage.kind == Kind::kByteLevel || stage.kind == Kind::kByteFallback;
    if (bytes && !stage.fused) {
      ConsumeUtf8(state.held);
    } else if (stage.kind == Kind::kBpe && !stage.fused) {
      state.held = state.held.ends_with(stage.literal) ? stage.literal : "";
    } else {
      state.held.clear();
    }
  }
  text_.clear();
}

void DecodeStream::Process(size_t i, std::string_view token) {
  if (i == states_.size()) {
    text_ += token;
    return;
  }
  const DecoderStage& stage = decoder_.stages()[i];
  if (stage.fused) return ProcessFragment(i, token);
  State& state = states_[i];
  const bool first = std::exchange(state.first, false);
  switch (stage.kind) {
    case Kind::kJoin:
      return Emit(i, first ? std::string(token) : absl::StrCat(" ", std::string(token)));
    case Kind::kByteLevel:
      state.held += CharsToBytes(token).value_or(std::string(token));
      return Emit(i, ConsumeUtf8(state.held));
    case Kind::kReplace:
      return Emit(i, Replaced(stage, token, most_));
    case Kind::kByteFallback:
      return ProcessByteFallback(i, token);
    case Kind::kFuse:
      return Emit(i, token);
    case Kind::kStrip:
      return Emit(i, Stripped(stage, token));
    case Kind::kMetaspace:
      return Emit(i, WithBlanks(stage, token, first));
    case Kind::kWordPiece:
      return Emit(i, FromWordPiece(stage, token, first));
    case Kind::kBpe:
      if (std::exchange(state.holds, true)) Emit(i, WithoutSuffix(stage, state.held, " "));
      state.held = std::string(token);
  }
}

// Processes a fragment of the single token that is the whole text. What a part cannot decide waits
// for the end.
void DecodeStream::ProcessFragment(size_t i, std::string_view text) {
  const DecoderStage& stage = decoder_.stages()[i];
  if (stage.kind == Kind::kFuse) return Emit(i, text);
  if (stage.kind == Kind::kStrip) return ProcessStrip(i, text);
  if (stage.kind == Kind::kReplace && !stage.literal.empty()) return ProcessReplace(i, text);
  if (stage.kind == Kind::kMetaspace) return Emit(i, WithBlanks(stage, text, states_[i].first));
  states_[i].held += text;
}

void DecodeStream::ProcessReplace(size_t i, std::string_view text) {
  const DecoderStage& stage = decoder_.stages()[i];
  std::string& held = states_[i].held;
  held += text;
  std::string ready;
  const size_t most = std::max(most_, held.size());
  size_t done = 0;
  for (size_t at = held.find(stage.literal); at != std::string::npos;
       at = held.find(stage.literal, done)) {
    ready.append(held, done, at - done);
    done = at + stage.literal.size();
    const bool fits = ready.size() + stage.content.size() + (held.size() - done) <= most;
    ready += fits ? stage.content : stage.literal;
  }
  held.erase(0, done);
  const size_t waits = BeginningAtEnd(held, stage.literal);
  ready.append(held, 0, held.size() - waits);
  held.erase(0, held.size() - waits);
  Emit(i, ready);
}

void DecodeStream::ProcessStrip(size_t i, std::string_view text) {
  const DecoderStage& stage = decoder_.stages()[i];
  State& state = states_[i];
  for (; state.left > 0 && text.starts_with(stage.literal); --state.left) {
    text.remove_prefix(stage.literal.size());
  }
  if (text.empty()) return;
  state.left = 0;
  state.held += text;
  std::string_view ready = state.held;
  for (int64_t n = 0; n < stage.stop && ready.ends_with(stage.literal); ++n) {
    ready.remove_suffix(stage.literal.size());
  }
  Emit(i, std::string(ready));
  state.held.erase(0, ready.size());
}

void DecodeStream::ProcessByteFallback(size_t i, std::string_view token) {
  const int byte = FallbackByte(token);
  if (byte >= 0) {
    states_[i].held += static_cast<char>(byte);
    return;
  }
  FlushBytes(i);
  Emit(i, token);
}

// A run of byte tokens is text as a whole or not at all.
void DecodeStream::FlushBytes(size_t i) {
  const std::string bytes = std::exchange(states_[i].held, {});
  if (bytes.empty()) return;
  if (!FirstInvalidUtf8(bytes)) return Emit(i, bytes);
  for (size_t n = 0; n < bytes.size(); ++n) Emit(i, kReplacementCharacter);
}

void DecodeStream::End(size_t i) {
  const DecoderStage& stage = decoder_.stages()[i];
  State& state = states_[i];
  const std::string held = state.held;
  if (stage.kind == Kind::kByteFallback && !stage.fused) return FlushBytes(i);
  state.held.clear();
  if (stage.kind == Kind::kBpe && !stage.fused) {
    if (std::exchange(state.holds, false)) Emit(i, WithoutSuffix(stage, held, ""));
    return;
  }
  if (held.empty()) return;
  if (!stage.fused) return Emit(i, kReplacementCharacter);  // kByteLevel: an unfinished character
  switch (stage.kind) {
    case Kind::kStrip:  // what the end loses
      return;
    case Kind::kReplace:
      return Emit(i, stage.literal.empty() ? Replaced(stage, held, most_) : held);
    case Kind::kByteLevel: {
      std::string bytes = CharsToBytes(held).value_or(held);
      const std::string text = ConsumeUtf8(bytes);
      return Emit(i, text + std::string(bytes.empty() ? "" : kReplacementCharacter));
    }
    case Kind::kByteFallback: {
      const int byte = FallbackByte(held);
      const std::string text(1, static_cast<char>(byte));
      if (byte < 0) return Emit(i, held);
      return Emit(i, byte < 0x80 ? std::string_view(text) : kReplacementCharacter);
    }
    case Kind::kWordPiece:
      return Emit(i, FromWordPiece(stage, held, state.first));
    case Kind::kBpe:
      return Emit(i, WithoutSuffix(stage, held, ""));
    default:
      return Emit(i, held);
  }
}

}  // namespace ovq::model
