#include "model/tokenizers/decoder.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/text.h"
#include "model/tokenizers/byte_alphabet.h"
#include "model/tokenizers/chars.h"
#include "model/tokenizers/metaspace.h"

namespace ovq {
namespace {

using Kind = DecoderStep::Kind;

constexpr std::string_view kDecoderTypes[] = {"Sequence",     "ByteLevel", "Replace",
                                              "ByteFallback", "Fuse",      "Strip",
                                              "Metaspace",    "WordPiece", "BPEDecoder"};
constexpr Kind kKinds[] = {Kind::kJoin,         Kind::kByteLevel, Kind::kReplace,
                           Kind::kByteFallback, Kind::kFuse,      Kind::kStrip,
                           Kind::kMetaspace,    Kind::kWordPiece, Kind::kBpe};

void ReadFields(JsonFields& fields, DecoderStep& step) {
  switch (step.kind) {
    case Kind::kReplace: {
      absl::StatusOr<Matcher> matcher = ReadPattern(fields, "pattern");
      if (!matcher.ok()) {
        fields.Fail("pattern", std::string(matcher.status().message()));
        return;
      }
      step.matcher = *std::move(matcher);
      step.literal = fields.Child("pattern").StringOr("String", "");
      step.content = fields.String("content");
      return;
    }
    case Kind::kStrip:
      step.literal = fields.String("content");
      step.start = fields.IntOr("start", 0, 0, INT32_MAX);
      step.stop = fields.IntOr("stop", 0, 0, INT32_MAX);
      if (fields.status().ok() && CountChars(step.literal) != 1) {
        fields.Fail("content", absl::StrCat("expected one character, got ", Quoted(step.literal)));
      }
      return;
    case Kind::kMetaspace: {
      const Metaspace metaspace = Metaspace::Read(fields);
      step.literal = metaspace.replacement;
      step.flag = metaspace.scheme != PrependScheme::kNever;
      return;
    }
    case Kind::kWordPiece:
      step.literal = fields.StringOr("prefix", "##");
      step.flag = fields.BoolOr("cleanup", true);
      return;
    case Kind::kBpe:
      step.literal = fields.StringOr("suffix", "</w>");
      return;
    default:
      return;
  }
}

absl::Status Append(JsonFields fields, std::vector<DecoderStep>& steps) {
  const size_t type = fields.Choice("type", {std::begin(kDecoderTypes), std::end(kDecoderTypes)});
  if (!fields.status().ok()) return fields.status();
  if (kDecoderTypes[type] == "Sequence") {
    for (const JsonFields& child : fields.Children("decoders")) {
      if (absl::Status status = Append(child, steps); !status.ok()) return status;
    }
    return fields.status();
  }
  DecoderStep step;
  step.kind = kKinds[type];
  if (!steps.empty()) {
    const DecoderStep& before = steps.back();
    step.fused = before.fused || before.kind == Kind::kFuse || before.kind == Kind::kByteLevel;
  }
  ReadFields(fields, step);
  steps.push_back(std::move(step));
  return fields.status();
}

// <0xAB>; -1 for other tokens.
int FallbackByte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return -1;
  int byte = 0;
  for (char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return -1;
    byte = byte * 16 + digit;
  }
  return byte;
}

std::string Replaced(const DecoderStep& step, std::string_view token) {
  std::string text(token);
  // A token on which the regex engine gives up stays as it is: it is no text of a request.
  if (!ReplaceAll(step.matcher, step.content, text).ok()) text = std::string(token);
  return text;
}

std::string Stripped(const DecoderStep& step, std::string_view token) {
  for (int64_t i = 0; i < step.start && token.starts_with(step.literal); ++i) {
    token.remove_prefix(step.literal.size());
  }
  for (int64_t i = 0; i < step.stop && token.ends_with(step.literal); ++i) {
    token.remove_suffix(step.literal.size());
  }
  return std::string(token);
}

std::string WithBlanks(const DecoderStep& step, std::string_view token, bool first) {
  const char* blank = first && step.flag ? "" : " ";
  return absl::StrReplaceAll(std::string(token), {{step.literal, blank}});
}

std::string FromWordPiece(const DecoderStep& step, std::string_view token, bool first) {
  std::string text(token);
  if (!first) {
    const bool continues = text.starts_with(step.literal);
    text = continues ? text.substr(step.literal.size()) : absl::StrCat(" ", text);
  }
  if (!step.flag) return text;
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

std::string WithoutSuffix(const DecoderStep& step, const std::string& token, const char* instead) {
  return step.literal.empty() ? token : absl::StrReplaceAll(token, {{step.literal, instead}});
}

// Bytes at the end of `text` that may begin `literal`.
size_t BeginningAtEnd(std::string_view text, std::string_view literal) {
  size_t n = std::min(text.size(), literal.size() - 1);
  while (n > 0 && text.substr(text.size() - n) != literal.substr(0, n)) --n;
  return n;
}

}  // namespace

absl::StatusOr<TokenDecoder> TokenDecoder::Read(JsonFields& file, std::string_view key) {
  TokenDecoder decoder;
  if (!file.Has(key)) {
    decoder.steps_.emplace_back();
    return decoder;
  }
  const JsonFields fields = file.Child(key);
  if (!file.status().ok()) return file.status();
  if (absl::Status status = Append(fields, decoder.steps_); !status.ok()) return status;
  return decoder;
}

DecodeStream::DecodeStream(const TokenDecoder& decoder, bool at_start) : decoder_(decoder) {
  for (const DecoderStep& step : decoder.steps()) {
    states_.push_back({.first = at_start, .left = at_start ? step.start : 0});
  }
}

std::string DecodeStream::Push(std::string_view token) {
  Take(0, token);
  return std::exchange(text_, {});
}

std::string DecodeStream::Finish() {
  for (size_t step = 0; step < states_.size(); ++step) End(step);
  return std::exchange(text_, {});
}

void DecodeStream::Forget() {
  for (size_t i = 0; i < states_.size(); ++i) {
    const DecoderStep& step = decoder_.steps()[i];
    State& state = states_[i];
    state.left = 0;
    state.first = false;
    const bool bytes = step.kind == Kind::kByteLevel || step.kind == Kind::kByteFallback;
    if (bytes && !step.fused) {
      TakeUtf8(state.held);
    } else if (step.kind == Kind::kBpe && !step.fused) {
      state.held = state.held.ends_with(step.literal) ? step.literal : "";
    } else {
      state.held.clear();
    }
  }
  text_.clear();
}

void DecodeStream::Take(size_t i, std::string_view token) {
  if (i == states_.size()) {
    text_ += token;
    return;
  }
  const DecoderStep& step = decoder_.steps()[i];
  if (step.fused) return TakeFragment(i, token);
  State& state = states_[i];
  const bool first = std::exchange(state.first, false);
  switch (step.kind) {
    case Kind::kJoin:
      return Give(i, first ? std::string(token) : absl::StrCat(" ", std::string(token)));
    case Kind::kByteLevel:
      state.held += CharsToBytes(token).value_or(std::string(token));
      return Give(i, TakeUtf8(state.held));
    case Kind::kReplace:
      return Give(i, Replaced(step, token));
    case Kind::kByteFallback:
      return TakeFallback(i, token);
    case Kind::kFuse:
      return Give(i, token);
    case Kind::kStrip:
      return Give(i, Stripped(step, token));
    case Kind::kMetaspace:
      return Give(i, WithBlanks(step, token, first));
    case Kind::kWordPiece:
      return Give(i, FromWordPiece(step, token, first));
    case Kind::kBpe:
      if (std::exchange(state.holds, true)) Give(i, WithoutSuffix(step, state.held, " "));
      state.held = std::string(token);
  }
}

// Of the one token that the whole text is. What cannot be said of a part waits for the end.
void DecodeStream::TakeFragment(size_t i, std::string_view text) {
  const DecoderStep& step = decoder_.steps()[i];
  if (step.kind == Kind::kFuse) return Give(i, text);
  if (step.kind == Kind::kStrip) return TakeStripped(i, text);
  if (step.kind == Kind::kReplace && !step.literal.empty()) return TakeReplaced(i, text);
  if (step.kind == Kind::kMetaspace) return Give(i, WithBlanks(step, text, states_[i].first));
  states_[i].held += text;
}

void DecodeStream::TakeReplaced(size_t i, std::string_view text) {
  const DecoderStep& step = decoder_.steps()[i];
  std::string& held = states_[i].held;
  held += text;
  std::string ready;
  size_t done = 0;
  for (size_t at = held.find(step.literal); at != std::string::npos;
       at = held.find(step.literal, done)) {
    ready.append(held, done, at - done).append(step.content);
    done = at + step.literal.size();
  }
  held.erase(0, done);
  const size_t waits = BeginningAtEnd(held, step.literal);
  ready.append(held, 0, held.size() - waits);
  held.erase(0, held.size() - waits);
  Give(i, ready);
}

void DecodeStream::TakeStripped(size_t i, std::string_view text) {
  const DecoderStep& step = decoder_.steps()[i];
  State& state = states_[i];
  for (; state.left > 0 && text.starts_with(step.literal); --state.left) {
    text.remove_prefix(step.literal.size());
  }
  if (text.empty()) return;
  state.left = 0;
  state.held += text;
  std::string_view ready = state.held;
  for (int64_t n = 0; n < step.stop && ready.ends_with(step.literal); ++n) {
    ready.remove_suffix(step.literal.size());
  }
  Give(i, std::string(ready));
  state.held.erase(0, ready.size());
}

void DecodeStream::TakeFallback(size_t i, std::string_view token) {
  const int byte = FallbackByte(token);
  if (byte >= 0) {
    states_[i].held += static_cast<char>(byte);
    return;
  }
  FlushBytes(i);
  Give(i, token);
}

// A run of bytes is text as a whole or not at all.
void DecodeStream::FlushBytes(size_t i) {
  const std::string bytes = std::exchange(states_[i].held, {});
  if (bytes.empty()) return;
  if (!FirstInvalidUtf8(bytes)) return Give(i, bytes);
  for (size_t n = 0; n < bytes.size(); ++n) Give(i, kReplacementCharacter);
}

void DecodeStream::End(size_t i) {
  const DecoderStep& step = decoder_.steps()[i];
  State& state = states_[i];
  const std::string held = state.held;
  if (step.kind == Kind::kByteFallback && !step.fused) return FlushBytes(i);
  state.held.clear();
  if (step.kind == Kind::kBpe && !step.fused) {
    if (std::exchange(state.holds, false)) Give(i, WithoutSuffix(step, held, ""));
    return;
  }
  if (held.empty()) return;
  if (!step.fused) return Give(i, kReplacementCharacter);  // kByteLevel: half a character
  switch (step.kind) {
    case Kind::kStrip:  // what the end loses
      return;
    case Kind::kReplace:
      return Give(i, step.literal.empty() ? Replaced(step, held) : held);
    case Kind::kByteLevel: {
      std::string bytes = CharsToBytes(held).value_or(held);
      const std::string text = TakeUtf8(bytes);
      return Give(i, text + std::string(bytes.empty() ? "" : kReplacementCharacter));
    }
    case Kind::kByteFallback: {
      const int byte = FallbackByte(held);
      const std::string text(1, static_cast<char>(byte));
      if (byte < 0) return Give(i, held);
      return Give(i, byte < 0x80 ? std::string_view(text) : kReplacementCharacter);
    }
    case Kind::kWordPiece:
      return Give(i, FromWordPiece(step, held, state.first));
    case Kind::kBpe:
      return Give(i, WithoutSuffix(step, held, ""));
    default:
      return Give(i, held);
  }
}

}  // namespace ovq
