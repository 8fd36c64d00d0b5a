#include "server/apis/generation_call.h"

#include <atomic>
#include <utility>
#include <vector>

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

// The engine's events go to the client through TokenPumps, one for each request. A client that goes
// cancels the requests.
class GenerationCall final : public std::enable_shared_from_this<GenerationCall> {
 public:
  GenerationCall(std::shared_ptr<HttpCall> call, std::unique_ptr<AnswerWriter> writer,
                 std::vector<Generation> generations,
                 std::function<absl::Status(absl::Status)> ended)
      : call_(std::move(call)),
        writer_(std::move(writer)),
        ended_hook_(std::move(ended)),
        strand_(call_->services().writers, call_->record().client()),
        open_(generations.size()) {
    for (Generation& generation : generations) {
      parts_.push_back(std::make_unique<Part>(*this, std::move(generation)));
    }
  }

  // On a thread that may block. No pump moves before all requests are submitted: what belongs to
  // the call, such as its memory, is one thread's at a time.
  void Start() {
    self_ = shared_from_this();
    std::vector<std::shared_ptr<engine::TokenStream>> streams;
    for (const auto& part : parts_) streams.push_back(part->pump.stream());
    call_->exchange().OnGone([streams] {
      for (const auto& stream : streams) stream->Cancel();
    });
    if (writer_->streams()) {
      call_->exchange().OnQuiet([weak = weak_from_this()] {
        const auto self = weak.lock();
        if (self == nullptr) return;
        self->quiet_ = true;
        self->Wake();
      });
    }
    std::vector<absl::Status> submitted;
    for (const auto& part : parts_) {
      absl::Status status = end_.ok()
                                ? part->generation.submit(call_->record(), part->pump.stream())
                                : absl::CancelledError();
      if (!status.ok()) Fail(*part, status);
      submitted.push_back(std::move(status));
    }
    for (size_t i = 0; i < parts_.size(); ++i) {
      parts_[i]->pump.Submitted(submitted[i], weak_from_this());
    }
    if (quiet_) Wake();
  }

 private:
  struct Part final : TokenSink {
    Part(GenerationCall& of, Generation what)
        : call(of), generation(std::move(what)), pump(*this, of.call_->record().summary().work) {}
    void OnEvent(const engine::StreamEvent& event) override { call.OnEvent(*this, event); }
    void OnStreamEnd(const absl::Status& status) override { call.OnStreamEnd(*this, status); }
    void Wake() override { call.Wake(); }

    GenerationCall& call;
    Generation generation;
    TokenPump pump;
  };

  // Keeps the first error, and cancels all requests.
  void Fail(const Part& part, const absl::Status& status) {
    if (!end_.ok()) return;
    const TranslateError& translate = part.generation.translate_error;
    end_ = translate ? translate(status) : status;
    for (const auto& each : parts_) each->pump.Cancel();
  }

  void OnEvent(Part& part, const engine::StreamEvent& event) {
    if (!end_.ok()) return;
    if (part.generation.before) {
      for (const engine::StreamEvent& before : part.generation.before(event)) Write(part, before);
    }
    Write(part, event);
    if (writer_->streams() && !streaming_) Begin();
  }

  // Sends the head, with the first event or, if that is long in coming, with a comment: until then
  // the answer may still be an error. From here on the connection's thread writes.
  void Begin() {
    streaming_ = true;
    call_->Stream([self = shared_from_this()](std::string& out, absl::Status& status) {
      return self->Events(out, status);
    });
  }

  void Write(Part& part, const engine::StreamEvent& event) {
    if (writer_->keeps() && !Hold(part, event)) return;
    if (part.generation.first_choice == 0) return writer_->Add(event, out_);
    engine::StreamEvent moved = event;
    if (moved.chunk) moved.chunk->index += part.generation.first_choice;
    if (moved.finished) moved.finished->index += part.generation.first_choice;
    writer_->Add(moved, out_);
  }

  void OnStreamEnd(Part& part, const absl::Status& status) {
    if (!status.ok()) Fail(part, status);
    if (--open_ > 0) return;
    if (!ended_hook_) {
      ended_ = true;
      return;
    }
    call_->services().blocking.Run(call_->record().client(), [self = shared_from_this()] {
      self->end_ = self->ended_hook_(self->end_);
      self->ended_ = true;
      self->Wake();
    });
  }

