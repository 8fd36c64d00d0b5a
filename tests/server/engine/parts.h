// The engine's parts on test clocks, without an engine thread.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/engine/common/admission.h"
#include "server/engine/engine.h"
#include "server/engine/scheduling/scheduler.h"
#include "server/engine/sessions/sessions.h"
#include "tests/server/engine/fake_model.h"
#include "tests/test_util.h"

namespace ovq::engine::test {

inline SessionOptions Lasting(absl::Duration ttl) {
  SessionOptions options;
  options.ttl = ttl;
  return options;
}

struct TestClock {
  SteadyTime steady{std::chrono::hours(1)};
  absl::Time wall = absl::FromUnixSeconds(1'700'000'000);

  Clock clock() {
    return {.steady = [this] { return steady; }, .wall = [this] { return wall; }};
  }
  void Advance(absl::Duration time) {
    steady += absl::ToChronoNanoseconds(time);
    wall += time;
  }
};

// Admission and sessions on the fake model's layout. `rejected` and `events` collect the reports.
struct Parts {
  explicit Parts(EngineOptions options = {}, FakeModelOptions model_options = {})
      : model(std::move(model_options)), config(Config(std::move(options))) {}

  std::shared_ptr<Request> NewRequest(int64_t n_prompt, int64_t max_tokens, int n = 1,
                                      const std::string& tenant = "") {
    GenerateRequest call = SampleRequest(SomeTokens(n_prompt, 1), max_tokens);
    call.n = n;
    call.tenant = tenant;
    return MakeRequest(config.model, std::move(call), std::make_shared<TokenStream>(),
                       clock.steady);
  }
  void Release(Request& request) {
    admission.DropPromised(request);
    pool.Release(request.sequence->state);
    request.hold.reset();
    admission.Leave();
  }
  // Opens a session without a prompt; returns the status if it is refused.
  absl::StatusOr<SessionInfo> Open(SessionOptions options = {}) {
    if (absl::Status status = admission.Enter(); !status.ok()) return status;
    absl::StatusOr<SessionInfo> opened;
    sessions.creator.Create(std::move(options), clock.steady,
                            [&](absl::StatusOr<SessionInfo> info) { opened = std::move(info); });
    admission.Leave();
    return opened;
  }

  TestClock clock;
  FakeModel model;
  std::vector<RejectReason> rejected;
  std::vector<std::string> events;
  const EngineConfig config;
  std::unique_ptr<kernels::DeviceContext> context =
      kernels::test::MakeContext(kernels::Device::kCpu);
  RandomSource random{7};
  StatePool pool{config.options.state_memory_bytes, *context};
  Admission admission{config, pool};
  SessionParts sessions{{config, pool, admission, random}};

 private:
  EngineConfig Config(EngineOptions options) {
    options.clock = clock.clock();
    if (options.quotas == nullptr) options.quotas = std::make_shared<TenantQuotas>(options.clock);
    if (options.request_memory == nullptr) {
      options.request_memory = std::make_shared<ByteBudget>(size_t{1} << 30);
    }
    EngineEvents told;
    told.rejected = [this](RejectReason reason) { rejected.push_back(reason); };
    told.session_event = [this](const SessionReport& report) { events.push_back(report.event); };
    return {model.Make(), std::move(options), std::move(told)};
  }
};

}  // namespace ovq::engine::test
