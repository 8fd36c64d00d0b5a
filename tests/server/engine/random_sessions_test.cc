// Sessions under random calls, compared with a plain model: a session is the list of its tokens.
// After any turns, cancellations, forks, moves, rewinds, restarts and deletions, beside any other
// sessions, its state and its answers equal to the byte those of a session that has consumed just
// these tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <random>

#include "server/disk/session_folder.h"
#include "tests/folders.h"
#include "tests/server/engine/fake_model.h"
#include "tests/server/engine/served_model.h"
#include "tests/test_util.h"

namespace ovq::engine::test {
namespace {

constexpr size_t kMostTokens = 900;  // of a session, which is then deleted

struct Plain {
  std::string id;
  std::vector<int32_t> tokens;
  bool keeps_tokens;
  std::optional<SessionImage> earlier = {};  // at its last move
};

class Driver {
 public:
  Driver(EngineModel model, uint32_t seed)
      : random_(seed),
        model_(std::move(model)),
        vocab_size_(std::min<int64_t>(model_.vocab_size, 256)),
        slot_cap_(model_.variants[0].default_slot_cap > 0 ? std::optional<int32_t>(24 + Upto(40))
                                                          : std::nullopt),
        stock_(Tokens(600)),
        options_(Options()) {
    if (seed % 8 == 0) UseFolder();
    StartEngine();
  }
  ~Driver() {
    engine_thread_.reset();
    options_.session_store.reset();
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }

  void Run(int calls) {
    for (int call = 0; call < calls && !testing::Test::HasFailure(); ++call) {
      const int what = sessions_.empty() ? 0 : Upto(10);
      if (!folder_.empty() && Upto(5) == 0) StartEngine();
      if (what == 0 && sessions_.size() < 6) {
        Open();
      } else if (what <= 3) {
        TalkToSeveral();
      } else if (what == 4) {
        Cancel(Any());
      } else if (what == 5 && sessions_.size() < 6) {
        Fork(Any());
      } else if (what <= 8) {
        Rewind(Any());
      } else if (what == 9) {
        Move(Any());
      } else {
        Delete(Upto(static_cast<int>(sessions_.size()) - 1));
      }
      if (!sessions_.empty()) Compare(Any());
      std::erase_if(sessions_, [this](const Plain& session) {
        return session.tokens.size() > kMostTokens &&
               engine_->sessions().Delete(session.id, "").ok();
      });
    }
    while (!sessions_.empty()) {
      Compare(sessions_.back());
      Delete(static_cast<int>(sessions_.size()) - 1);
    }
    EXPECT_TRUE(
        absl::IsNotFound(engine_->sessions().Export("none", "").status()));  // waits for a boundary
    const EngineStats stats = engine_->Stats();
    EXPECT_EQ(stats.state_bytes_committed + stats.state_bytes_reserved, 0u);
    EXPECT_EQ(stats.checkpoint_bytes + stats.token_log_bytes, 0u);
    EXPECT_EQ(stats.sessions_idle + stats.sessions_active + stats.sessions_hibernated, 0);
  }