  void Wake() {  // any thread
    if (streaming_) return call_->exchange().Pump();
    strand_.Post(shared_from_this(), [this] { Collect(); });
  }

  // Moves every pump by an event, until the answer begins to stream. False: none had one.
  bool Advance(bool streaming) {
    bool any = false;
    for (const auto& part : parts_) {
      if (streaming_ != streaming) return true;
      any |= part->pump.Advance();
    }
    return any;
  }

  // Advances the pumps on the strand, until the first event of an answer that is streamed.
  void Collect() {
    if (streaming_ || self_ == nullptr) return;
    while (!streaming_ && Advance(false)) {
    }
    if (streaming_) return;
    if (ended_) return Finish();
    if (quiet_ && parts_.back()->pump.submitted()) Begin();  // hence all of them
  }

  // Advances them from then on, where the connection writes: HttpCall::Events.
  bool Events(std::string& out, absl::Status& status) {
    // Collect does not advance the pumps any more once the answer streams.
    while (Advance(true)) {
    }
    if (quiet_.exchange(false) && out_.empty()) out_ = kComment;
    out += std::exchange(out_, "");
    if (!ended_) return true;
    status = end_;
    writer_->End(status, out);
    self_ = nullptr;
    return false;
  }

  // Takes the memory that an event needs until an answer that keeps it is sent. False: there is no
  // room, and the request is refused.
  bool Hold(Part& part, const engine::StreamEvent& event) {
    if (!event.chunk) return true;
    size_t bytes = 2 * event.chunk->text.size() + kTokenBytes;
    for (const answers::AnswerPart& one : event.chunk->parts) {
      bytes += 2 * one.text.size() + kTokenBytes;
    }
    for (const auto& top : event.chunk->top) bytes += kLogprobBytes * top.size();
    bytes += kLogprobBytes * event.chunk->logprobs.size();
    held_ += bytes;
    absl::Status status;
    if (held_ > engine::kMaxAnswerBytes) {
      status = absl::ResourceExhaustedError(
          absl::StrCat("answer: more than ", engine::kMaxAnswerBytes,
                       " bytes; a stream has no such bound, but for a response's"));
    } else if (held_ / kHoldBytes != (held_ - bytes) / kHoldBytes) {
      status = ReserveBytes(call_->record().memory(), std::max(bytes, kHoldBytes));
    }
    if (status.ok()) return true;
    part.pump.Refuse(std::move(status));
    return false;
  }

  void Finish() {  // an answer that is not streamed, or an error
    const auto self = std::exchange(self_, nullptr);
    if (!end_.ok()) return call_->Fail(end_);
    std::string whole;
    writer_->End(end_, whole);
    call_->Reply(200, std::move(whole));
  }

  const std::shared_ptr<HttpCall> call_;
  const std::unique_ptr<AnswerWriter> writer_;
  const std::function<absl::Status(absl::Status)> ended_hook_;
  Strand strand_;
  std::vector<std::unique_ptr<Part>> parts_;
  size_t open_;      // parts whose streams have not ended
  std::string out_;  // written, and still to be sent
  std::atomic<bool> streaming_ = false;
  std::atomic<bool> quiet_ = false;       // nothing was sent for a while
  std::atomic<bool> ended_ = false;       // by the hook, too
  absl::Status end_;                      // the call's, once ended_; the first error before
  size_t held_ = 0;                       // bytes of an answer that the writer keeps
  std::shared_ptr<GenerationCall> self_;  // until the end
};

}  // namespace

void StartGenerations(std::shared_ptr<HttpCall> call, std::unique_ptr<AnswerWriter> writer,
                      std::vector<Generation> generations,
                      std::function<absl::Status(absl::Status)> ended) {
  std::make_shared<GenerationCall>(std::move(call), std::move(writer), std::move(generations),
                                   std::move(ended))
      ->Start();
}

void StartGeneration(std::shared_ptr<HttpCall> call, std::unique_ptr<AnswerWriter> writer,
                     const v1::GenerateRequest& message, GenerationHooks hooks) {
  std::vector<Generation> one(1);
  one[0].submit = [&message](CallRecord& record, std::shared_ptr<engine::TokenStream> stream) {
    return SubmitGenerate(message, record, std::move(stream));
  };
  one[0].translate_error = std::move(hooks.translate_error);
  StartGenerations(std::move(call), std::move(writer), std::move(one), std::move(hooks.ended));
}

}  // namespace ovq::server
