// Conversations whose history is rewritten between two calls: what is unchanged is not prefilled
// again, and every answer and state is the same to the bit as without a cache.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "server/engine/common/prefix_cache.h"
#include "tests/folders.h"
#include "tests/server/engine/fake_model.h"
#include "tests/server/engine/served_model.h"
#include "tests/test_util.h"

namespace ovq::engine::test {
namespace {

using Tokens = std::vector<int32_t>;

constexpr int64_t kAnswerTokens = 48;
constexpr int64_t kThink = 30;         // of these, the first are reasoning
const Tokens kOpening = {11, 12, 13};  // opens an answer
constexpr int64_t kKept = 2;           // tokens of it that stand before a past answer, too

Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// An agent sends a system part, and parts of questions, results and past answers.
struct Trace {
  Tokens system = SomeTokens(150, 1);
  std::vector<Tokens> parts;

  Tokens Prompt() const {
    Tokens prompt = system;
    for (const Tokens& part : parts) prompt = prompt + part;
    return prompt;
  }
};

class Agent {
 public:
  Agent(Engine& cached, Engine& plain, int64_t vocab)
      : cached_(cached), plain_(plain), vocab_(vocab) {}

  // Asks both engines, and counts the tokens that came before already. Returns the answer.
  Tokens Ask(const Trace& trace) {
    const Tokens body = trace.Prompt();
    GenerateRequest request = SampleRequest(body + kOpening, kAnswerTokens, body.size());
    for (int32_t& token : request.prompt) token = static_cast<int32_t>(token % vocab_);
    request.stop.ignore_eos = true;
    request.output.logprobs = true;
    request.output.top_logprobs = 2;
    request.cacheable = std::ssize(body);
    request.shared_tokens = std::ssize(trace.system);
    request.cache_answer = true;
    const Answers hit = Run(cached_, request), whole = Run(plain_, request);
    EXPECT_EQ(hit.of[0].tokens, whole.of[0].tokens);
    EXPECT_EQ(hit.of[0].logprobs, whole.of[0].logprobs);
    int64_t known = 0;
    for (const Tokens& earlier : said_) {
      const auto at = std::ranges::mismatch(earlier, request.prompt).in1 - earlier.begin();
      known = std::max<int64_t>(known, at);
    }
    known_ += known;
    cached_tokens_ += hit.started->cached_tokens;
    last_known_ = known;
    last_cached_ = hit.started->cached_tokens;
    said_.push_back(request.prompt + hit.of[0].tokens);
    return hit.of[0].tokens;
  }
  // The state behind a prompt, which the cache may have in part.
  void ExpectSameState(const Trace& trace) {
    std::vector<std::byte> states[2];
    for (Engine* engine : {&cached_, &plain_}) {
      SessionOptions options;
      options.prompt = trace.Prompt();
      for (int32_t& token : options.prompt) token = static_cast<int32_t>(token % vocab_);
      options.cacheable = std::ssize(options.prompt);
      Receiver<absl::StatusOr<SessionInfo>> receiver;
      engine->sessions().Create(options, receiver.callback());
      const std::string id = receiver.Wait()->id;
      states[engine == &plain_] = *CopyState(*engine, id, "");
      EXPECT_TRUE(engine->sessions().Delete(id, "").ok());
    }
    EXPECT_TRUE(states[0] == states[1]);
  }
  double share() const { return static_cast<double>(cached_tokens_) / static_cast<double>(known_); }
  int64_t last_known() const { return last_known_; }
  int64_t last_cached() const { return last_cached_; }

 private:
  static Answers Run(Engine& engine, const GenerateRequest& request) {
    const auto stream = std::make_shared<TokenStream>();
    EXPECT_TRUE(engine.Submit(request, stream).ok());
    return ReadAll(*stream);
  }

