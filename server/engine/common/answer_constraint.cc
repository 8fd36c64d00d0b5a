#include "server/engine/common/answer_constraint.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/binary.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "model/constraint/automaton.h"
#include "server/engine/common/error_facts.h"

namespace ovq::engine {
namespace {

using constraint::Grammar;
using Kind = AnswerForm::Kind;

template <class... Args>
absl::Status BadForm(const Args&... what) {
  return absl::InvalidArgumentError(absl::StrCat("constraint: ", what...));
}
absl::Status DamagedForm() { return absl::DataLossError("constraint: these bytes are none"); }

void PutBytes(std::string& out, std::string_view bytes) {
  Put(out, static_cast<uint32_t>(bytes.size()));
  out.append(bytes);
}

void Encode(const AnswerForm& form, std::string& out) {
  Put(out, static_cast<uint8_t>(form.kind));
  switch (form.kind) {
    case Kind::kSource:
      Put(out, static_cast<uint8_t>(form.source.kind));
      PutBytes(out, form.source.text);
      Put(out, static_cast<uint32_t>(form.source.choices.size()));
      for (const std::string& choice : form.source.choices) PutBytes(out, choice);
      return;
    case Kind::kLiteral:
    case Kind::kThrough:
    case Kind::kWithout:
      return PutBytes(out, form.text);
    case Kind::kRepeat:
      Put(out, form.least);
      Put(out, form.most.value_or(-1));
      break;
    case Kind::kSequence:
    case Kind::kChoice:
      break;
  }
  Put(out, static_cast<uint32_t>(form.parts.size()));
  for (const AnswerForm& part : form.parts) Encode(part, out);
}

// Reads what Encode wrote. After a field that is missing or impossible all reads fail.
class FormReader {
 public:
  explicit FormReader(std::string_view bytes) : bytes_(bytes) {}

  bool Read(AnswerForm& form, int depth) {
    if (depth > kMaxFormDepth || ++n_parts_ > kMaxFormParts) return false;
    uint8_t kind = 0;
    if (!Number(kind) || kind > static_cast<uint8_t>(Kind::kRepeat)) return false;
    form.kind = static_cast<Kind>(kind);
    switch (form.kind) {
      case Kind::kSource:
        return ReadSource(form.source);
      case Kind::kLiteral:
      case Kind::kThrough:
      case Kind::kWithout:
        return Bytes(form.text);
      case Kind::kRepeat: {
        int64_t most = 0;
        if (!Number(form.least) || !Number(most) || most < -1) return false;
        if (most >= 0) form.most = most;
        break;
      }
      case Kind::kSequence:
      case Kind::kChoice:
        break;
    }
    uint32_t n_parts = 0;
    if (!Number(n_parts) || n_parts > kMaxFormParts) return false;
    for (uint32_t i = 0; i < n_parts; ++i) {
      if (!Read(form.parts.emplace_back(), depth + 1)) return false;
    }
    return true;
  }
  bool at_end() const { return bytes_.empty(); }

 private:
  bool ReadSource(constraint::Source& source) {
    uint8_t kind = 0;
    uint32_t n_choices = 0;
    if (!Number(kind) || kind > static_cast<uint8_t>(constraint::Source::Kind::kGrammar) ||
        !Bytes(source.text) || !Number(n_choices) || n_choices > bytes_.size()) {
      return false;
    }
    source.kind = static_cast<constraint::Source::Kind>(kind);
    for (uint32_t i = 0; i < n_choices; ++i) {
      if (!Bytes(source.choices.emplace_back())) return false;
    }
    return true;
  }
  template <class T>
  bool Number(T& value) {
    if (bytes_.size() < sizeof(T)) return false;
    value = Get<T>(bytes_);
    return true;
  }
  bool Bytes(std::string& text) {
    uint32_t size = 0;
    if (!Number(size) || size > bytes_.size()) return false;
    text = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return true;
  }

