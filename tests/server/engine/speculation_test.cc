// Speculation changes nothing but the number of iterations: tokens, numbers and text are the same,
// and states are the same to the byte, for every mixer and with all options of a request.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>

#include "absl/strings/ascii.h"
#include "model/ngram_drafter.h"
#include "tests/folders.h"
#include "tests/server/engine/fake_model.h"
#include "tests/server/engine/served_model.h"
#include "tests/test_util.h"

namespace ovq::engine::test {
namespace {

void ExpectSame(const Answers& a, const Answers& b) {
  ASSERT_EQ(a.status, b.status);
  ASSERT_EQ(a.of.size(), b.of.size());
  for (size_t i = 0; i < a.of.size(); ++i) {
    const Answer &one = a.of[i], &other = b.of[i];
    EXPECT_EQ(one.tokens, other.tokens) << i;
    EXPECT_EQ(one.logprobs, other.logprobs) << i;
    EXPECT_EQ(one.text, other.text) << i;
    ASSERT_EQ(one.top.size(), other.top.size()) << i;
    for (size_t t = 0; t < one.top.size(); ++t) {
      EXPECT_TRUE(std::ranges::equal(one.top[t], other.top[t],
                                     [](const auto& x, const auto& y) {
                                       return x.token_id == y.token_id && x.logprob == y.logprob;
                                     }))
          << i << " at " << t;
    }
    ASSERT_EQ(one.finished.has_value(), other.finished.has_value()) << i;
    if (!one.finished) continue;
    EXPECT_EQ(one.finished->reason, other.finished->reason) << i;
    EXPECT_EQ(one.finished->matched_stop, other.finished->matched_stop) << i;
    EXPECT_EQ(one.finished->matched_token_id, other.finished->matched_token_id) << i;
    EXPECT_EQ(one.finished->usage.generated_tokens, other.finished->usage.generated_tokens) << i;
    EXPECT_EQ(one.finished->usage.position, other.finished->usage.position) << i;
    EXPECT_EQ(one.finished->usage.state_bytes, other.finished->usage.state_bytes) << i;
  }
}

// --- every mixer ---

// Few tokens are likely, so that many drafted tokens are right and many are wrong.
GenerateRequest OfFewTokens(int64_t max_tokens, uint64_t seed) {
  GenerateRequest request = SampleRequest({1, 2, 3, 1, 2, 3, 1, 2}, max_tokens, seed);
  for (const int32_t id : {1, 2, 3}) request.sampling.logit_bias[id] = 60;
  request.output = {.logprobs = true, .top_logprobs = 2};
  request.stop.ignore_eos = true;
  return request;
}

std::vector<GenerateRequest> Samplings(int64_t max_tokens) {
  std::vector<GenerateRequest> all(5, OfFewTokens(max_tokens, 5));
  all[0].sampling.temperature = 0;
  all[2].sampling.repetition_penalty = 1.2f;
  all[2].sampling.presence_penalty = 0.5f;
  all[2].sampling.frequency_penalty = 0.1f;
  all[3].sampling.top_k = 2;
  all[3].sampling.top_p = 0.8f;
  all[3].sampling.min_p = 0.05f;
  all[4].sampling.typical_p = 0.9f;
  all[4].stop.ignore_eos = false;
  all[4].stop.token_ids = {2};
  all[4].stop.min_tokens = max_tokens / 2;
  return all;
}

class SpeculationOf : public testing::TestWithParam<const char*> {};

TEST_P(SpeculationOf, GivesTheSameTokensAndStates) {
  const auto context = kernels::test::MakeContext(kernels::Device::kCpu);
  model::ModelOptions model_options;
  model_options.limits.max_unbounded_tokens = 4096;
  std::string name = GetParam();
  constexpr std::string_view kInInt8 = " in int8";
  if (name.ends_with(kInInt8)) {
    name.resize(name.size() - kInInt8.size());
    model_options.state_dtype = kernels::DType::kI8;
  }
  const std::string folder = name.find('/') == std::string::npos ? "/native/" : "/";
  const auto model =
      model::LanguageModel::Load(GoldenFolder() + folder + name, model_options, *context);
  ASSERT_TRUE(model.ok()) << model.status();
  EngineThread engine(Served(**model), EngineOptions(),
                      kernels::test::MakeContext(kernels::Device::kCpu), EngineEvents());

  const auto run = [&](GenerateRequest request, Speculation how) {
    request.output.speculation = how;
    const int n = request.n;
    auto stream = std::make_shared<TokenStream>(100'000);
    EXPECT_TRUE(engine.engine().Submit(std::move(request), stream).ok());
    return ReadAll(*stream, n);
  };
  int64_t drafted = 0, accepted = 0;
  for (const GenerateRequest& one_shot :
       Samplings(kernels::test::IsSlow(kernels::Device::kCpu) ? 40 : 100)) {
    std::vector<std::string> ids;
    for (int i = 0; i < 2; ++i) {
      Receiver<absl::StatusOr<SessionInfo>> receiver;
      engine.engine().sessions().Create({}, receiver.callback());
      ids.push_back(receiver.Wait()->id);
    }
    for (int turn = 0; turn < 2; ++turn) {
      GenerateRequest request = one_shot;
      request.session_id = ids[0];
      const Answers plain = run(request, Speculation::kOff);
      request.session_id = ids[1];
      const Answers drafts = run(request, Speculation::kNgram);
      ExpectSame(plain, drafts);
      EXPECT_EQ(plain.of[0].finished->usage.drafted_tokens, 0);
      drafted += drafts.of[0].finished->usage.drafted_tokens;
      accepted += drafts.of[0].finished->usage.accepted_tokens;
      EXPECT_EQ(*CopyState(engine.engine(), ids[0], ""), *CopyState(engine.engine(), ids[1], ""));
    }
    for (const std::string& id : ids) EXPECT_TRUE(engine.engine().sessions().Delete(id, "").ok());
    GenerateRequest several = one_shot;
    several.n = 3;
    ExpectSame(run(several, Speculation::kOff), run(several, Speculation::kNgram));
  }
  EXPECT_GT(accepted, 0);
  EXPECT_GT(drafted, accepted) << "some guesses are wrong";
}

INSTANTIATE_TEST_SUITE_P(Mixers, SpeculationOf,
                         testing::Values("sw-ovq", "ovq-delta", "sw-closest-pair", "keydiff-shares",
                                         "sw-vq", "gdn-ovq", "mamba2-ovq", "mesa-sw", "sw-lattice",
                                         "transformer-vq", "sw-full", "kvm/ovq-flags",
                                         "kvm/post-tokenshift", "kvm/bswa-sinks", "sw-ovq in int8",
                                         "ovq-delta in int8", "sw-closest-pair in int8",
                                         "sw-full in int8", "kvm/bswa-sinks in int8"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace_if(
                               name, [](char c) { return !absl::ascii_isalnum(c); }, '_');
                           return name;
                         });

// --- ends and interruptions of answers ---

EngineOptions Drafting() {
  EngineOptions options;
  options.speculation = Speculation::kNgram;
  return options;
}

// The model repeats this text.
constexpr int64_t kPrompt = 10, kPeriods = 40;
void SayAgain(FakeModel& model) {
  for (int64_t i = 0; i < kPeriods; ++i) model.Script(kPrompt + 6 * i, "abcde\n");
}

class Speculating : public testing::Test {
 protected:
  // Runs the request with and without drafts, in two sessions. Expects equal answers and states.
  Answers RunBoth(GenerateRequest request) {
    const std::string plain_id = plain_.NewSession().id, drafts_id = drafts_.NewSession().id;
    request.session_id = plain_id;
    const Answers plain = plain_.Run(request);
    request.session_id = drafts_id;
    const Answers drafts = drafts_.Run(request);
    ExpectSame(plain, drafts);
    EXPECT_EQ(State(plain_, plain_id), State(drafts_, drafts_id));
    return drafts;
  }
  TestEngine plain_{{}, {}, {}, SayAgain};
  TestEngine drafts_{Drafting(), {}, {}, SayAgain};
};

TEST_F(Speculating, StepsAreFewer) {
  const Answers answers = RunBoth(SampleRequest(SomeTokens(kPrompt, 1), 120));
  const Usage& usage = answers.of[0].finished->usage;
  EXPECT_GT(usage.accepted_tokens, 40) << "chunks have four tokens";
  EXPECT_LE(usage.accepted_tokens, usage.drafted_tokens);
  EXPECT_LT(drafts_.model().gate().steps(), plain_.model().gate().steps());
}

TEST_F(Speculating, AnAnswerEndsWhereItWould) {
  for (int64_t most = 20; most < 30; ++most) RunBoth(SampleRequest(SomeTokens(kPrompt, 1), most));
  for (const char* stop : {"e\na", "abcde\nabcde\nabcd", "cd", "\n"}) {
    for (const int64_t min_tokens : {0, 23}) {
      GenerateRequest request = SampleRequest(SomeTokens(kPrompt, 1), 200);
      request.stop.strings = {stop};
      request.stop.min_tokens = min_tokens;
      EXPECT_EQ(RunBoth(request).of[0].finished->matched_stop, stop);
      request.stop.strings.clear();
      request.stop.token_ids = {stop[0]};
      EXPECT_EQ(RunBoth(request).of[0].finished->matched_token_id, stop[0]);
    }
  }
}

TEST_F(Speculating, AReaderThatIsBehindHoldsItUpAsEver) {
  GenerateRequest request = SampleRequest(SomeTokens(kPrompt, 1), 200);
  const auto stream = drafts_.Start(request, /*capacity=*/8);
  while (drafts_->Stats().requests_blocked == 0) drafts_.AwaitBoundary();
  const Answers answers = ReadAll(*stream);
  ExpectSame(plain_.Run(request), answers);
}

TEST_F(Speculating, CancelledInTheMiddle) {
  const std::string id = drafts_.NewSession().id;
  const std::vector<int32_t> prompt = SomeTokens(kPrompt, 1);
  auto stream = drafts_.Start(Turn(id, prompt, 200), 50);
  while (drafts_->Stats().requests_blocked == 0) drafts_.AwaitBoundary();
  stream->Cancel();
  const Answers answers = ReadAll(*stream);
  const std::vector<int32_t>& tokens = answers.of[0].tokens;
  EXPECT_GE(tokens.size(), 50u);
  // The state equals that of a turn which ended there.
  const std::string other = plain_.NewSession().id;
  EXPECT_EQ(plain_.Run(Turn(other, prompt, std::ssize(tokens))).of[0].tokens, tokens);
  EXPECT_EQ(State(drafts_, id), State(plain_, other));
  EXPECT_EQ(drafts_.Run(Turn(id, {7}, 5)).of[0].tokens,
            plain_.Run(Turn(other, {7}, 5)).of[0].tokens);
}

TEST_F(Speculating, ARequestMaySayOtherwise) {
  GenerateRequest request = SampleRequest(SomeTokens(kPrompt, 1), 60);
  request.output.speculation = Speculation::kOff;
  EXPECT_EQ(drafts_.Run(request).of[0].finished->usage.drafted_tokens, 0);
  request.output.speculation = Speculation::kNgram;
  EXPECT_GT(plain_.Run(request).of[0].finished->usage.drafted_tokens, 0);
  request.output.speculation = static_cast<Speculation>(3);
  const absl::Status status = plain_->Submit(request, std::make_shared<TokenStream>());
  EXPECT_EQ(status.message(), "output.speculation: expected 0 to 2, got 3");
}

// A bad output after a wrong draft does not matter; after a right one it is reported at its
// position.
TEST(SpeculationDamaged, OnlyWhatIsSaidDamages) {
  constexpr int32_t kBad = 200;  // after it the model's output is not a number
  const std::vector<int32_t> prompt = {'a', 'b', 'c', kBad, 'e', 'f', 'x', 'y', 'z', 'w', 'a', 'b'};
  for (const int32_t next : {kBad, int32_t{'d'}}) {
    const auto setup = [&](FakeModel& model) {
      model.Spoil(kBad, std::numeric_limits<float>::quiet_NaN());
      model.Script(12, 'c');
      model.Script(13, next);
    };
    TestEngine plain({}, {}, {}, setup), drafts(Drafting(), {}, {}, setup);
    const std::string plain_id = plain.NewSession().id, drafts_id = drafts.NewSession().id;
    const Answers answers = drafts.Run(Turn(drafts_id, prompt, 6));
    ExpectSame(plain.Run(Turn(plain_id, prompt, 6)), answers);
    EXPECT_EQ(answers.status.ok(), next != kBad) << answers.status;
    EXPECT_EQ(plain->sessions().Get(plain_id, "")->damaged_at,
              drafts->sessions().Get(drafts_id, "")->damaged_at);
    if (next == kBad) continue;
    EXPECT_GT(answers.of[0].finished->usage.drafted_tokens, 0);
    EXPECT_EQ(State(plain, plain_id), State(drafts, drafts_id));
  }
}

}  // namespace
}  // namespace ovq::engine::test
