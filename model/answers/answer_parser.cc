#include "model/answers/answer_parser.h"

#include <algorithm>
#include <utility>

namespace ovq::answers {
namespace {

using Kind = AnswerPart::Kind;

void Append(Kind kind, std::string_view text, std::vector<AnswerPart>& out) {
  const bool joins = kind == Kind::kContent || kind == Kind::kReasoning || kind == Kind::kArguments;
  if (joins && text.empty()) return;
  if (joins && !out.empty() && out.back().kind == kind) {
    out.back().text += text;
  } else {
    out.push_back({kind, std::string(text)});
  }
}

// The calls' beginning without its first tag, which the parser finds by itself.
std::string AfterMarker(const CallSyntax& calls) {
  const size_t at = calls.begin.find(calls.marker);
  return at == std::string::npos ? "" : calls.begin.substr(at + calls.marker.size());
}

}  // namespace

AnswerParser::AnswerParser(const AnswerSyntax& syntax, ParserOptions options)
    : syntax_(syntax),
      looks_for_calls_(options.tools && syntax.calls.form != CallForm::kNone),
      calls_in_code_(options.calls_in_code),
      schemas_(options.schemas ? std::move(options.schemas)
                               : std::make_shared<nlohmann::json>(nlohmann::json::object())),
      strict_(std::move(options.strict)),
      begin_(AfterMarker(syntax.calls)),
      between_(syntax.calls.between),
      end_(syntax.calls.end) {}

void AnswerParser::Add(std::string_view text, std::vector<AnswerPart>& out) {
  pending_ += text;
  added_ += text.size();
  Run(out);
}

void AnswerParser::Run(std::vector<AnswerPart>& out) {
  while (at_ < pending_.size() && Step(out)) {
  }
  pending_.erase(0, std::exchange(at_, 0));
}

void AnswerParser::End(std::vector<AnswerPart>& out) {
  ended_ = true;
  Run(out);
  while (HasUnnamedCall()) {  // calls may have begun within it
    Revert(out);
    Run(out);
  }
  // White space is text if there is nothing but text.
  const bool in_text = state_ == State::kStart || state_ == State::kContent;
  if (in_text && !any_call_) Append(Kind::kContent, space_, out);
}

bool AnswerParser::HasUnnamedCall() const {
  return state_ == State::kCallBegin || (state_ == State::kCall && !call_->has_name);
}

bool AnswerParser::Step(std::vector<AnswerPart>& out) {
  switch (state_) {
    case State::kStart:
      return StepStart();
    case State::kReasoning:
      return StepReasoning(out);
    case State::kContent:
      return StepContent(out);
    case State::kCallBegin:
      return StepCallBegin(out);
    case State::kCall:
      return StepCall(out);
    case State::kCallNext:
      return StepCallNext();
  }
  return false;
}

void AnswerParser::PutBack(std::string_view text) {
  // The text of this run is still there.
  const size_t here = std::min(at_, text.size());
  at_ -= here;
  if (here < text.size()) pending_.insert(0, text.substr(0, text.size() - here));
}

bool AnswerParser::Consume(const std::string& marker, bool& may) {
  if (marker.empty()) return false;
  if (Pending().starts_with(marker)) {
    at_ += marker.size();
    return true;
  }
  may |= !ended_ && marker.starts_with(Pending());
  return false;
}

bool AnswerParser::StepStart() {
  while (at_ < pending_.size() && IsSpace(pending_[at_])) space_ += pending_[at_++];
  if (at_ == pending_.size()) return false;
  bool may = false;
  if (Consume(syntax_.think_begin, may)) {
    space_.clear();
    state_ = State::kReasoning;
    return true;
  }
  if (may) return false;
  if (looks_for_calls_ && syntax_.calls.marker.empty() && pending_[at_] == '{') {
    BeginCalls();
  } else {
    state_ = State::kContent;
  }
  return true;
}

bool AnswerParser::StepReasoning(std::vector<AnswerPart>& out) {
  bool may = false;
  if (Consume(syntax_.think_end, may)) {
    space_.clear();
    given_ = false;
    any_reasoning_ = true;
    state_ = State::kContent;
    return true;
  }
  if (may) return false;
  GiveCharacter(Kind::kReasoning, pending_[at_++], out);
  return true;
}

bool AnswerParser::StepContent(std::vector<AnswerPart>& out) {
  bool may = false;
  const bool may_call = looks_for_calls_ && (fence_ == 0 || calls_in_code_);
  if (may_call && Consume(syntax_.calls.marker, may)) {
    read_ = space_ + syntax_.calls.marker;
    space_.clear();
    BeginCalls();
    return true;
  }
  if (fence_ == 0) {
    if (Consume(syntax_.content_begin, may) || Consume(syntax_.content_end, may)) return true;
    if (!given_ && Consume(syntax_.think_begin, may)) {
      state_ = State::kReasoning;
      return true;
    }
  }
  if (may) return false;
  const char c = pending_[at_++];
  FollowCode(c);
  GiveCharacter(Kind::kContent, c, out);
  return true;
}

void AnswerParser::GiveCharacter(Kind kind, char c, std::vector<AnswerPart>& out) {
  if (IsSpace(c)) {
    // Reasoning begins behind the line break after its marker, and so does what follows it.
    const bool leads = !given_ && (kind == Kind::kReasoning || any_reasoning_ || any_call_);
    if (!leads) space_ += c;
    return;
  }
  Append(kind, std::exchange(space_, ""), out);
  Append(kind, std::string_view(&c, 1), out);
  given_ = true;
}

void AnswerParser::FollowCode(char c) {
  const auto is_fence = [](const std::string& line, size_t least) {
    const size_t begin = line.find_first_not_of(' ');
    if (begin == line.npos || begin > 3 || (line[begin] != '`' && line[begin] != '~')) {
      return size_t{0};
    }
    const size_t end = std::min(line.find_first_not_of(line[begin], begin), line.size());
    return end - begin >= std::max<size_t>(least, 3) ? end - begin : 0;
  };
  if (c != '\n') {
    constexpr size_t kMostLine = 64;  // of which a fence is the beginning
    // A line such as ```ls``` is text: behind a fence of backticks its line has no other one.
    const size_t begin = line_.find_first_not_of(' ');
    if (in_opening_line_ && c == '`' && line_[begin] == '`' &&
        line_.find_first_not_of('`', begin) != line_.npos) {
      fence_ = 0;
      in_opening_line_ = false;
      opens_no_code_ = true;
    }
    if (line_.size() < kMostLine) line_ += c;
    if (!opens_no_code_ && (fence_ == 0 || in_opening_line_)) {
      const size_t fence = is_fence(line_, 3);
      if (fence > 0) {
        fence_ = fence;
        in_opening_line_ = true;
      }
    }
    return;
  }
  const size_t end = line_.find_last_not_of(" \r");
  const bool only_fence = end != line_.npos && (line_[end] == '`' || line_[end] == '~');
  if (fence_ > 0 && !in_opening_line_ && only_fence && is_fence(line_, fence_) > 0) fence_ = 0;
  in_opening_line_ = opens_no_code_ = false;
  line_.clear();
}

void AnswerParser::BeginCalls() {
  begin_.Reset();
  state_ = State::kCallBegin;
  named_ = false;
}

void AnswerParser::BeginCall() {
  call_ = MakeCallReader(syntax_.calls, *schemas_, strict_);
  named_ = false;
  state_ = State::kCall;
}

bool AnswerParser::StepCallBegin(std::vector<AnswerPart>& out) {
  if (begin_.done()) {
    BeginCall();
    return true;
  }
  const char c = pending_[at_];
  if (!begin_.Follow(c)) {
    if (begin_.begun() || syntax_.calls.form != CallForm::kJson || c != '{') {
      Revert(out);
    } else {
      BeginCall();  // a list's bracket is missing
    }
    return true;
  }
  read_ += c;
  ++at_;
  return true;
}

void AnswerParser::Revert(std::vector<AnswerPart>& out) {
  state_ = State::kContent;
  call_.reset();
  // Its first character is not looked at again, so that it is not taken for a marker once more.
  const std::string text = std::exchange(read_, "");
  const auto marker = static_cast<size_t>(std::ranges::find_if_not(text, IsSpace) - text.begin());
  size_t n = std::min(marker + std::max<size_t>(syntax_.calls.marker.size(), 1), text.size());
  constexpr size_t kMostReread = 4, kFreeReread = size_t{4} << 10;  // times the answer, and bytes
  const size_t taken = added_ - Pending().size();                   // however the text was cut
  if (reread_ + text.size() - n > kMostReread * taken + kFreeReread) n = text.size();
  reread_ += text.size() - n;
  for (const char c : std::string_view(text).substr(0, n)) {
    FollowCode(c);
    GiveCharacter(Kind::kContent, c, out);
  }
  PutBack(std::string_view(text).substr(n));
}

bool AnswerParser::StepCall(std::vector<AnswerPart>& out) {
  const char c = pending_[at_++];
  const CallReader::Result result = call_->Read(c);
  if (!named_) {
    read_ += c;
    // Without a marker only a tool's name tells a call from other JSON.
    const bool is_call =
        call_->has_name && (!syntax_.calls.marker.empty() || schemas_->contains(call_->name));
    if (!is_call) {
      if (call_->has_name || result != CallReader::Result::kMore) Revert(out);
      return true;
    }
    Append(Kind::kCall, call_->name, out);
    named_ = any_call_ = true;
    read_.clear();
  }
  Append(Kind::kArguments, std::exchange(call_->arguments, ""), out);
  if (result == CallReader::Result::kMore) return true;
  if (result == CallReader::Result::kDone) Append(Kind::kCallEnd, "", out);
  // A wrong character may begin a marker; a parenthesis ends the call, whatever is wrong before it.
  const bool is_lost = result == CallReader::Result::kWrong && call_->unread.empty() && c != ')';
  PutBack(is_lost ? std::string_view(&c, 1) : call_->unread);
  call_.reset();
  read_.clear();
  between_.Reset();
  end_.Reset();
  between_lost_ = between_.empty();
  end_lost_ = end_.empty();
  after_end_ = 0;
  state_ = State::kCallNext;
  return true;
}

bool AnswerParser::StepCallNext() {
  const char c = pending_[at_++];
  read_ += c;
  // Both markers may begin alike, or one with the other.
  between_lost_ = between_lost_ || !between_.Follow(c);
  if (!between_lost_ && between_.done()) {
    read_.clear();
    BeginCall();
    return true;
  }
  if (after_end_ == 0 && !end_lost_) {
    end_lost_ = !end_.Follow(c);
    if (end_.done()) after_end_ = read_.size();
  }
  if (end_lost_ && between_.empty() && !end_.empty() && !end_.begun()) {
    // White space alone stands between calls: this is the next one's first character.
    PutBack(std::exchange(read_, ""));
    BeginCall();
    return true;
  }
  if (between_lost_ && (after_end_ > 0 || end_lost_)) {
    PutBack(std::string_view(read_).substr(after_end_));
    read_.clear();
    given_ = false;
    state_ = State::kContent;
  }
  return true;
}

}  // namespace ovq::answers