  std::string_view bytes_;
  int64_t n_parts_ = 0;
};

// The automaton of Knuth, Morris and Pratt: state i has seen the first i bytes of the marker.
// through: the last state alone accepts, and nothing follows it; else all others do, and the
// marker's last byte leads nowhere.
constraint::Dfa MarkerAutomaton(std::string_view marker, bool through) {
  const auto n = static_cast<int32_t>(marker.size());
  std::vector<std::array<int32_t, 256>> to(std::max<size_t>(marker.size(), 1));
  int32_t restart = 0;  // where the state before a mismatch goes on
  for (int32_t i = 0; i < n; ++i) {
    const auto byte = static_cast<uint8_t>(marker[static_cast<size_t>(i)]);
    if (i > 0) {
      to[i] = to[restart];
      restart = to[restart][byte];
    }
    to[i][byte] = i + 1;
  }
  std::vector<constraint::Dfa::State> states(to.size() + (through ? 1 : 0));
  for (size_t i = 0; i < to.size(); ++i) {
    states[i].accepts = !through;
    for (int first = 0, last = 0; first < 256; first = last + 1) {
      const int32_t target = to[i][first];
      for (last = first; last < 255 && to[i][last + 1] == target;) ++last;
      if (!through && n > 0 && target == n) continue;
      states[i].ranges.push_back({static_cast<uint8_t>(first), static_cast<uint8_t>(last), target});
    }
  }
  if (through) states.back().accepts = true;
  return constraint::Dfa(std::move(states));
}

absl::Status CheckForm(const AnswerForm& form, int depth, int64_t& n_parts) {
  if (depth > kMaxFormDepth) return BadForm("its parts are nested deeper than ", kMaxFormDepth);
  if (++n_parts > kMaxFormParts) return BadForm("expected at most ", kMaxFormParts, " parts");
  const int64_t own = std::ssize(form.parts);
  switch (form.kind) {
    case Kind::kSource:
    case Kind::kLiteral:
    case Kind::kSequence:
      break;
    case Kind::kThrough:
    case Kind::kWithout: {
      const size_t least = form.kind == Kind::kThrough ? 1 : 0;
      if (form.text.size() < least || form.text.size() > kMaxMarkerBytes) {
        return BadForm("expected a marker of ", least, " to ", kMaxMarkerBytes, " bytes, got ",
                       form.text.size());
      }
      break;
    }
    case Kind::kChoice:
      if (own == 0) return BadForm("a choice has at least one part");
      break;
    case Kind::kRepeat:
      if (own != 1) return BadForm("a repetition has one part");
      if (form.least < 0 || form.most.value_or(form.least) < form.least) {
        return BadForm("a repetition of ", form.least, " to ", form.most.value_or(-1), " times");
      }
      break;
  }
  for (const AnswerForm& part : form.parts) {
    RETURN_IF_ERROR(CheckForm(part, depth + 1, n_parts));
  }
  return absl::OkStatus();
}

absl::StatusOr<Grammar::Node> AddForm(const AnswerForm& form, Grammar& grammar,
                                      const constraint::Limits& limits) {
  switch (form.kind) {
    case Kind::kSource:
      return constraint::AddSource(form.source, grammar, limits);
    case Kind::kLiteral:
      return grammar.Literal(form.text);
    case Kind::kThrough:
    case Kind::kWithout:
      return grammar.Terminal(MarkerAutomaton(form.text, form.kind == Kind::kThrough));
    case Kind::kSequence:
    case Kind::kChoice:
    case Kind::kRepeat:
      break;
  }
  std::vector<Grammar::Node> parts;
  for (const AnswerForm& part : form.parts) {
    ASSIGN_OR_RETURN(const Grammar::Node node, AddForm(part, grammar, limits));
    parts.push_back(node);
  }
  if (form.kind == Kind::kSequence) return grammar.Sequence(std::move(parts));
  if (form.kind == Kind::kChoice) return grammar.Choice(std::move(parts));
  return grammar.Repeat(parts.front(), form.least, form.most);
}

std::string Digest(std::string_view bytes) {
  Sha256 digest;
  digest.Add(bytes.data(), bytes.size());
  return digest.Hex();
}

absl::Status AcquireBytes(ByteHold& hold, size_t bytes) {
  const std::optional<size_t> most = hold.Acquire(bytes);
  if (!most) return absl::OkStatus();
  return WithFacts(
      absl::ResourceExhaustedError(absl::StrCat("constraint: ", bytes, " bytes needed, ", *most,
                                                " of ", hold.budget().total(),
                                                " free for this client")),
      {.reason = RejectReason::kRequestMemory, .bytes_needed = bytes, .bytes_free = *most});
}

}  // namespace

AnswerConstraint::AnswerConstraint(std::string encoded,
                                   std::shared_ptr<const constraint::Automaton> automaton,
                                   std::unique_ptr<ByteHold> hold)
    : encoded_(std::move(encoded)),
      digest_(Digest(encoded_)),
      automaton_(std::move(automaton)),
      hold_(std::move(hold)) {}

std::string EncodeForm(const AnswerForm& form) {
  std::string encoded;
  Encode(form, encoded);
  return encoded;
}

absl::StatusOr<std::shared_ptr<const AnswerConstraint>> AnswerConstraint::Make(
    const AnswerForm& form, const constraint::Limits& limits, std::shared_ptr<ByteBudget> memory,
    const std::string& client) {
  int64_t n_parts = 0;
  RETURN_IF_ERROR(CheckForm(form, 0, n_parts));
  std::string encoded = EncodeForm(form);
  if (encoded.size() > kMaxFormBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("constraint: expected at most ", kMaxFormBytes,
                                                     " bytes, got ", encoded.size()));
  }
  auto hold = std::make_unique<ByteHold>(std::move(memory), client);
  RETURN_IF_ERROR(AcquireBytes(*hold, encoded.size()));
  Grammar grammar;
  ASSIGN_OR_RETURN(const Grammar::Node root, AddForm(form, grammar, limits));
  grammar.SetRoot(root);
  ASSIGN_OR_RETURN(std::shared_ptr<const constraint::Automaton> automaton,
                   constraint::CompileGrammar(grammar, limits));
  RETURN_IF_ERROR(AcquireBytes(*hold, automaton->bytes()));
  return std::shared_ptr<const AnswerConstraint>(  // whose constructor is private
      new AnswerConstraint(std::move(encoded), std::move(automaton), std::move(hold)));
}

