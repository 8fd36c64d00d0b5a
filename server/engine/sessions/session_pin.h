// Access to one session for the length of an operation.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "server/engine/sessions/session_ownership.h"
#include "server/engine/sessions/session_swap_in.h"

namespace ovq::engine {

// A session whose state is in memory, until the destruction of this object ends its claim. Engine
// thread only.
class PinnedSession {
 public:
  // used: the end of the claim counts as use of the session.
  PinnedSession(SessionTable& table, std::shared_ptr<Session> session, bool used)
      : table_(table), session_(std::move(session)), used_(used) {}
  ~PinnedSession() {
    if (session_ != nullptr) table_.EndClaim(*session_, used_);
  }
  PinnedSession(const PinnedSession&) = delete;
  PinnedSession& operator=(const PinnedSession&) = delete;

  Session& operator*() const { return *session_; }
  Session* operator->() const { return session_.get(); }
  void MarkUsed() { used_ = true; }
  // Ends the claim now.
  std::shared_ptr<Session> Release() {
    table_.EndClaim(*session_, used_);
    return std::move(session_);
  }
  // Leaves the claim to the caller, who calls SessionTable::EndClaim.
  std::shared_ptr<Session> Detach() { return std::move(session_); }

 private:
  SessionTable& table_;
  std::shared_ptr<Session> session_;
  bool used_;
};

class SessionPins {
 public:
  using Pinned = absl::StatusOr<std::shared_ptr<PinnedSession>>;
  using Done = std::function<void(Pinned)>;
  using Check = SessionTable::ClaimCheck;

  SessionPins(SessionCore& core, SessionOwnership& ownership, SessionSwapIn& swap_in)
      : core_(core), ownership_(ownership), swap_in_(swap_in) {}

  // Acquires the session if another server has it, claims it, swaps its state in, and hands it
  // out. Errors: those of SessionOwnership::Acquire, SessionTable::Claim and SessionSwapIn::SwapIn.
  // Engine thread.
  void Pin(const std::string& id, const std::string& tenant, Done done) {
    AcquireAndPin(id, tenant, {}, [this, id, tenant, done = std::move(done)](Pinned pin) {
      // It may have been deleted meanwhile. That ends the claim before the caller is told.
      if (pin.ok() && (**pin)->deleted) pin = core_.table.Find(id, tenant).status();
      done(std::move(pin));
    });
  }
  // Pins a session for a turn, from any thread. A session that is here is claimed at once, and the
  // error of that is returned; later errors go to `done`. A session that was deleted meanwhile is
  // handed out, too: its request ends it.
  absl::Status PinForTurn(const std::string& id, const std::string& tenant, Check check,
                          Done done) {
    if (!ownership_.MayBeElsewhere(id)) {
      absl::StatusOr<std::shared_ptr<Session>> session = core_.table.Claim(id, tenant, check);
      if (session.ok()) {
        core_.inbox->Post([this, session = *std::move(session), done = std::move(done)] {
          SwapIn(session, done);
        });
        return absl::OkStatus();
      }
      // It may have gone to another server between the two.
      if (!absl::IsNotFound(session.status()) || !ownership_.MayBeElsewhere(id)) {
        return session.status();
      }
    }
    core_.inbox->Post([this, id, tenant, check = std::move(check), done = std::move(done)] {
      AcquireAndPin(id, tenant, check, done);
    });
    return absl::OkStatus();
  }

 private:
  void AcquireAndPin(const std::string& id, const std::string& tenant, Check check, Done done) {
    ownership_.Acquire(id, tenant, [=, this](absl::Status status) {
      if (!status.ok()) return done(std::move(status));
      absl::StatusOr<std::shared_ptr<Session>> session = core_.table.Claim(id, tenant, check);
      session.ok() ? SwapIn(*std::move(session), done) : done(session.status());
    });
  }
  void SwapIn(std::shared_ptr<Session> session, Done done) {
    auto pin = std::make_shared<PinnedSession>(core_.table, session, !session->resident());
    swap_in_.SwapIn(std::move(session),
                    [pin = std::move(pin), done = std::move(done)](absl::Status status) mutable {
                      if (status.ok()) return done(std::move(pin));
                      pin.reset();  // ends the claim before the caller is told
                      done(std::move(status));
                    });
  }

  SessionCore& core_;
  SessionOwnership& ownership_;
  SessionSwapIn& swap_in_;
};

}  // namespace ovq::engine
