#include "server/http/generation_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/calls/generation.h"
#include "server/engine/common/error_facts.h"
#include "server/engine/common/limits.h"

namespace ovq::server {
namespace {

constexpr size_t kHoldBytes = size_t{4} << 10;  // memory is taken in such parts
// Bytes of a token in the answer's JSON beside its text, and of each of its log-probabilities.
constexpr size_t kTokenBytes = 16, kLogprobBytes = 192;

}  // namespace

GenerationCall::GenerationCall(std::shared_ptr<HttpCall> call, std::unique_ptr<AnswerWriter> writer,
                               Hooks hooks)
    : call_(std::move(call)),
      writer_(std::move(writer)),
      hooks_(std::move(hooks)),
      strand_(call_->services().writers, call_->client()),
      pump_(*this, call_->record().summary().work) {}

void GenerationCall::Start(const v1::GenerateRequest& message) {
  self_ = shared_from_this();
  call_->exchange().OnGone([stream = pump_.stream()] { stream->Cancel(); });
  pump_.Submitted(SubmitGenerate(message, call_->record(), pump_.stream()), weak_from_this());
}

void GenerationCall::Wake() {
  if (streaming_) return call_->exchange().Pump();
  strand_.Post(shared_from_this(), [this] { Collect(); });
}

void GenerationCall::Collect() {
  if (streaming_ || self_ == nullptr) return;
  while (!streaming_ && pump_.Advance()) {
  }
  if (!streaming_ && ended_) Finish();
}

bool GenerationCall::Events(std::string& out, absl::Status& status) {
  // Collect does not advance the pump any more once the answer streams.
  while (pump_.Advance()) {
  }
  out += std::exchange(out_, "");
  if (!ended_) return true;
  status = end_;
  writer_->End(status, out);
  self_ = nullptr;
  return false;
}

void GenerationCall::OnEvent(const engine::StreamEvent& event) {
  if (!writer_->streams()) {
    if (Hold(event)) writer_->Add(event, out_);
    return;
  }
  writer_->Add(event, out_);
  if (streaming_) return;
  // The head is sent with the first event: until then the answer may still be an error.
  streaming_ = true;
  call_->Stream([self = shared_from_this()](std::string& part, absl::Status& status) {
    return self->Events(part, status);
  });
}

bool GenerationCall::Hold(const engine::StreamEvent& event) {
  if (!event.chunk) return true;
  size_t bytes = 2 * event.chunk->text.size() + kTokenBytes;
  for (const auto& top : event.chunk->top) bytes += kLogprobBytes * top.size();
  bytes += kLogprobBytes * event.chunk->logprobs.size();
  held_ += bytes;
  absl::Status status;
  if (held_ > engine::kMaxAnswerBytes) {
    status = absl::ResourceExhaustedError(absl::StrCat(
        "answer: more than ", engine::kMaxAnswerBytes, " bytes; a stream has no such bound"));
  } else if (held_ / kHoldBytes != (held_ - bytes) / kHoldBytes) {
    status = ReserveBytes(call_->record().memory(), std::max(bytes, kHoldBytes));
  }
  if (status.ok()) return true;
  pump_.Refuse(std::move(status));
  return false;
}

void GenerationCall::OnStreamEnd(const absl::Status& status) {
  end_ = status;
  if (!hooks_.ended) {
    ended_ = true;
    return;
  }
  call_->services().blocking.Run(call_->client(), [self = shared_from_this()] {
    self->end_ = self->hooks_.ended(self->end_);
    self->ended_ = true;
    self->Wake();
  });
}

void GenerationCall::Finish() {
  const auto self = std::exchange(self_, nullptr);
  if (!end_.ok()) {
    return call_->Fail(hooks_.translate_error ? hooks_.translate_error(end_) : end_);
  }
  std::string whole;
  writer_->End(end_, whole);
  call_->Reply(200, std::move(whole));
}

}  // namespace ovq::server
