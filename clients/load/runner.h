// Defines Runner, which sends a workload at its due times and records the outcomes. It knows no
// gRPC: calls are passed in as functions.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <queue>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "clients/load/distributions.h"
#include "clients/load/record.h"
#include "clients/load/workload.h"

namespace ovq::load {

struct GenerateSpec {
  std::vector<uint32_t> prompt = {};
  int64_t output_tokens = 1;
  std::string session_id = {};  // empty: a single request without a session
  uint64_t seed = 0;
};

// Called on the runner's thread. Each `done` is called exactly once, on any thread, possibly before
// the call returns.
struct Calls {
  std::function<void(GenerateSpec, std::function<void(Outcome)> done)> generate;
  std::function<void(std::function<void(absl::StatusOr<std::string>)> done)> create_session;
  // Returns the number of tokens in the session's conversation.
  std::function<void(const std::string& id, std::function<void(absl::StatusOr<int64_t>)> done)>
      get_position;
  std::function<void(const std::string& id, std::function<void(absl::Status)> done)> delete_session;
  std::function<void()> cancel_all;          // makes all running calls end soon
  std::function<int64_t()> tokens_received;  // tokens received by all calls so far
};

struct RunPlan {
  enum class Kind : uint8_t { kClosed, kRate, kTrace };
  Kind kind = Kind::kClosed;
  ArrivalOptions arrivals = {};  // for kRate; kClosed uses its ramp, too
  int64_t users = 1;             // for kClosed
  int64_t max_in_flight = 4096;  // for kRate and traces; at least `users` for kClosed
  absl::Duration think_time = absl::ZeroDuration();
  // Time for which requests survive an unreachable server: interrupted turns begin again, sessions
  // are deleted later, and no session may be behind its last acknowledged position. 0: every
  // failure is final.
  absl::Duration outlast = absl::ZeroDuration();
  absl::Duration duration = absl::Minutes(1);  // no request starts after this
  absl::Duration grace = absl::Seconds(30);    // then running calls are cancelled
  absl::Duration interrupted_grace = absl::Seconds(2);
};

struct Progress {
  double elapsed_s = 0;
  int64_t completed = 0, failed = 0, in_flight = 0;
  int64_t tokens = 0;  // tokens received
};

// Executes one run.
class Runner {
 public:
  // `interrupts` counts the user's requests to stop: the first stops sending, the second cancels
  // running calls. Calls on_progress on Run's thread several times a second.
  Runner(const RunPlan& plan, Workload& workload, const PromptMaker& prompts, const Calls& calls,
         const std::atomic<int>& interrupts, std::function<void(const Progress&)> on_progress);
  RunResult Run();

 private:
  struct Active {
    Conversation plan;
    size_t next_turn = 0;
    std::string session_id;
    Clock::time_point due;                        // when the next turn is due
    double send_delay_s = 0;                      // lateness of the next turn
    std::vector<uint32_t> prompt;                 // prompt of the next turn
    int64_t position = 0;                         // the session's last acknowledged position
    std::optional<Clock::time_point> away_since;  // when the server became unreachable
    bool ended = false;                           // but for its session, which is to be deleted

    const Turn& turn() const { return plan.turns[next_turn]; }
  };
  using ActivePtr = std::shared_ptr<Active>;
  struct LaterDue {
    bool operator()(const ActivePtr& a, const ActivePtr& b) const { return a->due > b->due; }
  };

  void Post(std::function<void()> event);      // any thread; the event runs on Run's thread
  void HandleEvents(Clock::time_point until);  // waits for the first event

  void PrepareUpcoming();
  void PreparePrompt(Active& active) const;
  void StartDue(Clock::time_point now);
  void Send(ActivePtr active);  // the conversation's next turn
  void OnPosition(const ActivePtr& active, const absl::StatusOr<int64_t>& position);
  // Called after a failed call, which `running` counts: returns true if the server is unreachable
  // and the call is scheduled again.
  bool TryLater(const ActivePtr& active, const absl::Status& status, int64_t& running);
  absl::Status Follow(Active& active, const ServerUsage& usage) const;
  void OnCreated(const ActivePtr& active, const absl::StatusOr<std::string>& id,
                 Clock::time_point sent, Clock::time_point ended);
  void SendTurn(ActivePtr active);
  void OnTurnDone(const ActivePtr& active, Outcome outcome);
  void EndConversation(const ActivePtr& active);
  void DeleteSession(const ActivePtr& active);
  void OnDeleted(const ActivePtr& active, const absl::Status& status);

  void CheckLimits(Clock::time_point now);
  void StopSending(Clock::time_point now, absl::Duration grace);
  Clock::time_point NextWake(Clock::time_point now) const;
  void ReportProgress(Clock::time_point now);
  Clock::time_point StartOfUser(int64_t user) const {
    return After(begin_, UserStartTime(user, plan_.users, plan_.arrivals.ramp));
  }
  bool closed_loop() const { return plan_.kind == RunPlan::Kind::kClosed; }
  Clock::time_point At(double seconds) const { return After(begin_, absl::Seconds(seconds)); }

  const RunPlan plan_;
  Workload& workload_;
  const PromptMaker& prompts_;
  const Calls& calls_;
  const std::atomic<int>& interrupts_;
  const std::function<void(const Progress&)> on_progress_;
  ArrivalSchedule schedule_;

  std::mutex mutex_;  // guards the next two members
  std::condition_variable wake_;
  std::vector<std::function<void()>> events_;

  // The members below are used on Run's thread only.
  Clock::time_point begin_, end_;
  ActivePtr upcoming_;  // the next conversation
  // conversations ordered by when their next turn is due
  std::priority_queue<ActivePtr, std::vector<ActivePtr>, LaterDue> waiting_;
  int64_t users_ = 0;          // closed loop: users that have begun
  int64_t conversations_ = 0;  // conversations begun and not ended
  int64_t in_flight_ = 0;      // running Generate and CreateSession calls
  int64_t deleting_ = 0;
  int64_t completed_ = 0, failed_ = 0;
  bool stopping_ = false, cancelled_ = false;
  int seen_interrupts_ = 0;
  Clock::time_point cancel_at_, next_progress_;
  RunResult result_;
};

}  // namespace ovq::load
