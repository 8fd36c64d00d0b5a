// AnswerConstraint: the form that a whole answer has to keep, as callers gave it and the server
// frames it, and compiled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/byte_budget.h"
#include "model/constraint/constraint.h"
#include "model/constraint/matcher.h"

namespace ovq::engine {

// A language of answers. What callers give (kSource) stands in it beside what the server adds: the
// thought before, the markers of calls. Serializable: everything else follows from it.
struct AnswerForm {
  enum class Kind : uint8_t {
    kSource,    // the source's texts
    kLiteral,   // `text` itself
    kThrough,   // any bytes up to the first `text`, with it
    kWithout,   // any bytes that do not have `text`; any bytes at all where that is empty
    kSequence,  // the parts, one after another
    kChoice,    // one of the parts, at least one
    kRepeat     // the only part, at least `least` and at most `most` times
  };
  Kind kind = Kind::kSource;
  constraint::Source source = {};  // kSource
  std::string text = {};           // kLiteral, kThrough (not empty), kWithout
  std::vector<AnswerForm> parts = {};
  int64_t least = 0;                 // kRepeat
  std::optional<int64_t> most = {};  // kRepeat; no bound without it
  bool operator==(const AnswerForm&) const = default;

  static AnswerForm Given(constraint::Source source) { return {.source = std::move(source)}; }
  static AnswerForm Literal(std::string text) {
    return {.kind = Kind::kLiteral, .text = std::move(text)};
  }
  static AnswerForm Through(std::string marker) {
    return {.kind = Kind::kThrough, .text = std::move(marker)};
  }
  static AnswerForm Without(std::string marker) {
    return {.kind = Kind::kWithout, .text = std::move(marker)};
  }
  static AnswerForm Sequence(std::vector<AnswerForm> parts) {
    return {.kind = Kind::kSequence, .parts = std::move(parts)};
  }
  static AnswerForm Choice(std::vector<AnswerForm> parts) {
    return {.kind = Kind::kChoice, .parts = std::move(parts)};
  }
  static AnswerForm Repeat(AnswerForm part, int64_t least, std::optional<int64_t> most) {
    return {.kind = Kind::kRepeat, .parts = {std::move(part)}, .least = least, .most = most};
  }
};

// The most bytes of an encoded form, with which a session file stays within what readers skip.
inline constexpr size_t kMaxFormBytes = size_t{512} << 10;
inline constexpr size_t kMaxMarkerBytes = 256;  // of a kThrough or kWithout
inline constexpr int kMaxFormDepth = 16;        // of an AnswerForm, sources not counted
inline constexpr int64_t kMaxFormParts = 4096;  // in all

// The bytes of AnswerConstraint::encoded, whether the form can be compiled or not.
std::string EncodeForm(const AnswerForm& form);

// Immutable; any thread. Its bytes count as the client's in the budget that it was made with, until
// the last that holds it lets go of it.
class AnswerConstraint {
 public:
  // Compiles the form, in up to a second: not on the engine's thread. InvalidArgument names the
  // place in the source, or says what of the form is not possible; ResourceExhausted beyond a
  // limit, or if the budget has no room. memory, client: EngineOptions::request_memory,
  // CallRequest::client.
  static absl::StatusOr<std::shared_ptr<const AnswerConstraint>> Make(
      const AnswerForm& form, const constraint::Limits& limits, std::shared_ptr<ByteBudget> memory,
      const std::string& client);
  // Makes the constraint of encoded(). DataLoss for bytes that no form has; else as Make.
  static absl::StatusOr<std::shared_ptr<const AnswerConstraint>> Decode(
      std::string_view encoded, const constraint::Limits& limits,
      std::shared_ptr<ByteBudget> memory, const std::string& client);

  // The form as bytes, equal for equal forms.
  const std::string& encoded() const { return encoded_; }
  const std::string& digest() const { return digest_; }  // SHA-256 of encoded(), hex digits
  const std::shared_ptr<const constraint::Automaton>& automaton() const { return automaton_; }
  size_t bytes() const { return hold_->bytes(); }  // held of the budget

 private:
  AnswerConstraint(std::string encoded, std::shared_ptr<const constraint::Automaton> automaton,
                   std::unique_ptr<ByteHold> hold);

  const std::string encoded_, digest_;
  const std::shared_ptr<const constraint::Automaton> automaton_;
  const std::unique_ptr<ByteHold> hold_;
};

// An answer that ended before its form did, which a later call may go on with.
struct UnfinishedAnswer {
  std::shared_ptr<const AnswerConstraint> constraint;
  std::vector<int32_t> tokens;  // of the answer so far: the last of the conversation, at least one
  std::optional<constraint::Place> place = {};  // behind them, if it is known
};
// Longer ones are not kept: with its constraint an answer stays within what readers of session
// files skip.
inline constexpr int64_t kMaxUnfinishedTokens = 65536;

// Encodes it for session files: a u32, the number of tokens, the tokens, then the encoded form.
std::string EncodeUnfinished(const UnfinishedAnswer& answer);
// DataLoss for bytes that are none, or have a token of another vocabulary; else as
// AnswerConstraint::Decode. FailedPrecondition if the model has no vocabulary for constraints.
absl::StatusOr<UnfinishedAnswer> DecodeUnfinished(std::string_view bytes,
                                                  const constraint::Vocabulary* vocabulary,
                                                  const constraint::Limits& limits,
                                                  std::shared_ptr<ByteBudget> memory,
                                                  const std::string& client);

}  // namespace ovq::engine
