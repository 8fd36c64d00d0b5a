// Prompts that share a cached prefix: the same answers and states to the byte as without a cache.
#include <gmock/gmock.h>
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

constexpr int64_t kBlock = 256;  // tokens of a made-up prompt's part

EngineOptions Options(size_t prefix_memory = size_t{1} << 28) {
  EngineOptions options;
  options.prefix_memory_bytes = prefix_memory;
  options.max_batch_tokens = 100;  // batches that end anywhere in a block
  return options;
}

template <class Call>
Call Cacheable(Call call) {
  call.cacheable = std::ssize(call.prompt);
  return call;
}
int64_t Sum(const auto& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

SessionOptions Opened(std::vector<int32_t> prompt) {
  SessionOptions options;
  options.prompt = std::move(prompt);
  return options;
}

std::vector<std::vector<int32_t>> AnswerTokens(const Answers& answers) {
  EXPECT_TRUE(answers.status.ok()) << answers.status;
  std::vector<std::vector<int32_t>> tokens;
  for (const Answer& answer : answers.of) tokens.push_back(answer.tokens);
  return tokens;
}

// The tokens of a prompt of n tokens that come from the cache once it was read: the last one always
// runs.
int64_t Kept(int64_t n) { return n > kPrefixMinTokens ? n - 1 : 0; }

class PromptOf : public testing::TestWithParam<int64_t> {};

TEST_P(PromptOf, GivesTheSameFromTheCache) {
  const std::vector<int32_t> prompt = SomeTokens(GetParam(), 5);
  const int64_t cached = Kept(GetParam());
  TestEngine engine(Options(), {.full_attention = true});
  TestEngine plain(Options(0), {.full_attention = true});
  GenerateRequest request = SampleRequest(prompt, 20);
  request.n = 3;
  request.sampling.repetition_penalty = 1.5f;
  request.output.logprobs = true;
  const Answers expected = plain.Run(Cacheable(request));
  EXPECT_EQ(expected.started->cached_tokens, 0);
  const Answers miss = engine.Run(Cacheable(request)), hit = engine.Run(Cacheable(request));
  EXPECT_EQ(miss.started->cached_tokens, 0);
  EXPECT_EQ(hit.started->cached_tokens, cached);
  EXPECT_EQ(hit.started->prompt_tokens, GetParam());
  for (const Answer& answer : hit.of) EXPECT_EQ(answer.finished->usage.cached_tokens, cached);
  EXPECT_EQ(AnswerTokens(miss), AnswerTokens(expected));
  EXPECT_EQ(AnswerTokens(hit), AnswerTokens(expected));
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(hit.of[i].logprobs, expected.of[i].logprobs);

  const std::string id = engine.NewSession(Cacheable(Opened(prompt))).id;
  const std::string same = plain.NewSession(Opened(prompt)).id;
  EXPECT_EQ(State(engine, id), State(plain, same));
  const SessionInfo info = *engine->sessions().Get(id, "");
  EXPECT_EQ(info.position, GetParam());
  EXPECT_EQ(info.last_token, prompt.back());
  EXPECT_EQ(info.prompt_tokens_total, GetParam());
  const PrefixStats stats = engine.SettledStats().prefixes;
  EXPECT_EQ(stats.queries, cached > 0 ? 3 : 0);
  EXPECT_EQ(Sum(stats.hits), cached > 0 ? 2 : 0);
  EXPECT_EQ(Sum(stats.cached_tokens), 2 * cached);
}

INSTANTIATE_TEST_SUITE_P(Tokens, PromptOf,
                         testing::Values(1, 2, kPrefixMinTokens, kPrefixMinTokens + 1, 200, 256,
                                         257, 512, 777));

TEST(Prefix, NothingGeneratedNothingRead) {
  TestEngine engine(Options());
  const std::vector<int32_t> prompt = SomeTokens(kBlock + 1, 1);
  const Answers miss = engine.Run(Cacheable(SampleRequest(prompt, 0)));
  const int64_t steps = engine.model().gate().steps();
  const Answers hit = engine.Run(Cacheable(SampleRequest(prompt, 0)));
  EXPECT_EQ(engine.model().gate().steps(), steps);
  EXPECT_EQ(hit.of[0].finished->usage.cached_tokens, kBlock);
  EXPECT_EQ(hit.of[0].finished->usage.position, miss.of[0].finished->usage.position);
}

TEST(Prefix, OnlyWhatMayBeCachedIs) {
  TestEngine engine(Options());
  GenerateRequest request = SampleRequest(SomeTokens(3 * kBlock, 1), 1);
  engine.Run(request);
  EXPECT_EQ(engine.SettledStats().prefixes.queries, 0);
  EXPECT_EQ(engine.SettledStats().prefixes.not_kept, (std::array<int64_t, 4>{1, 0, 0, 0}));
  request.cacheable = 2 * kBlock - 1;
  engine.Run(request);
  request.cacheable = 2 * kBlock;
  EXPECT_EQ(engine.Run(request).started->cached_tokens, 2 * kBlock - 1);
  EXPECT_EQ(engine.Run(request).started->cached_tokens, 2 * kBlock);
  request.cacheable = kBlock;
  EXPECT_EQ(engine.Run(request).started->cached_tokens, 0);
}

TEST(Prefix, ASessionsFirstTurnAndWhatFollows) {
  TestEngine engine(Options()), plain(Options(0));
  const std::vector<int32_t> prompt = SomeTokens(3 * kBlock + 9, 2);
  engine.Run(Cacheable(SampleRequest(prompt, 1)));
  for (const bool keep_tokens : {true, false}) {
    SessionOptions options;
    options.keep_tokens = keep_tokens;
    const std::string id = engine.NewSession(options).id, same = plain.NewSession(options).id;
    const auto turn = [&](const std::vector<int32_t>& tokens, int64_t n_answer) {
      GenerateRequest request = Turn(id, tokens, n_answer);
      request.sampling.repetition_penalty = 1.5f;
      const Answers answers = engine.Run(Cacheable(request));
      request.session_id = same;
      EXPECT_EQ(AnswerTokens(answers), AnswerTokens(plain.Run(Cacheable(request))));
      EXPECT_EQ(State(engine, id), State(plain, same));
      return *answers.started;
    };
    EXPECT_EQ(turn(prompt, 30).cached_tokens, std::ssize(prompt) - 1);
    // The next turn does not begin a sequence, so its prompt does not use the cache.
    EXPECT_EQ(turn(prompt, 30).cached_tokens, std::ssize(prompt) + 30);
    const SessionInfo info = *engine->sessions().Get(id, ""),
                      other = *plain->sessions().Get(same, "");
    EXPECT_EQ(info.position, other.position);
    EXPECT_EQ(info.prompt_tokens_total, other.prompt_tokens_total);
    EXPECT_EQ(info.generated_tokens_total, other.generated_tokens_total);
  }
  EXPECT_EQ(engine.SettledStats().prefixes.queries, 3);
}

TEST(Prefix, ASessionGoesBackToAnyTokenOfIt) {
  TestEngine engine(Options()), plain(Options(0));
  const std::vector<int32_t> prompt = SomeTokens(5 * kBlock, 2);
  engine.NewSession(Cacheable(Opened(prompt)));
  const std::string id = engine.NewSession(Cacheable(Opened(prompt))).id;
  EXPECT_EQ(Sum(engine.SettledStats().prefixes.hits), 1);
  EXPECT_EQ(engine.SettledStats().token_log_bytes, 2 * prompt.size() * sizeof(int32_t));
  for (const int64_t position :
       {5 * kBlock, 5 * kBlock - 3, 4 * kBlock + 1, 4 * kBlock, kBlock, int64_t{0}}) {
    Receiver<absl::StatusOr<RewindResult>> receiver;
    engine->sessions().Rewind({.session_id = id, .position = static_cast<uint64_t>(position)},
                              nullptr, receiver.callback());
    const absl::StatusOr<RewindResult> result = receiver.Wait();
    ASSERT_TRUE(result.ok()) << result.status();
    // A copy exists at the position where prefill began.
    if (position == 5 * kBlock) {
      EXPECT_EQ(result->replay_tokens, 0);
    }
    const std::vector<int32_t> left(prompt.begin(), prompt.begin() + position);
    EXPECT_EQ(State(engine, id), State(plain, plain.NewSession(Opened(left)).id));
  }
  // Once the session is empty again, its prompt begins a sequence.
  const Answers turn = engine.Run(Cacheable(Turn(id, prompt, 5)));
  EXPECT_EQ(turn.started->cached_tokens, 5 * kBlock - 1);
  EXPECT_EQ(AnswerTokens(turn), AnswerTokens(plain.Run(SampleRequest(prompt, 5))));
}

TEST(Prefix, TenantsVariantsAndSlotCapsAreSeparate) {
  TestEngine engine(Options(), {.exact_too = true});
  const GenerateRequest first = Cacheable(SampleRequest(SomeTokens(2 * kBlock, 1), 4));
  GenerateRequest other_tenant = first, other_cap = first, other_variant = first;
  other_tenant.tenant = "bob";
  other_cap.slot_cap = 64;
  other_variant.variant = "exact";
  for (const int64_t cached : {int64_t{0}, 2 * kBlock - 1}) {
    for (const GenerateRequest& request : {first, other_tenant, other_cap, other_variant}) {
      EXPECT_EQ(engine.Run(request).started->cached_tokens, cached);
    }
  }
  GenerateRequest named = first;  // the same variant by its name
  named.variant = "model";
  named.slot_cap = kDefaultSlotCap;
  EXPECT_EQ(engine.Run(named).started->cached_tokens, 2 * kBlock - 1);
}

TEST(Prefix, ScoresReadEveryToken) {
  TestEngine engine(Options());
  ScoreRequest request;
  request.prompt = SomeTokens(2 * kBlock, 1);
  for (int i = 0; i < 2; ++i) {
    Receiver<absl::StatusOr<ScoreResult>> receiver;
    ASSERT_TRUE(engine->SubmitScore(Cacheable(request), nullptr, receiver.callback()).ok());
    EXPECT_EQ(receiver.Wait()->rows.size(), request.prompt.size());
  }
  EXPECT_EQ(engine.SettledStats().prefixes.queries, 0);
}

// A request is cancelled with half of the prompt consumed, before the position of the copy.
TEST(Prefix, APromptThatIsCancelledLeavesNothing) {
  TestEngine engine(Options());
  engine.model().gate().CloseAt(3);
  const auto stream = engine.Start(Cacheable(SampleRequest(SomeTokens(2 * kBlock + 50, 1), 4)));
  engine.model().gate().AwaitEntered(3);
  stream->Cancel();
  engine.model().gate().Open();
  EXPECT_TRUE(absl::IsCancelled(ReadAll(*stream).status));
  const EngineStats stats = engine.SettledStats();
  EXPECT_EQ(stats.prefixes.queries, 1);
  EXPECT_EQ(stats.prefixes.bytes, 0u);
  EXPECT_EQ(stats.state_bytes_reserved, 0u);
}

// Several prompts are prefilled at once, beside other requests.
TEST(Prefix, InCompany) {
  TestEngine engine(Options()), plain(Options(0));
  const std::vector<int32_t> shared = SomeTokens(2 * kBlock + 17, 1);
  for (int round = 0; round < 3; ++round) {
    std::vector<GenerateRequest> requests;
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (uint32_t i = 0; i < 6; ++i) {
      std::vector<int32_t> prompt = shared;
      const std::vector<int32_t> rest = SomeTokens(100 * i + 1, i + 2);
      prompt.insert(prompt.end(), rest.begin(), rest.end());
      requests.push_back(Cacheable(SampleRequest(prompt, 40, i + 1)));
      streams.push_back(engine.Start(requests.back()));
    }
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(AnswerTokens(ReadAll(*streams[i])), AnswerTokens(plain.Run(requests[i])));
    }
  }
  EXPECT_GE(Sum(engine.SettledStats().prefixes.hits), 12);
}

