#include "server/http/generation_call.h"

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/calls/generation.h"
#include "server/calls/token_pump.h"
#include "server/calls/work_queue.h"
#include "server/engine/common/error_facts.h"
#include "server/engine/common/limits.h"

namespace ovq::server {
namespace {

constexpr size_t kHoldBytes = size_t{4} << 10;  // memory is taken in such parts
// Bytes of a token in the answer's JSON beside its text, and of each of its log-probabilities.
constexpr size_t kTokenBytes = 16, kLogprobBytes = 192;

// A comment, which readers of server-sent events skip. Proxies end connections on which nothing
// comes for a while.
constexpr char kComment[] = ":\n\n";

// The engine's events go to the client through a TokenPump. A client that goes cancels the request.
class GenerationCall final : public TokenSink, public std::enable_shared_from_this<GenerationCall> {
 public:
  GenerationCall(std::shared_ptr<HttpCall> call, std::unique_ptr<AnswerWriter> writer,
                 GenerationHooks hooks)
      : call_(std::move(call)),
        writer_(std::move(writer)),
        hooks_(std::move(hooks)),
        strand_(call_->services().writers, call_->client()),
        pump_(*this, call_->record().summary().work) {}

  // On a thread that may block.
  void Start(const v1::GenerateRequest& message) {
    self_ = shared_from_this();
    call_->exchange().OnGone([stream = pump_.stream()] { stream->Cancel(); });
    if (writer_->streams()) {
      call_->exchange().OnQuiet([weak = weak_from_this()] {
        const auto self = weak.lock();
        if (self == nullptr) return;
        self->quiet_ = true;
        self->Wake();
      });
    }
    pump_.Submitted(SubmitGenerate(message, call_->record(), pump_.stream()), weak_from_this());
    if (quiet_) Wake();
  }

  void OnEvent(const engine::StreamEvent& event) override {
    if (!writer_->streams()) {
      if (Hold(event)) writer_->Add(event, out_);
      return;
    }
    writer_->Add(event, out_);
    if (!streaming_) Begin();
  }

  void OnStreamEnd(const absl::Status& status) override {
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

  void Wake() override {  // any thread
    if (streaming_) return call_->exchange().Pump();
    strand_.Post(shared_from_this(), [this] { Collect(); });
  }

 private:
  // Sends the head, with the first event or, if that is long in coming, with a comment. Until then
  // the answer may still be an error.
  void Begin() {
    streaming_ = true;
    call_->Stream([self = shared_from_this()](std::string& part, absl::Status& status) {
      return self->Events(part, status);
    });
  }

  // Advances the pump on the strand, until the first event of an answer that is streamed.
  void Collect() {
    if (streaming_ || self_ == nullptr) return;
    while (!streaming_ && pump_.Advance()) {
    }
    if (streaming_) return;
    if (ended_) return Finish();
    if (quiet_ && pump_.submitted()) Begin();
  }

  // Advances it from then on, where the connection writes: HttpCall::Events.
  bool Events(std::string& out, absl::Status& status) {
    // Collect does not advance the pump any more once the answer streams.
    while (pump_.Advance()) {
    }
    if (quiet_.exchange(false) && out_.empty()) out_ = kComment;
    out += std::exchange(out_, "");
    if (!ended_) return true;
    status = end_;
    writer_->End(status, out);
    self_ = nullptr;
    return false;
  }

  // Takes the memory that an event needs until an answer that is not streamed is sent. False: there
  // is no room, and the request is refused.
  bool Hold(const engine::StreamEvent& event) {
    if (!event.chunk) return true;
    size_t bytes = 2 * event.chunk->text.size() + kTokenBytes;
    for (const answers::AnswerPart& part : event.chunk->parts) {
      bytes += 2 * part.text.size() + kTokenBytes;
    }
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

  void Finish() {  // an answer that is not streamed, or an error
    const auto self = std::exchange(self_, nullptr);
    if (!end_.ok()) {
      return call_->Fail(hooks_.translate_error ? hooks_.translate_error(end_) : end_);
    }
    std::string whole;
    writer_->End(end_, whole);
    call_->Reply(200, std::move(whole));
  }

  const std::shared_ptr<HttpCall> call_;
  const std::unique_ptr<AnswerWriter> writer_;
  const GenerationHooks hooks_;
  Strand strand_;
  TokenPump pump_;
  std::string out_;  // written, and still to be sent
  std::atomic<bool> streaming_ = false;
  std::atomic<bool> quiet_ = false;       // nothing was sent for a while
  std::atomic<bool> ended_ = false;       // by the hook, too
  absl::Status end_;                      // the call's, once ended_
  size_t held_ = 0;                       // bytes of an answer that is not streamed
  std::shared_ptr<GenerationCall> self_;  // until the end
};

}  // namespace

void StartGeneration(std::shared_ptr<HttpCall> call, std::unique_ptr<AnswerWriter> writer,
                     const v1::GenerateRequest& message, GenerationHooks hooks) {
  std::make_shared<GenerationCall>(std::move(call), std::move(writer), std::move(hooks))
      ->Start(message);
}

}  // namespace ovq::server
