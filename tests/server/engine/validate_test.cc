// Validation of requests, without an engine: messages name the field, the expected and the actual
// value.
#include "server/engine/common/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "server/engine/common/error_facts.h"
#include "server/engine/common/limits.h"
#include "tests/server/engine/fake_model.h"

namespace ovq::engine::test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class Validate : public testing::Test {
 protected:
  Validate() {
    config_.options.max_prompt_tokens = 100;
    config_.options.max_slot_cap = 4096;
  }

  absl::Status Generate(const std::function<void(GenerateRequest&)>& change) {
    GenerateRequest request = SampleRequest({1, 2}, 10);
    change(request);
    return ValidateGenerate(config_, request);
  }
  void ExpectBad(const std::function<void(GenerateRequest&)>& change, const std::string& message) {
    const absl::Status status = Generate(change);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_EQ(status.message(), message);
  }

  FakeModel fake_;
  EngineConfig config_{.model = fake_.Make(), .options = {}, .events = {}};
};

TEST_F(Validate, Sampling) {
  using R = GenerateRequest;
  EXPECT_TRUE(Generate([](R&) {}).ok());
  ExpectBad([](R& r) { r.sampling.temperature = -1; },
            "sampling.temperature: expected [0, 100], got -1");
  ExpectBad([](R& r) { r.sampling.temperature = kNaN; },
            "sampling.temperature: expected [0, 100], got nan");
  ExpectBad([](R& r) { r.sampling.top_k = static_cast<int32_t>(4'000'000'000u); },
            "sampling.top_k: expected at most 2147483647, got 4000000000");
  ExpectBad([](R& r) { r.sampling.top_p = 0; }, "sampling.top_p: expected (0, 1], got 0");
  ExpectBad([](R& r) { r.sampling.top_p = 1.5f; }, "sampling.top_p: expected (0, 1], got 1.5");
  ExpectBad([](R& r) { r.sampling.min_p = -0.5f; }, "sampling.min_p: expected [0, 1], got -0.5");
  ExpectBad([](R& r) { r.sampling.typical_p = 0; }, "sampling.typical_p: expected (0, 1], got 0");
  ExpectBad([](R& r) { r.sampling.repetition_penalty = 0; },
            "sampling.repetition_penalty: expected (0, 100], got 0");
  ExpectBad([](R& r) { r.sampling.repetition_penalty = kInfinity; },
            "sampling.repetition_penalty: expected (0, 100], got inf");
  ExpectBad([](R& r) { r.sampling.presence_penalty = 3; },
            "sampling.presence_penalty: expected [-2, 2], got 3");
  ExpectBad([](R& r) { r.sampling.frequency_penalty = -3; },
            "sampling.frequency_penalty: expected [-2, 2], got -3");
  ExpectBad(
      [](R& r) {
        r.sampling.logit_bias = {{258, 1.0f}};
      },
      "sampling.logit_bias: expected a token id below 258, got 258");
  ExpectBad(
      [](R& r) {
        r.sampling.logit_bias = {{-1, 1.0f}};
      },
      "sampling.logit_bias: expected a token id below 258, got 4294967295");
  ExpectBad(
      [](R& r) {
        r.sampling.logit_bias = {{3, 101.0f}};
      },
      "sampling.logit_bias[3]: expected [-100, 100], got 101");
  ExpectBad([](R& r) { r.n = 0; }, "sampling.n: expected 1 to 64, got 0");
  ExpectBad([](R& r) { r.n = 65; }, "sampling.n: expected 1 to 64, got 65");
  ExpectBad([](R& r) { r.session_id = "ab", r.n = 2; },
            "sampling.n: expected 1 with a session, got 2");
}

TEST_F(Validate, PromptStopOutputAndCap) {
  using R = GenerateRequest;
  ExpectBad([](R& r) { r.prompt.clear(); }, "prompt: expected at least one token, got none");
  ExpectBad([](R& r) { r.prompt[1] = 258; },
            "prompt.token_ids.ids[1]: expected a token id below 258, got 258");
  ExpectBad([](R& r) { r.prompt = {-1}; },
            "prompt.token_ids.ids[0]: expected a token id below 258, got 4294967295");
  ExpectBad([](R& r) { r.prompt.assign(101, 1); },
            "prompt: expected at most 100 tokens (--max-prompt-tokens), got 101");
  ExpectBad([](R& r) { r.stop.max_tokens = -1; }, "stop.max_tokens: expected at least 0, got -1");
  ExpectBad([](R& r) { r.stop.min_tokens = 11; },
            "stop.min_tokens: expected at most max_tokens, 10, got 11");
  ExpectBad([](R& r) { r.stop.strings.assign(17, "x"); },
            "stop.stop_strings: expected at most 16, got 17");
  ExpectBad([](R& r) { r.stop.strings.assign(2, ""); },
            "stop.stop_strings[0]: expected 1 to 1024 bytes, got 0");
  ExpectBad([](R& r) { r.stop.strings.assign(1, std::string(1025, 'x')); },
            "stop.stop_strings[0]: expected 1 to 1024 bytes, got 1025");
  ExpectBad(
      [](R& r) {
        r.stop.token_ids = {7, 999};
      },
      "stop.stop_token_ids[1]: expected a token id below 258, got 999");
  ExpectBad([](R& r) { r.output.top_logprobs = 259; },
            "output.top_logprobs: expected at most 258, got 259");
  ExpectBad([](R& r) { r.slot_cap = 1; },
            "max_centroids: expected 2 to 4096 (--max-centroids), got 1");
  ExpectBad([](R& r) { r.slot_cap = 5000; },
            "max_centroids: expected 2 to 4096 (--max-centroids), got 5000");
  ExpectBad([](R& r) { r.session_id = "ab", r.slot_cap = 8; },
            "max_centroids: expected none with session_id, got 8");
  ExpectBad([](R& r) { r.variant = "paper"; },
            "memory: expected one of model (--memory), got 'paper'");
  ExpectBad([](R& r) { r.session_id = "ab", r.variant = "model"; },
            "memory: expected none with session_id, got 'model'");
  EXPECT_TRUE(Generate([](R& r) { r.variant = "model"; }).ok());
  EXPECT_TRUE(Generate([](R& r) { r.session_id = "ab", r.prompt.clear(); }).ok());
  EXPECT_TRUE(Generate([](R& r) { r.slot_cap = 4096, r.n = 64; }).ok());
}

TEST_F(Validate, AChatsFieldsHaveItsPaths) {
  ExpectBad([](GenerateRequest& r) { r.field_prefix = "turn.", r.sampling.top_p = 2; },
            "turn.sampling.top_p: expected (0, 1], got 2");
  SessionOptions session;
  session.field_prefix = "open.";
  session.slot_cap = 1;
  EXPECT_EQ(ValidateSession(config_, session).message(),
            "open.max_centroids: expected 2 to 4096 (--max-centroids), got 1");
  session.variant = std::string(1000, 'x');
  EXPECT_EQ(
      ValidateSession(config_, session).message(),
      "open.memory: expected one of model (--memory), got '" + std::string(120, 'x') + "...'");
}

TEST_F(Validate, EachVariantHasItsOwnBounds) {
  FakeModel fake({.exact_too = true, .max_unbounded_tokens = 50});
  config_.model = fake.Make();
  EXPECT_TRUE(Generate([](GenerateRequest& r) { r.prompt.assign(51, 1); }).ok());
  EXPECT_EQ(
      Generate([](GenerateRequest& r) { r.variant = "exact", r.prompt.assign(51, 1); }).code(),
      absl::StatusCode::kOutOfRange);
  ExpectBad([](GenerateRequest& r) { r.variant = "all"; },
            "memory: expected one of model, exact (--memory), got 'all'");
}

TEST_F(Validate, AnAnswerOfAFewHundredTopLogprobs) {
  config_.model.vocab_size = 100'000;
  EXPECT_TRUE(Generate([](GenerateRequest& r) { r.output.top_logprobs = 1024; }).ok());
  ExpectBad([](GenerateRequest& r) { r.output.top_logprobs = 1025; },
            "output.top_logprobs: expected at most 1024, got 1025");
}

TEST_F(Validate, TextNeedsATokenizer) {
  const FakeModel::Options without = {.with_text = false};
  FakeModel fake(without);
  GenerateRequest request = SampleRequest({1, 2}, 4);
  request.stop.strings = {"x"};
  config_.model = fake.Make();
  const absl::Status status = ValidateGenerate(config_, request);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(GetErrorFacts(status).field, "stop.stop_strings");
}

TEST_F(Validate, ListsHaveLengths) {
  GenerateRequest request = SampleRequest({1}, 1);
  request.stop.token_ids.assign(kMaxStopTokenIds, 1);
  for (int32_t id = 0; id < 250; ++id) request.sampling.logit_bias[id] = 1;
  EXPECT_TRUE(ValidateGenerate(config_, request).ok());
  request.stop.token_ids.push_back(1);
  EXPECT_EQ(ValidateGenerate(config_, request).message(),
            "stop.stop_token_ids: expected at most 1024, got 1025");
  EXPECT_EQ(CheckListSizes({.logit_bias = kMaxLogitBias + 1}, "turn.").message(),
            "turn.sampling.logit_bias: expected at most 4096, got 4097");
  EXPECT_TRUE(
      CheckListSizes({.stop_strings = kMaxStopStrings, .logit_bias = kMaxLogitBias}, "").ok());
}

TEST_F(Validate, TimesToLive) {
  const auto check = [&](absl::Duration ttl) {
    SessionOptions session;
    session.ttl = ttl;
    return ValidateSession(config_, session);
  };
  EXPECT_TRUE(ValidateSession(config_, {}).ok());
  EXPECT_TRUE(check(absl::Nanoseconds(1)).ok());
  EXPECT_TRUE(check(absl::Hours(24)).ok());
  EXPECT_EQ(check(absl::ZeroDuration()).message(),
            "ttl: expected a duration above 0 and at most 24h (--max-session-ttl), got 0");
  EXPECT_EQ(check(-absl::Seconds(1)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(check(absl::Hours(24) + absl::Nanoseconds(1)).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(check(absl::InfiniteDuration()).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(Validate, PagesAndPositions) {
  EXPECT_TRUE(CheckPageSize(0).ok());
  EXPECT_TRUE(CheckPageSize(1000).ok());
  EXPECT_EQ(CheckPageSize(1001).message(), "page_size: expected at most 1000, got 1001");
  EXPECT_EQ(CheckPageSize(-1).message(), "page_size: expected at most 1000, got 4294967295");
  EXPECT_TRUE(CheckInfoPositions(std::vector<uint64_t>(1000, kMaxInfoPosition)).ok());
  EXPECT_EQ(CheckInfoPositions(std::vector<uint64_t>(1001)).message(),
            "positions: expected at most 1000, got 1001");
  EXPECT_EQ(GetErrorFacts(CheckInfoPositions(std::vector<uint64_t>{0, kMaxInfoPosition + 1})).field,
            "positions[1]");
}

TEST(ErrorFacts, TheLogHasNothingThatTheCallerSent) {
  const absl::Status bad = BadField("sampling.logit_bias", "[-100, 100]", 101, "[65]");
  EXPECT_EQ(bad.message(), "sampling.logit_bias[65]: expected [-100, 100], got 101");
  EXPECT_EQ(LogText(bad), "sampling.logit_bias: expected [-100, 100]");
  EXPECT_EQ(GetErrorFacts(bad), (ErrorFacts{.field = "sampling.logit_bias[65]"}));
  // Other messages are logged as they are, whatever their words.
  EXPECT_EQ(LogText(absl::InternalError("a, got b")), "a, got b");
}

TEST(ErrorFacts, AddUp) {
  absl::Status status = absl::ResourceExhaustedError("no room");
  EXPECT_TRUE(GetErrorFacts(status).empty());
  status = WithFacts(status, {.bytes_needed = 7, .bytes_free = 0});
  status = WithFacts(
      status, {.reason = RejectReason::kTenantBytes, .retry_after = absl::Milliseconds(1500)});
  EXPECT_EQ(GetErrorFacts(status), (ErrorFacts{.reason = RejectReason::kTenantBytes,
                                               .bytes_needed = 7,
                                               .bytes_free = 0,
                                               .retry_after = absl::Milliseconds(1500)}));
  EXPECT_EQ(status.message(), "no room");
  EXPECT_TRUE(WithFacts(absl::OkStatus(), {.field = "x"}).ok());
}

}  // namespace
}  // namespace ovq::engine::test
