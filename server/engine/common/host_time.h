// HostTime: clients owe for the host's work on their calls: parsing, tokenizing, writing, waking,
// copying states.
#pragma once

#include <cstdint>
#include <ctime>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace ovq::engine {

struct HostDebt {
  std::string client = {};  // CallRequest::client
  double weight = 1;        // of the client
  double seconds = 0;       // of the engine's time that it owes
  double paid = 0;          // of these, by an iteration of the plan that is made with it
};

struct HostStats {
  absl::Duration used = absl::ZeroDuration();  // of processors, by threads that work for clients
  absl::Duration owed = absl::ZeroDuration();  // what clients came to owe
  int64_t calls_held = 0;  // times that a client's next call waited for its debt to be paid
};

class HostMeter;

// Threads other than the engine's charge the processor time that they use to the client for whose
// calls they use it. Work on processors that are idle costs nobody anything: clients owe only what
// the engine's own threads waited for a processor meanwhile, each in proportion to what it used,
// and no more than that; and what the engine's thread copies for them between iterations. The
// iterations' plans take a debt from the client's part (PlanBatch), and calls of a client in debt
// wait before they are parsed (WorkQueue), but neither takes all from it. Any thread.
class HostTime {
 public:
  // A client owes no more; the rest of what it used is forgotten.
  static constexpr absl::Duration kMostOwed = absl::Milliseconds(500);
  // Calls begin all the same while their client owes less, which no person notices.
  static constexpr absl::Duration kLittle = absl::Milliseconds(10);

  void Charge(const std::string& client, absl::Duration used);
  bool MayBegin(const std::string& client) const;
  void CountHeld();
  HostStats stats() const;

  // --- the engine's thread ---

  // Makes what was charged since the last call into debts, with what meters that still run have
  // measured by now: a call of seconds is in debt in its first ones. waited: what the engine's
  // threads waited for a processor meanwhile; unset: unknown, so that all of it is owed.
  void Settle(std::optional<absl::Duration> waited);
  // For work of the engine's thread between iterations.
  void Owe(const std::string& client, absl::Duration time);
  std::vector<HostDebt> debts() const;  // by client
  // Lowers the debts by what one iteration has paid of each.
  void Pay(const std::vector<HostDebt>& debts);
  // Nobody waits for the engine: what is owed, and charged until the next Settle, costs nobody
  // anything.
  void Forgive();

 private:
  friend class HostMeter;
  // All with mutex_ held.
  void AddDebt(const std::string& client, absl::Duration time);
  void AddUsed(const std::string& client, absl::Duration used);
  void ChargeRunning(HostMeter& meter);

  mutable std::mutex mutex_;                    // guards the members below
  std::vector<HostMeter*> running_;             // those that measure now
  std::map<std::string, absl::Duration> used_;  // since the last Settle
  std::map<std::string, absl::Duration> owed_;
  HostStats stats_;
  bool engine_runs_ = true;
};

// Charges the processor time that its thread uses while it lives, but for that of meters within it:
// at its end, and what is known by then whenever the debts are settled. One within another of its
// client measures nothing: a look at the thread's clock is a system call.
class HostMeter {
 public:
  HostMeter(HostTime& time, std::string client);
  ~HostMeter();
  HostMeter(const HostMeter&) = delete;
  HostMeter& operator=(const HostMeter&) = delete;

 private:
  friend class HostTime;
  void Start();
  void Stop();

  HostTime& time_;
  const std::string client_;
  HostMeter* const outer_;  // of this thread
  const bool measures_;
  const clockid_t clock_;  // its thread's
  absl::Duration since_;   // what its thread has used after that is not charged yet
};

}  // namespace ovq::engine
