// Fuzzes sessions and calls in any order while time passes and limits change. Every call ends,
// quotas and memory match what the live sessions hold, and nothing is held after they are gone.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <thread>

#include "server/engine/common/quota.h"
#include "server/engine/common/session_image.h"
#include "tests/fuzz/bytes.h"
#include "tests/server/engine/fake_model.h"

namespace ovq::fuzz {
namespace {

constexpr std::array kTenants = {"a", "b", "c"};
constexpr int32_t kSpoilt = 250;  // after this token the model's output is NaN
constexpr int kMostCalls = 48;    // in one input

// Clock that runs on by itself and leaps where an input says so.
struct LeapingClock {
  std::atomic<int64_t> minutes = 0;
  void Leap(int64_t more) {
    constexpr int64_t kMost = 25'000'000;  // some decades, over all inputs
    if (minutes < kMost) minutes += more;
  }
  Clock clock() {
    return {.steady = [this] { return Clock().steady() + std::chrono::minutes(minutes.load()); },
            .wall = [this] { return Clock().wall() + absl::Minutes(minutes.load()); }};
  }
};

std::map<std::string, engine::TenantLimits> UsualLimits() {
  return {{"b", {.sessions = 2}}, {"c", {.state_bytes = 40'000}}};
}

engine::EngineOptions Options(const std::shared_ptr<engine::TenantQuotas>& quotas,
                              const Clock& clock) {
  engine::EngineOptions options;
  options.seed = 1;
  options.clock = clock;
  options.state_memory_bytes = 250'000;
  options.copy_bytes_per_iteration = 20'000;
  options.max_prompt_tokens = 900;
  options.max_batch_tokens = 40;
  options.max_queue = 4;
  options.max_sessions = 8;
  options.checkpoint_memory_bytes = options.prefix_memory_bytes = 200'000;
  options.trust_session_files = true;
  options.quotas = quotas;
  return options;
}

class Driver {
 public:
  Driver()
      : quotas_(std::make_shared<engine::TenantQuotas>(clock_.clock())),
        engine_(Options(quotas_, clock_.clock()),
                {.exact_too = true, .max_unbounded_tokens = 1500, .weight_bytes = 4000}, {},
                [](engine::test::FakeModel& model) {
                  model.Spoil(kSpoilt, std::numeric_limits<float>::quiet_NaN());
                }) {}

  void Run(Bytes bytes) {
    quotas_->SetLimits(UsualLimits());
    for (int i = 0; i < kMostCalls && !bytes.empty(); ++i) One(bytes);
    ReadAll();
    Check(scores_ == 0, "a score has an end");
    CheckSums();
    for (const engine::SessionInfo& session : Sessions()) {
      Check(engine_->sessions().Delete(session.id, std::nullopt).ok(), "a session can be deleted");
    }
    image_.reset();
    const engine::EngineStats stats = engine_.SettledStats();
    Check(stats.state_bytes_reserved + stats.state_bytes_committed == 0, "no state is left");
    Check(stats.checkpoint_bytes + stats.token_log_bytes == 0, "nor copies, nor tokens");
    Check(stats.requests_running + stats.requests_waiting == 0, "nor a call");
    Check(quotas_->Clients().empty(), "nor what a client used");
  }

 private:
  std::string Tenant(Bytes& bytes) { return kTenants[static_cast<size_t>(bytes.Upto(2))]; }
  std::vector<engine::SessionInfo> Sessions() {
    return engine_->sessions().List(std::nullopt, 1000, "").value().sessions;
  }
  // A live session, or none.
  engine::SessionInfo Session(Bytes& bytes) {
    const std::vector<engine::SessionInfo> sessions = Sessions();
    engine::SessionInfo none;
    none.id = "none";
    if (sessions.empty()) return none;
    return sessions[static_cast<size_t>(bytes.Upto(static_cast<int>(sessions.size()) - 1))];
  }
  std::vector<int32_t> Tokens(Bytes& bytes) {
    std::vector<int32_t> tokens(static_cast<size_t>(bytes.Byte()) *
                                static_cast<size_t>(1 + bytes.Upto(1) * 3));
    const int first = bytes.Byte();
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<int32_t>((i + static_cast<size_t>(first)) % 256);
    return tokens;
  }
  // True if the call succeeded; an error must have a text.
  template <class T>
  bool Done(engine::test::Receiver<absl::StatusOr<T>>& receiver) {
    const absl::StatusOr<T> result = receiver.Wait();
    Check(result.ok() || !result.status().message().empty(), "an error says what is wrong");
    return result.ok();
  }

  void One(Bytes& bytes) {
    switch (bytes.Upto(15)) {
      case 0:
        return Create(bytes);
      case 1:
      case 2:
        return Generate(bytes);
      case 3:
        return Fork(bytes);
      case 4:
        return Rewind(bytes);
      case 5:
        return Export(bytes);
      case 6:
        return Import(bytes);
      case 7:
        return (void)engine_->sessions().Delete(Session(bytes).id, std::nullopt);
      case 8:
        return Cancel(bytes);
      case 10:
        return Score(bytes);
      case 11:
        clock_.Leap(bytes.Upto(40));
        return;
      case 12:
        return QuerySession(bytes);
      case 13:
        return Delta(bytes);
      case 14:
        return Limit(bytes);
      default:
        return CheckSums();
    }
  }
  void Create(Bytes& bytes) {
    engine::SessionOptions options;
    options.tenant = options.client = Tenant(bytes);
    options.prompt = Tokens(bytes);
    options.keep_tokens = bytes.Upto(3) > 0;
    if (bytes.Upto(1) == 1) options.slot_cap = bytes.Byte();
    options.cacheable = bytes.Upto(1) * std::ssize(options.prompt);
    if (const int more = bytes.Upto(15); more > 0) {
      options.variant = PolicyName(more);
      if (more % 4 == 1) options.key = "key";
      if (more % 4 == 2) options.ttl = absl::Minutes(10 * bytes.Upto(20));
      if (more == 3) options.cancel = std::make_shared<engine::CancelSignal>();
      if (options.cancel) options.cancel->Cancel();
    }
    engine::test::Receiver<absl::StatusOr<engine::SessionInfo>> receiver;
    engine_->sessions().Create(std::move(options), receiver.callback());
    Done(receiver);
  }
  void Generate(Bytes& bytes) {
    engine::GenerateRequest request;
    const engine::SessionInfo session = Session(bytes);
    const int how = bytes.Upto(3);
    if (how > 0) request.session_id = session.id;
    request.tenant = request.client = how == 1 ? Tenant(bytes) : session.tenant;
    request.prompt = Tokens(bytes);
    request.stop.max_tokens = bytes.Upto(40);
    request.stop.ignore_eos = bytes.Upto(1) == 1;
    request.sampling.repetition_penalty = bytes.Upto(1) == 1 ? 1.3f : 1.0f;
    request.n = bytes.Upto(7) == 0 ? bytes.Upto(4) : 1;
    if (bytes.Upto(3) == 0) request.expected_position = static_cast<uint64_t>(bytes.Byte());
    if (const int more = bytes.Upto(15); more > 0) {
      if (how == 0) request.variant = PolicyName(more);
      request.cacheable = bytes.Upto(1) * std::ssize(request.prompt);
      if (more % 4 == 1) request.output.speculation = engine::Speculation::kNgram;
      if (more % 4 == 2) request.output = {.logprobs = true, .top_logprobs = bytes.Upto(3)};
      if (more == 3) request.deadline = clock_.clock().steady();
      request.seed_given = more % 2 == 0;
    }
    auto stream = std::make_shared<engine::TokenStream>(static_cast<size_t>(4 + bytes.Byte()));
    const absl::Status status = engine_->Submit(std::move(request), stream);
    Check(status.ok() || !status.message().empty(), "an error says what is wrong");
    if (status.ok()) calls_.push_back(std::move(stream));
    if (bytes.Upto(1) == 0) ReadAll();
  }
  static std::string PolicyName(int more) { return more < 8 ? "" : more < 15 ? "exact" : "none"; }
  void Score(Bytes& bytes) {
    engine::ScoreRequest request;
    request.tenant = request.client = Tenant(bytes);
    request.prompt = Tokens(bytes);
    request.top_logprobs = bytes.Upto(3);
    request.variant = PolicyName(bytes.Upto(15));
    const auto cancel = std::make_shared<engine::CancelSignal>();
    ++scores_;
    const absl::Status status = engine_->SubmitScore(
        request, cancel, [this, n = request.prompt.size()](const auto& result) {
          Check(!result.ok() || result->rows.size() == n, "a score has a row for each token");
          --scores_;
        });
    Check(status.ok() || !status.message().empty(), "an error says what is wrong");
    if (!status.ok()) --scores_;
    if (status.ok()) score_cancels_.push_back(cancel);
    if (bytes.Upto(7) == 0) cancel->Cancel();
  }
  void QuerySession(Bytes& bytes) {
    const engine::SessionInfo session = Session(bytes);
    const absl::StatusOr<engine::SessionInfo> info =
        engine_->sessions().Get(session.id, session.tenant);
    // The session may be in use or quarantined.
    const absl::StatusOr<std::vector<std::byte>> state =
        engine::test::CopyState(*engine_, session.id, session.tenant);
    Check(!state.ok() || info.ok(), "what has a state is known");
    int n = 0;
    std::string token;
    do {
      const engine::SessionPage page = engine_->sessions().List(session.tenant, 2, token).value();
      n += static_cast<int>(page.sessions.size());
      token = page.next_page_token;
    } while (!token.empty());
    Check(n <= 8, "pages have each session once");
  }
  void Delta(Bytes& bytes) {
    const engine::SessionInfo session = Session(bytes);
    if (!image_ || !image_->tokens) return;
    const absl::StatusOr<engine::SessionImage> delta = engine_->sessions().Export(
        session.id, session.tenant, engine::MakeSessionBase(*image_->tokens));
    Check(delta.ok() || !delta.status().message().empty(), "an error says what is wrong");
    if (delta.ok()) image_ = engine::test::Joined(*image_, *delta);
  }
  void Limit(Bytes& bytes) {
    std::map<std::string, engine::TenantLimits> limits = UsualLimits();
    if (bytes.Upto(1) == 1) limits["a"] = {.weight = 1 + bytes.Upto(3)};
    if (bytes.Upto(1) == 1) limits["b"].tokens_per_second = 1 + bytes.Byte();
    if (bytes.Upto(1) == 1) limits["c"].requests_per_second = 1 + bytes.Upto(2);
    if (bytes.Upto(3) == 0) limits.erase("b");
    quotas_->SetLimits(limits);
    for (const char* tenant : kTenants) (void)engine_->ChargeRequest(tenant);
  }
  // Reads all receivers concurrently: one may wait for what another, or an idle session, holds.
  void ReadAll() {
    const auto patience = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
    while (!calls_.empty() || scores_ > 0) {
      if (std::chrono::steady_clock::now() > patience) {
        for (const auto& call : calls_) call->Cancel();
        for (const auto& score : score_cancels_) score->Cancel();
      }
      for (const auto& call : calls_) {
        while (call->TryPop()) {
        }
      }
      std::erase_if(calls_, [](const auto& call) { return call->closed(); });
      std::this_thread::yield();
    }
    score_cancels_.clear();
  }
  void Cancel(Bytes& bytes) {
    for (const auto& call : calls_) {
      if (bytes.Upto(1) == 0) call->Cancel();
    }
    if (bytes.Upto(1) == 0) ReadAll();
  }
  void Fork(Bytes& bytes) {
    const engine::SessionInfo session = Session(bytes);
    engine::test::Receiver<absl::StatusOr<std::vector<engine::SessionInfo>>> receiver;
    engine_->sessions().Fork({.session_id = session.id,
                              .tenant = session.tenant,
                              .client = session.tenant,
                              .count = bytes.Upto(4)},
                             receiver.callback());
    Done(receiver);
  }
  void Rewind(Bytes& bytes) {
    const engine::SessionInfo session = Session(bytes);
    const int64_t back = bytes.Byte() * (1 + bytes.Upto(3));
    engine::test::Receiver<absl::StatusOr<engine::RewindResult>> receiver;
    engine_->sessions().Rewind({.session_id = session.id,
                                .tenant = session.tenant,
                                .client = session.tenant,
                                .position = static_cast<uint64_t>(session.position - back),
                                .dry_run = bytes.Upto(3) == 0},
                               nullptr, receiver.callback());
    Done(receiver);
  }
  void Export(Bytes& bytes) {
    const engine::SessionInfo session = Session(bytes);
    absl::StatusOr<engine::SessionImage> image =
        engine_->sessions().Export(session.id, session.tenant);
    if (image.ok()) image_ = *std::move(image);
  }
  void Import(Bytes& bytes) {
    if (!image_) return;
    engine::SessionOptions options;
    options.tenant = options.client = Tenant(bytes);
    engine::test::Receiver<absl::StatusOr<engine::SessionInfo>> receiver;
    engine_->sessions().Import(*image_, std::move(options), receiver.callback());
    Done(receiver);
  }
  // Between iterations, once no call is pending, only the sessions' own use counts.
  void CheckSums() {
    if (!calls_.empty() || scores_ > 0) return;
    const engine::EngineStats stats = engine_.SettledStats();
    size_t bytes = 0;
    int64_t sessions = 0;
    for (const engine::SessionInfo& session : Sessions()) {
      bytes += session.state_bytes_cap;
      ++sessions;
    }
    Check(stats.sessions_idle == sessions && stats.sessions_active == 0, "all are idle");
    Check(stats.state_bytes_reserved == bytes, "what is reserved is the sum of the sessions' caps");
    int64_t counted = 0;
    size_t held = 0;
    for (const engine::TenantUse& use : quotas_->Use()) {
      counted += use.sessions;
      held += use.state_bytes;
    }
    Check(counted == sessions && held == bytes, "and what the quotas count");
  }

  LeapingClock clock_;
  const std::shared_ptr<engine::TenantQuotas> quotas_;
  std::atomic<int> scores_ = 0;  // not ended yet
  engine::test::TestEngine engine_;
  std::vector<std::shared_ptr<engine::TokenStream>> calls_;
  std::vector<std::shared_ptr<engine::CancelSignal>> score_cancels_;
  std::optional<engine::SessionImage> image_;
};

}  // namespace
}  // namespace ovq::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static ovq::fuzz::Driver driver;
  driver.Run({data, size});
  return 0;
}
