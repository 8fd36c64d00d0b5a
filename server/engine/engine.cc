#include "server/engine/engine.h"

#include <utility>

#include "server/engine/engine_loop.h"
#include "server/engine/error_facts.h"
#include "server/engine/validate.h"

namespace ovq {

const EngineOptions& Engine::options() const { return loop_.config().options; }
const EngineModel& Engine::model() const { return loop_.config().model; }

std::function<void()> Engine::Wake() const {
  return [inbox = loop_.inbox()] { inbox->Ring(); };
}

absl::Status Engine::Submit(GenerateRequest request, std::shared_ptr<TokenStream> stream) {
  absl::Status status = ValidateGenerate(model(), options(), request);
  if (!status.ok()) return status;
  stream->cancel_signal().SetWake(Wake());
  const bool turn = !request.session_id.empty();
  auto job = MakeJob(model(), std::move(request), std::move(stream), options().clock.steady());
  if (turn) return SubmitTurn(std::move(job));
  status = loop_.admission().Enqueue(std::move(job));
  loop_.inbox()->Ring();
  return status;
}

absl::Status Engine::SubmitTurn(std::shared_ptr<Job> job) {
  if (absl::Status status = loop_.admission().Enter(); !status.ok()) return status;
  const GenerateRequest& request = job->generate()->request;
  const auto check = [&](const Session& session) -> absl::Status {
    if (job->tokens.empty() && !session.pending) {
      return EmptyPrompt(request.field_prefix);
    }
    const int64_t position = session.position() + job->prompt_tokens;
    if (absl::Status status = CheckPosition(*model().layout, position); !status.ok()) return status;
    return loop_.admission().Charge(*job, 0, 0);  // the session holds its own share
  };
  auto claimed = loop_.sessions().Claim(request.session_id, request.tenant, check);
  if (!claimed.ok()) {
    loop_.admission().Leave();
    return claimed.status();
  }
  job->session = *std::move(claimed);
  job->sequence = job->session;
  loop_.inbox()->Post([this, job = std::move(job)] { loop_.runner().StartTurn(job); });
  return absl::OkStatus();
}

absl::Status Engine::SubmitScore(ScoreRequest request, std::shared_ptr<CancelSignal> cancel,
                                 ScoreCallback done) {
  absl::Status status = ValidateScore(model(), options(), request);
  if (!status.ok()) return status;
  if (cancel != nullptr) cancel->SetWake(Wake());
  status = loop_.admission().Enqueue(MakeJob(model(), std::move(request), std::move(cancel),
                                             std::move(done), options().clock.steady()));
  loop_.inbox()->Ring();
  return status;
}

void Engine::CreateSession(SessionOptions options, SessionCallback done) {
  absl::Status status = ValidateSession(model(), this->options(), options);
  loop_.inbox()->Post([this, status = std::move(status), options = std::move(options),
                       done = std::move(done), called = this->options().clock.steady()]() mutable {
    if (!status.ok()) return done(std::move(status));
    std::shared_ptr<Job> job = loop_.sessions().Open(std::move(options), called, std::move(done));
    if (job != nullptr) loop_.runner().Start(std::move(job));
  });
}

absl::Status Engine::DeleteSession(const std::string& id,
                                   const std::optional<std::string>& tenant) {
  return loop_.inbox()->Call<absl::Status>([&, called = options().clock.steady()] {
    return loop_.sessions().Delete(id, tenant, called);
  });
}
absl::StatusOr<SessionInfo> Engine::GetSession(const std::string& id,
                                               const std::string& tenant) const {
  return loop_.sessions().Get(id, tenant);
}
absl::StatusOr<SessionPage> Engine::ListSessions(const std::optional<std::string>& tenant,
                                                 int page_size,
                                                 const std::string& page_token) const {
  return loop_.sessions().List(tenant, page_size, page_token);
}

absl::Status Engine::ChargeRequest(const std::string& tenant) {
  Job job;
  job.tenant = tenant;
  return loop_.admission().Charge(job, 0, 0);
}

EngineStats Engine::Stats() const { return loop_.Stats(); }

bool Engine::Drain(absl::Duration timeout) {
  if (loop_.admission().Close(timeout)) return true;
  loop_.inbox()->Post(
      [this] { loop_.EndAll(absl::UnavailableError("the server is shutting down")); });
  loop_.admission().Close(absl::InfiniteDuration());
  return false;
}

absl::StatusOr<std::vector<std::byte>> Engine::CopyState(const std::string& id,
                                                         const std::string& tenant) {
  return loop_.inbox()->Call<absl::StatusOr<std::vector<std::byte>>>(
      [&] { return loop_.sessions().CopyState(id, tenant); });
}

}  // namespace ovq