TEST(Prefix, WithoutRoomNothingIsKept) {
  TestEngine engine(Options(100));
  const GenerateRequest request = Cacheable(SampleRequest(SomeTokens(kBlock + 1, 1), 1));
  for (int i = 0; i < 2; ++i) EXPECT_EQ(engine.Run(request).started->cached_tokens, 0);
  const PrefixStats stats = engine.SettledStats().prefixes;
  EXPECT_EQ(stats.queries, 2);
  EXPECT_EQ(stats.bytes, 0u);
  EXPECT_EQ(stats.budget_bytes, 100u);
}

class PrefixOf : public testing::TestWithParam<const char*> {};

TEST_P(PrefixOf, TheSameStateAndTokens) {
  const auto context = kernels::test::MakeContext(kernels::Device::kCpu);
  model::ModelOptions model_options;
  model_options.limits.max_unbounded_tokens = 4096;
  const auto model =
      model::LanguageModel::Load(GoldenFolder() + "/native/" + GetParam(), model_options, *context);
  ASSERT_TRUE(model.ok()) << model.status();
  std::vector<int32_t> prompt = SomeTokens(2 * kBlock + 70, 3);
  const int64_t vocab = (*model)->config().vocab_size;
  for (int32_t& token : prompt) token = static_cast<int32_t>(token % vocab);
  std::vector<std::vector<std::vector<int32_t>>> drawn;
  std::vector<std::vector<std::byte>> states;
  for (const size_t memory : {size_t{0}, size_t{1} << 28}) {
    EngineThread engine(Served(**model), Options(memory),
                        kernels::test::MakeContext(kernels::Device::kCpu), {});
    for (int i = 0; i < 2; ++i) {
      GenerateRequest request = Cacheable(SampleRequest(prompt, 20));
      request.n = 2;
      const auto stream = std::make_shared<TokenStream>();
      ASSERT_TRUE(engine.engine().Submit(request, stream).ok());
      drawn.push_back(AnswerTokens(ReadAll(*stream, 2)));
      Receiver<absl::StatusOr<SessionInfo>> receiver;
      engine.engine().sessions().Create(Cacheable(Opened(prompt)), receiver.callback());
      states.push_back(*CopyState(engine.engine(), receiver.Wait()->id, ""));
    }
    EXPECT_EQ(Sum(engine.engine().Stats().prefixes.hits), memory == 0 ? 0 : 3);
  }
  EXPECT_THAT(drawn, testing::Each(drawn[0]));
  for (const std::vector<std::byte>& state : states) EXPECT_TRUE(state == states[0]);
}

INSTANTIATE_TEST_SUITE_P(Mixers, PrefixOf,
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
