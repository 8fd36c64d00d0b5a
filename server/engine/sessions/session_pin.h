// Access to one session for the length of an operation.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "server/engine/common/session.h"
#include "server/engine/sessions/session_ownership.h"
#include "server/engine/sessions/session_swap_in.h"
#include "server/engine/sessions/session_table.h"

namespace ovq {

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

// Engine thread only.
class SessionPins {
 public:
  using Done = std::function<void(absl::StatusOr<std::shared_ptr<PinnedSession>>)>;

  SessionPins(SessionTable& table, SessionOwnership& ownership, SessionSwapIn& swap_in)
      : table_(table), ownership_(ownership), swap_in_(swap_in) {}

  // Acquires the session if another server has it, claims it, swaps its state in, and hands it
  // out. Errors: those of SessionOwnership::Acquire, SessionTable::Claim and SessionSwapIn::SwapIn.
  void Pin(const std::string& id, const std::string& tenant, Done done) {
    ownership_.Acquire(id, tenant, [this, id, tenant, done = std::move(done)](absl::Status status) {
      if (!status.ok()) return done(std::move(status));
      absl::StatusOr<std::shared_ptr<Session>> session = table_.Claim(id, tenant);
      if (!session.ok()) return done(session.status());
      auto pin = std::make_shared<PinnedSession>(table_, *session, !(*session)->resident());
      swap_in_.SwapIn(*std::move(session),
                      [this, id, tenant, pin = std::move(pin), done](absl::Status status) mutable {
                        if (status.ok() && !(**pin).deleted) return done(std::move(pin));
                        if (status.ok())
                          status = table_.Find(id, tenant).status();  // it was deleted meanwhile
                        pin.reset();  // ends the claim before the caller is told
                        done(std::move(status));
                      });
    });
  }

 private:
  SessionTable& table_;
  SessionOwnership& ownership_;
  SessionSwapIn& swap_in_;
};

}  // namespace ovq