 private:
  EngineOptions Options() {
    EngineOptions options;
    options.seed = 1;
    options.max_batch_tokens = 1 + Upto(200);
    options.trust_session_files = Upto(1) == 0;
    options.speculation = Upto(1) == 0 ? Speculation::kOff : Speculation::kNgram;
    options.checkpoint_memory_bytes = std::vector<size_t>{0, 300'000, size_t{1} << 30}[Upto(2)];
    options.prefix_memory_bytes = std::vector<size_t>{0, 300'000, size_t{1} << 30}[Upto(2)];
    return options;
  }
  // Uses a session folder, with memory for four sessions: the others are swapped out.
  void UseFolder() {
    folder_ = testing::TempDir() + "/random_sessions" + std::to_string(getpid());
    std::filesystem::remove_all(folder_);
    const ModelVariant& variant = model_.variants[0];
    options_.state_memory_bytes =
        4 * variant.layout->bytes_cap(slot_cap_.value_or(variant.default_slot_cap));
    options_.overcommit = true;
  }
  // Starts an engine, or replaces the one that runs: it finds the sessions in the folder.
  void StartEngine() {
    engine_thread_.reset();
    options_.session_store.reset();
    store::RecoveredSessions found;
    if (!folder_.empty()) {
      auto folder = disk::SessionFolder::Open({.path = folder_, .sync_always = false});
      ASSERT_TRUE(folder.ok()) << folder.status();
      found = *(*folder)->Recover();
      EXPECT_THAT(found.damaged, testing::IsEmpty());
      EXPECT_EQ(found.sessions.size(), sessions_.size());
      options_.session_store = *std::move(folder);
      ++options_.seed;  // ids are new ones
    }
    engine_thread_ = std::make_unique<EngineThread>(
        model_, options_, kernels::test::MakeContext(kernels::Device::kCpu), EngineEvents());
    engine_ = &engine_thread_->engine();
    EXPECT_THAT(engine_->sessions().Adopt(std::move(found.sessions)), testing::IsEmpty());
  }
  int Upto(int most) { return std::uniform_int_distribution(0, most)(random_); }
  Plain& Any() {
    return sessions_[static_cast<size_t>(Upto(static_cast<int>(sessions_.size()) - 1))];
  }
  std::vector<int32_t> Tokens(int n) {
    std::vector<int32_t> tokens(static_cast<size_t>(n));
    for (int32_t& token : tokens) token = Upto(static_cast<int>(vocab_size_) - 1);
    return tokens;
  }

  // A prompt: a beginning that others share, and some tokens of its own.
  std::vector<int32_t> Beginning() {
    std::vector<int32_t> tokens(stock_.begin(), stock_.begin() + Upto(std::ssize(stock_)));
    const std::vector<int32_t> own = Tokens(Upto(1) * Upto(300));
    tokens.insert(tokens.end(), own.begin(), own.end());
    return tokens;
  }

  SessionInfo Create(std::vector<int32_t> prompt, bool keep_tokens, int64_t cacheable = 0) {
    SessionOptions options;
    options.prompt = std::move(prompt);
    options.cacheable = cacheable;
    options.keep_tokens = keep_tokens;
    options.slot_cap = slot_cap_;
    Receiver<absl::StatusOr<SessionInfo>> receiver;
    engine_->sessions().Create(std::move(options), receiver.callback());
    const absl::StatusOr<SessionInfo> info = receiver.Wait();
    EXPECT_TRUE(info.ok()) << info.status();
    return info.ok() ? *info : SessionInfo{};
  }
  void Open() {
    std::vector<int32_t> prompt = Upto(1) == 0 ? std::vector<int32_t>() : Beginning();
    const bool keep_tokens = Upto(5) > 0;
    const std::string id = Create(prompt, keep_tokens, Upto(1) * std::ssize(prompt)).id;
    sessions_.push_back({id, std::move(prompt), keep_tokens});
  }

  // A turn of the session, whose answers must equal those of one shot with all its tokens.
  GenerateRequest Talk(const Plain& session, std::vector<int32_t> prompt) {
    GenerateRequest request =
        SampleRequest(session.tokens.empty() ? Beginning() : std::move(prompt), Upto(2) * Upto(20),
                      1 + session.tokens.size());
    request.cacheable = Upto(1) * std::ssize(request.prompt);
    // Without a pending token (none yet, or a cancelled prompt) a turn needs a prompt.
    if (request.prompt.empty() && !engine_->sessions().Get(session.id, "")->last_token) {
      request.prompt = Tokens(1);
    }
    request.stop.ignore_eos = true;
    request.session_id = session.id;
    if (session.keeps_tokens) request.sampling.repetition_penalty = Upto(1) == 0 ? 1.3f : 1.0f;
    return request;
  }
  std::shared_ptr<TokenStream> Start(GenerateRequest request) {
    auto stream = std::make_shared<TokenStream>();
    const absl::Status status = engine_->Submit(std::move(request), stream);
    EXPECT_TRUE(status.ok()) << status;
    if (!status.ok()) stream->Close(status);
    return stream;
  }
  void TalkToSeveral() {
    struct Turn {
      Plain* session;
      GenerateRequest request;
      std::shared_ptr<TokenStream> stream;
    };
    std::vector<Turn> turns;
    for (Plain& session : sessions_) {
      if ((!turns.empty() && Upto(2) > 0) || turns.size() == 3) continue;
      const GenerateRequest request = Talk(session, Tokens(Upto(1) * Upto(120)));
      turns.push_back({&session, request, Start(request)});
    }
    for (Turn& turn : turns) {
      const Answers answers = ReadAll(*turn.stream);
      EXPECT_TRUE(answers.status.ok()) << answers.status;
      std::vector<int32_t>& tokens = turn.session->tokens;
      GenerateRequest whole = turn.request;
      whole.session_id.clear();
      whole.slot_cap = slot_cap_;
      whole.prompt.insert(whole.prompt.begin(), tokens.begin(), tokens.end());
      tokens = whole.prompt;
      tokens.insert(tokens.end(), answers.of[0].tokens.begin(), answers.of[0].tokens.end());
      if (Upto(3) > 0) continue;
      EXPECT_EQ(ReadAll(*Start(whole)).of[0].tokens, answers.of[0].tokens);
    }
  }

  void Cancel(Plain& session) {
    GenerateRequest request = Talk(session, Tokens(1 + Upto(300)));
    request.stop.max_tokens = 50;
    const std::shared_ptr<TokenStream> stream = Start(request);
    for (int events = Upto(8); events > 0; --events) std::this_thread::yield();
    stream->Cancel();
    const Answers answers = ReadAll(*stream);
    EXPECT_TRUE(answers.status.ok() || absl::IsCancelled(answers.status)) << answers.status;
    std::vector<int32_t>& tokens = session.tokens;
    tokens.insert(tokens.end(), request.prompt.begin(), request.prompt.end());
    if (!answers.of.empty()) {
      tokens.insert(tokens.end(), answers.of[0].tokens.begin(), answers.of[0].tokens.end());
    }
    const int64_t position = engine_->sessions().Get(session.id, "")->position;
    ASSERT_LE(position, std::ssize(tokens));
    tokens.resize(static_cast<size_t>(position));
  }

  void Fork(const Plain& session) {
    const Plain parent = session;
    Receiver<absl::StatusOr<std::vector<SessionInfo>>> receiver;
    engine_->sessions().Fork({.session_id = parent.id, .count = 1 + Upto(1)}, receiver.callback());
    const auto copies = receiver.Wait();
    ASSERT_TRUE(copies.ok()) << copies.status();
    for (const SessionInfo& copy : *copies) {
      sessions_.push_back({copy.id, parent.tokens, parent.keeps_tokens});
    }
  }

  void Rewind(Plain& session) {
    const int position = Upto(static_cast<int>(session.tokens.size()));
    const auto cancel = std::make_shared<CancelSignal>();
    Receiver<absl::StatusOr<RewindResult>> receiver;
    engine_->sessions().Rewind(
        {.session_id = session.id, .position = static_cast<uint64_t>(position)}, cancel,
        receiver.callback());
    if (Upto(3) == 0) cancel->Cancel();
    const absl::StatusOr<RewindResult> result = receiver.Wait();
    if (!session.keeps_tokens) {
      EXPECT_TRUE(absl::IsFailedPrecondition(result.status())) << result.status();
    } else if (result.ok()) {
      session.tokens.resize(static_cast<size_t>(position));
    } else {
      EXPECT_TRUE(absl::IsCancelled(result.status())) << result.status();
    }
  }

  // Exports and imports the session; as a delta if it still begins with its earlier export.
  void Move(Plain& session) {
    absl::StatusOr<SessionImage> image = engine_->sessions().Export(session.id, "");
    ASSERT_TRUE(image.ok()) << image.status();
    std::optional<SessionImage> earlier = std::exchange(session.earlier, std::nullopt);
    if (session.keeps_tokens) session.earlier = *image;
    if (earlier) {
      const auto delta =
          engine_->sessions().Export(session.id, "", MakeSessionBase(*earlier->tokens));
      const auto [known, now] = std::ranges::mismatch(*earlier->tokens, session.tokens);
      EXPECT_EQ(delta.ok(), known == earlier->tokens->end()) << delta.status();
      if (delta.ok()) image = Joined(*std::move(earlier), *delta);
    }
    const EncodedSession file = EncodeSession(*std::move(image));
    SessionReader reader(
        [this](const SessionImage& head) { return engine_->sessions().CheckImport(head); });
    size_t at = 0;
    while (at < file.bytes()) {
      const std::string_view part = file.Part(at, 1 + static_cast<size_t>(Upto(1 << 16)));
      ASSERT_TRUE(reader.Add(part).ok());
      at += part.size();
    }
    absl::StatusOr<SessionImage> read = reader.Finish();
    ASSERT_TRUE(read.ok()) << read.status();
    Receiver<absl::StatusOr<SessionInfo>> receiver;
    engine_->sessions().Import(*std::move(read), {}, receiver.callback());
    const absl::StatusOr<SessionInfo> made = receiver.Wait();
    if (!session.keeps_tokens && !engine_->options().trust_session_files) {
      EXPECT_TRUE(absl::IsFailedPrecondition(made.status())) << made.status();
      return;
    }
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_TRUE(engine_->sessions().Delete(session.id, "").ok());
    session.id = made->id;
  }

  void Delete(int index) {
    EXPECT_TRUE(engine_->sessions().Delete(sessions_[static_cast<size_t>(index)].id, "").ok());
    sessions_.erase(sessions_.begin() + index);
  }

  std::vector<std::byte> ReadState(const std::string& id) {
    const absl::StatusOr<std::vector<std::byte>> state = CopyState(*engine_, id, "");
    EXPECT_TRUE(state.ok()) << state.status();
    return state.ok() ? *state : std::vector<std::byte>{};
  }
  void Compare(const Plain& session) {
    const SessionInfo info = *engine_->sessions().Get(session.id, "");
    EXPECT_EQ(info.position, std::ssize(session.tokens));
    EXPECT_FALSE(info.busy);
    const bool pending = info.last_token.has_value();
    if (pending) {
      EXPECT_EQ(*info.last_token, session.tokens.back());
    }
    // Without a pending token (a prompt was cancelled) the state has consumed all tokens: a fresh
    // session needs one more token to do the same.
    std::vector<int32_t> read = session.tokens;
    if (!pending && !read.empty()) read.push_back(0);
    const std::string fresh = Create(read, false).id;
    EXPECT_TRUE(ReadState(session.id) == ReadState(fresh)) << session.tokens.size() << " tokens";
    EXPECT_TRUE(engine_->sessions().Delete(fresh, "").ok());
  }

  std::mt19937 random_;
  const EngineModel model_;
  const int64_t vocab_size_;
  const std::optional<int32_t> slot_cap_;
  std::vector<Plain> sessions_;
  const std::vector<int32_t> stock_;  // beginnings of prompts
  EngineOptions options_;
  std::string folder_;  // empty: sessions are in memory alone
  std::unique_ptr<EngineThread> engine_thread_;
  Engine* engine_ = nullptr;
};

TEST(RandomSessions, OfAModelThatRemembersEverything) {
  const uint32_t sequences = kernels::test::IsSlow(kernels::Device::kCpu) ? 50 : 400;
  for (uint32_t seed = 0; seed < sequences && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    FakeModel model;
    Driver(model.Make(), seed).Run(20);
  }
}

class RandomSessionsOf : public testing::TestWithParam<const char*> {};

TEST_P(RandomSessionsOf, AreFunctionsOfTheirTokens) {
  const auto context = kernels::test::MakeContext(kernels::Device::kCpu);
  model::ModelOptions options;
  options.limits.max_unbounded_tokens = 4096;
  const auto model =
      model::LanguageModel::Load(GoldenFolder() + "/native/" + GetParam(), options, *context);
  ASSERT_TRUE(model.ok()) << model.status();
  const bool slow = kernels::test::IsSlow(kernels::Device::kCpu);
  for (uint32_t seed = 0; seed < (slow ? 2u : 20u) && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Driver(Served(**model), seed).Run(slow ? 8 : 20);
  }
}

INSTANTIATE_TEST_SUITE_P(Mixers, RandomSessionsOf,
                         testing::Values("sw-ovq", "sw-closest-pair", "keydiff-shares", "sw-vq",
                                         "gdn-ovq", "mamba2-ovq", "mesa-sw", "sw-lattice",
                                         "transformer-vq", "sw-full"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace ovq::engine::test
