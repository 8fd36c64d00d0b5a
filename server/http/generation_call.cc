#include "server/http/generation_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/calls/generation.h"
#include "server/engine/error_facts.h"
#include "server/engine/limits.h"

namespace ovq {
namespace {

constexpr size_t kHoldBytes = size_t{4} << 10;  // are taken at a time
// Of a token, beside its text: in the answer's JSON with its log-probabilities.
constexpr size_t kTokenBytes = 16, kLogprobBytes = 192;

}  // namespace

GenerationCall::GenerationCall(std::shared_ptr<HttpCall> call, std::unique_ptr<AnswerWriter> writer,
                               Hooks hooks)
    : call_(std::move(call)),
      writer_(std::move(writer)),
      hooks_(std::move(hooks)),
      strand_(call_->services().writers, call_->client()) {}

void GenerationCall::Start(const v1::GenerateRequest& message) {
  self_ = shared_from_this();
  call_->exchange().OnGone([stream = stream_] { stream->Cancel(); });
  const absl::Status status =
      SubmitGenerate(message, call_->caller(), call_->record(), call_->memory(), stream_);
  if (!status.ok()) {
    stream_->Close(status);
    return Wake();
  }
  stream_->SetListener([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->Wake();
  });
}

void GenerationCall::Wake() {
  if (streaming_) return call_->exchange().Pump();
  strand_.Post(shared_from_this(), [this] { Collect(); });
}

bool GenerationCall::Hold(const StreamEvent& event) {
  if (!event.chunk || !refused_.ok()) return refused_.ok();
  size_t bytes = 2 * event.chunk->text.size() + kTokenBytes;
  for (const auto& top : event.chunk->top) bytes += kLogprobBytes * top.size();
  bytes += kLogprobBytes * event.chunk->logprobs.size();
  held_ += bytes;
  if (held_ > kMaxAnswerBytes) {
    refused_ = absl::ResourceExhaustedError(
        absl::StrCat("answer: more than ", kMaxAnswerBytes, " bytes; a stream has no such bound"));
  } else if (held_ / kHoldBytes != (held_ - bytes) / kHoldBytes) {
    refused_ = ReserveBytes(call_->memory(), std::max(bytes, kHoldBytes));
  }
  if (!refused_.ok()) stream_->Cancel();
  return refused_.ok();
}

void GenerationCall::Collect() {
  if (self_ == nullptr || streaming_) return;
  std::string out;
  while (std::optional<StreamEvent> event = stream_->TryPop()) {
    call_->record().summary().work.Add(*event);
    if (!writer_->streams()) {
      if (Hold(*event)) writer_->Add(*event, out);
      continue;
    }
    // Only now is it known that the answer begins.
    writer_->Add(*event, out);
    streaming_ = true;
    return call_->Stream([self = shared_from_this(), first = std::move(out)](
                             std::string& part, absl::Status& status) mutable {
      part += std::exchange(first, "");
      return self->Events(part, status);
    });
  }
  if (!stream_->closed()) return;
  Finish(refused_.ok() ? stream_->status() : refused_);
}

bool GenerationCall::Events(std::string& out, absl::Status& status) {
  while (std::optional<StreamEvent> event = stream_->TryPop()) {
    call_->record().summary().work.Add(*event);
    writer_->Add(*event, out);
  }
  if (!stream_->closed()) return true;
  const std::optional<absl::Status> end = Ended(stream_->status());
  if (!end) return true;
  status = *end;
  writer_->End(status, out);
  self_ = nullptr;
  return false;
}

std::optional<absl::Status> GenerationCall::Ended(const absl::Status& status) {
  if (!hooks_.ended) return status;
  if (ended_) return end_;
  if (ending_.exchange(true)) return std::nullopt;
  call_->services().blocking.Run(call_->client(), [self = shared_from_this(), status] {
    self->end_ = self->hooks_.ended(status);
    self->ended_ = true;
    self->Wake();
  });
  return std::nullopt;
}

void GenerationCall::Finish(absl::Status status) {
  const std::optional<absl::Status> end = Ended(status);
  if (!end) return;
  const auto self = std::exchange(self_, nullptr);
  status = *end;
  if (!status.ok())
    return call_->Fail(hooks_.translate_error ? hooks_.translate_error(status) : status);
  std::string whole;
  writer_->End(status, whole);
  call_->Reply(200, std::move(whole));
}

}  // namespace ovq
