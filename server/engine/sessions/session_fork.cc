#include "server/engine/sessions/session_fork.h"

#include <utility>

#include "base/status_macros.h"
#include "server/engine/common/session_image.h"

namespace ovq::engine {

// A fork whose copies have memory and quota, and get their bytes.
struct SessionForks::Forking {
  std::shared_ptr<PinnedSession> session;
  ForkOptions options;
  SteadyTime called;
  SessionsCallback done;
  std::unique_ptr<QuotaHold> hold;
  std::vector<StateHandle> states;
  size_t copied = 0;  // of the states
};

void SessionForks::Fork(std::shared_ptr<PinnedSession> session, const ForkOptions& options,
                        SteadyTime called, SessionsCallback done) {
  auto fork = std::make_shared<Forking>();
  fork->session = std::move(session);
  fork->session->MarkUsed();
  fork->options = options;
  fork->called = called;
  fork->done = std::move(done);
  if (absl::Status status = AcquireStates(*fork); !status.ok()) {
    return EndFork(*fork, std::move(status));
  }
  forks_.push_back(std::move(fork));
  if (forks_.size() == 1) CopyStates();
}

absl::Status SessionForks::AcquireStates(Forking& fork) {
  const StateHandle& state = (*fork.session)->state;
  const auto count = static_cast<int>(fork.options.count);
  const size_t bytes = state.layout->bytes_cap(state.slot_cap) * static_cast<size_t>(count);
  Request request;  // what the tenant is charged for
  request.tenant = fork.options.tenant;
  request.client = fork.options.client;
  RETURN_IF_ERROR(admission_.Charge(request, count, bytes));
  fork.hold = std::move(request.hold);
  ASSIGN_OR_RETURN(fork.states, admission_.AcquireCopies(state, count, fork.options.client));
  return absl::OkStatus();
}

void SessionForks::CopyStates() {
  size_t bytes = 0;
  while (!forks_.empty() && bytes < config_.options.copy_bytes_per_iteration) {
    const std::shared_ptr<Forking> fork = forks_.front();
    const StateHandle& state = (*fork->session)->state;
    absl::Status status = pool_.CopyTo(state, fork->states[fork->copied]);
    bytes += pool_.SnapshotBytes(state);
    if (status.ok() && ++fork->copied < fork->states.size()) continue;
    forks_.pop_front();
    EndFork(*fork, std::move(status));
  }
  if (!forks_.empty()) inbox_->Post([this] { CopyStates(); });
}

void SessionForks::EndFork(Forking& fork, absl::Status status) {
  std::vector<std::shared_ptr<Session>> copies;
  std::shared_ptr<const SessionImage> image;
  if (status.ok()) {
    copies = MakeCopies(fork);
    if ((*fork.session)->disk) image = disk_.MakeImage(**fork.session);
  } else {
    for (StateHandle& state : fork.states) pool_.Release(state);
  }
  fork.session.reset();
  if (!status.ok()) return fork.done(std::move(status));
  creator_.PublishSessions(std::move(copies), image, "fork", fork.called, std::move(fork.done));
}

std::vector<std::shared_ptr<Session>> SessionForks::MakeCopies(Forking& fork) {
  const Session& session = **fork.session;
  const std::string& id = session.info.id;
  const size_t dot = id.find('.');
  std::vector<std::shared_ptr<Session>> copies;
  for (const StateHandle& state : fork.states) {
    copies.push_back(
        creator_.NewSession(state, fork.hold->Split(1, state.reserved_bytes), fork.options.tenant,
                            dot == std::string::npos ? "" : id.substr(0, dot),
                            fork.options.ttl.value_or(session.ttl), session.log.has_value()));
    Session& copy = *copies.back();
    copy.client = fork.options.client;
    copy.pending = session.pending;
    copy.log = session.log;
    copy.turn_ends = session.turn_ends;
    table_.checkpoints().Share(session, copy);
  }
  return copies;
}

}  // namespace ovq::engine