  Engine& cached_;
  Engine& plain_;
  const int64_t vocab_;
  std::vector<Tokens> said_;
  int64_t known_ = 0, cached_tokens_ = 0;
  int64_t last_known_ = 0, last_cached_ = 0;
};

Tokens Kept() { return {kOpening.begin(), kOpening.begin() + kKept}; }
Tokens WithoutThought(const Tokens& answer) {
  return Kept() + Tokens(answer.begin() + kThink, answer.end());
}

// Turns, 15 at least, whose past answers lose their reasoning at once; then an early part is
// edited, and then all but the system part makes way for a summary.
void RunTrace(Engine& cached, Engine& plain, int64_t vocab, uint32_t turns) {
  Agent agent(cached, plain, vocab);
  Trace trace;
  trace.parts = {SomeTokens(120, 2)};
  for (uint32_t turn = 0; turn < turns; ++turn) {
    const Tokens answer = agent.Ask(trace);
    trace.parts.push_back(WithoutThought(answer));
    // The result of a call: mostly long, at times a few tokens.
    trace.parts.push_back(SomeTokens(turn % 3 == 0 ? 8 : 25 + 5 * (turn % 7), 100 + turn));
  }
  EXPECT_GE(agent.share(), 0.99);
  agent.ExpectSameState(trace);

  Trace edited = trace;
  edited.parts[12] = SomeTokens(33, 7);
  edited.parts.resize(31);
  agent.Ask(edited);
  EXPECT_LE(agent.last_known() - agent.last_cached(), 100) << "fewer than those of a turn";
  agent.ExpectSameState(edited);
  Trace compacted;
  compacted.parts = {SomeTokens(90, 8)};
  agent.Ask(compacted);
  EXPECT_EQ(agent.last_cached(), std::ssize(compacted.system));
  agent.ExpectSameState(compacted);
  // The edit has not cost the copies of the history before it.
  trace.parts.push_back(SomeTokens(20, 9));
  agent.Ask(trace);
  EXPECT_GE(agent.last_cached(), (agent.last_known() * 99) / 100);
}

TEST(RewrittenHistory, IsReadFromWhereItDiffers) {
  EngineOptions options;
  options.max_batch_tokens = 100;
  TestEngine cached(options, {.full_attention = true, .max_unbounded_tokens = 8192});
  options.prefix_memory_bytes = 0;
  TestEngine plain(options, {.full_attention = true, .max_unbounded_tokens = 8192});
  RunTrace(*cached, *plain, kVocab, 40);
  const PrefixStats stats = cached.SettledStats().prefixes;
  EXPECT_GE(stats.hits[static_cast<size_t>(PrefixKind::kPrompt)], 39);
  EXPECT_LT(stats.lost_tokens, 1000);
}

TEST(RewrittenHistory, AnAnswerThatStaysIsNotReadAgain) {
  TestEngine engine;
  EngineOptions none;
  none.prefix_memory_bytes = 0;
  TestEngine plain(none);
  Agent agent(*engine, *plain, kVocab);
  Trace trace;
  trace.parts = {SomeTokens(120, 2)};
  for (uint32_t turn = 0; turn < 10; ++turn) {
    trace.parts.push_back(kOpening + agent.Ask(trace));
    trace.parts.push_back(SomeTokens(10, 100 + turn));
    // The answer's last token is not consumed.
    if (turn > 0) {
      EXPECT_EQ(agent.last_cached(), agent.last_known() - 1);
    }
  }
  const PrefixStats stats = engine.SettledStats().prefixes;
  EXPECT_EQ(stats.hits[static_cast<size_t>(PrefixKind::kAnswer)], 9);
  EXPECT_EQ(engine.SettledStats().state_bytes_reserved, 0u);
}

// An answer that is drafted, stopped by a text, or cut leaves the state behind what it consumed.
TEST(RewrittenHistory, HoweverTheAnswerCame) {
  const Tokens prompt = SomeTokens(100, 1);
  for (const bool drafts : {false, true}) {
    TestEngine engine;
    GenerateRequest request = SampleRequest(prompt, 60);
    if (drafts) request.output.speculation = Speculation::kNgram;
    request.cacheable = std::ssize(prompt);
    request.cache_answer = true;
    const Tokens answer = engine.Run(request).of[0].tokens;
    request.prompt = prompt + answer + SomeTokens(5, 2);
    request.cacheable = std::ssize(request.prompt);
    const Answers next = engine.Run(request);
    EXPECT_EQ(next.started->cached_tokens, std::ssize(prompt + answer) - 1);
    request.cacheable = 0;
    EXPECT_EQ(next.of[0].tokens, engine.Run(request).of[0].tokens);
  }
}

TEST(RewrittenHistory, OnlyWhatMayBeKeptIs) {
  TestEngine engine;
  const Tokens prompt = SomeTokens(100, 1);
  const auto bytes_after = [&](GenerateRequest request) {
    const size_t before = engine.SettledStats().prefixes.bytes;
    engine.Run(std::move(request));
    return engine.SettledStats().prefixes.bytes - before;
  };
  GenerateRequest request = SampleRequest(prompt, 70);
  request.cacheable = 100;
  EXPECT_GT(bytes_after(request), 0u);
  EXPECT_EQ(bytes_after(request), 0u) << "the prompt's end has its copy";
  request.cache_answer = true;
  request.n = 2;
  EXPECT_EQ(bytes_after(request), 0u) << "nobody knows which answer is gone on with";
  request.n = 1;
  request.cacheable = 0;
  EXPECT_EQ(bytes_after(request), 0u);
  request.cacheable = 100;
  EXPECT_GT(bytes_after(request), 0u);
}

// A session's turn that has all tokens of the conversation goes back to where they differ.
TEST(RewrittenHistory, ASessionGoesBackToWhereItsTokensDiffer) {
  TestEngine engine, plain;
  const Tokens prompt = SomeTokens(300, 1);
  for (const int64_t common : {0, 1, 64, 250, 300, 310, 320}) {
    SessionOptions options;
    options.prompt = prompt;
    const std::string id = engine.NewSession(options).id;
    const Tokens all = prompt + engine.Run(Turn(id, {}, 20)).of[0].tokens;
    Tokens rewritten(all.begin(), all.begin() + common);
    if (common < 320) rewritten = rewritten + Tokens{(all[common] + 1) % 256} + SomeTokens(40, 2);
    GenerateRequest turn = Turn(id, rewritten, 10, 7);
    turn.rewrites = true;
    const Answers again = engine.Run(turn);
    EXPECT_TRUE(again.status.ok()) << again.status;
    EXPECT_EQ(again.started->cached_tokens, common);
    options.prompt = rewritten;
    const std::string other = plain.NewSession(options).id;
    EXPECT_EQ(again.of[0].tokens, plain.Run(Turn(other, {}, 10, 7)).of[0].tokens) << common;
    EXPECT_EQ(State(engine, id), State(plain, other)) << common;
  }
  SessionOptions none;
  none.prompt = prompt;
  none.keep_tokens = false;
  GenerateRequest turn = Turn(engine.NewSession(none).id, prompt, 1);
  turn.rewrites = true;
  EXPECT_TRUE(absl::IsFailedPrecondition(engine.Run(turn).status));
  EXPECT_EQ(engine.SettledStats().requests_running, 0);
}

// Answers that end together are copied as far as an iteration may take; the others say so.
TEST(RewrittenHistory, ManyAnswersThatEndTogether) {
  EngineOptions options;
  options.copy_bytes_per_iteration = 1;
  TestEngine engine(options);
  engine.model().gate().CloseAt(1);
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (uint32_t i = 0; i < 4; ++i) {
    GenerateRequest request = SampleRequest(SomeTokens(100, i + 1), 10);
    request.cacheable = 99;
    request.cache_answer = true;
    streams.push_back(engine.Start(request));
  }
  engine.model().gate().Open();
  for (const auto& stream : streams) EXPECT_TRUE(ReadAll(*stream).status.ok());
  const EngineStats stats = engine.SettledStats();
  EXPECT_GT(stats.prefixes.not_kept[static_cast<size_t>(PrefixLoss::kBusy)], 0);
  EXPECT_EQ(stats.state_bytes_reserved, 0u);
}

class RewrittenHistoryOf : public testing::TestWithParam<const char*> {};

TEST_P(RewrittenHistoryOf, IsReadFromWhereItDiffers) {
  const auto context = kernels::test::MakeContext(kernels::Device::kCpu);
  model::ModelOptions model_options;
  model_options.limits.max_unbounded_tokens = 8192;
  const auto model =
      model::LanguageModel::Load(GoldenFolder() + "/native/" + GetParam(), model_options, *context);
  ASSERT_TRUE(model.ok()) << model.status();
  EngineOptions options;
  EngineThread cached(Served(**model), options, kernels::test::MakeContext(kernels::Device::kCpu),
                      {});
  options.prefix_memory_bytes = 0;
  EngineThread plain(Served(**model), options, kernels::test::MakeContext(kernels::Device::kCpu),
                     {});
  // One of the two prefills every turn whole.
  const uint32_t turns = kernels::test::IsSlow(kernels::Device::kCpu) ? 16 : 40;
  RunTrace(cached.engine(), plain.engine(), (*model)->config().vocab_size, turns);
}

INSTANTIATE_TEST_SUITE_P(Mixers, RewrittenHistoryOf,
                         testing::Values("sw-ovq", "sw-closest-pair", "keydiff-shares", "gdn-ovq",
                                         "mamba2-ovq", "mesa-sw", "sw-full"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace ovq::engine::test