absl::StatusOr<std::shared_ptr<const AnswerConstraint>> AnswerConstraint::Decode(
    std::string_view encoded, const constraint::Limits& limits, std::shared_ptr<ByteBudget> memory,
    const std::string& client) {
  AnswerForm form;
  FormReader reader(encoded);
  if (encoded.size() > kMaxFormBytes || !reader.Read(form, 0) || !reader.at_end()) {
    return DamagedForm();
  }
  return Make(form, limits, std::move(memory), client);
}

std::string EncodeUnfinished(const UnfinishedAnswer& answer) {
  std::string out;
  Put(out, static_cast<uint32_t>(answer.tokens.size()));
  PutAll(out, answer.tokens);
  out.append(answer.constraint->encoded());
  return out;
}

absl::StatusOr<UnfinishedAnswer> DecodeUnfinished(std::string_view bytes,
                                                  const constraint::Vocabulary* vocabulary,
                                                  const constraint::Limits& limits,
                                                  std::shared_ptr<ByteBudget> memory,
                                                  const std::string& client) {
  if (bytes.size() < sizeof(uint32_t)) return DamagedForm();
  const auto n_tokens = Get<uint32_t>(bytes);
  if (n_tokens == 0 || n_tokens > kMaxUnfinishedTokens ||
      n_tokens > bytes.size() / sizeof(int32_t)) {
    return DamagedForm();
  }
  if (vocabulary == nullptr) {
    return absl::FailedPreconditionError("constraint: this model has no tokenizer");
  }
  UnfinishedAnswer answer;
  answer.tokens = GetAll<int32_t>(bytes.substr(0, n_tokens * sizeof(int32_t)));
  bytes.remove_prefix(n_tokens * sizeof(int32_t));
  for (const int32_t token : answer.tokens) {
    if (token < 0 || token >= vocabulary->size()) return DamagedForm();
  }
  ASSIGN_OR_RETURN(answer.constraint,
                   AnswerConstraint::Decode(bytes, limits, std::move(memory), client));
  return answer;
}

}  // namespace ovq::engine
