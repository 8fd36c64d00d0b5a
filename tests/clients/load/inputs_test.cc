// Tests of ovq-load's inputs: options, lengths, arrivals, traces and workloads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "clients/load/distributions.h"
#include "clients/load/options.h"
#include "clients/load/workload.h"

namespace ovq::load {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<double> Gaps(const ArrivalOptions& options, int n) {
  ArrivalSchedule schedule(options);
  std::vector<double> gaps;
  double before = 0;
  for (int i = 0; i < n; ++i) {
    const double at = schedule.Next();
    gaps.push_back(at - before);
    before = at;
  }
  return gaps;
}

struct Moments {
  double mean = 0, variance = 0;
  explicit Moments(const std::vector<double>& x) {
    const auto n = static_cast<double>(x.size());
    mean = std::accumulate(x.begin(), x.end(), 0.0) / n;
    for (double value : x) variance += (value - mean) * (value - mean) / n;
  }
};

TEST(Arrivals, ConstantGapsAreAllTheSame) {
  for (double gap : Gaps({.kind = ArrivalKind::kConstant, .rate = 4}, 100)) {
    EXPECT_NEAR(gap, 0.25, 1e-9);
  }
}

// Gaps are Gamma(b) / b over the rate: mean 1/rate, squared coefficient of variation 1/b. The mean
// of n gaps has standard error sqrt(1/(b n)); the sample variance, relative to the true one, has
// sqrt((2 + 6/b) / n) (the excess kurtosis of a gamma variable is 6/b). The test allows five
// errors.
TEST(Arrivals, GammaHasItsMeanAndBurstiness) {
  constexpr int kN = 100'000;
  constexpr double kRate = 20;
  for (const double b : {0.25, 0.5, 1.0, 3.0}) {
    const Moments moments(
        Gaps({.kind = ArrivalKind::kGamma, .rate = kRate, .burstiness = b, .seed = 3}, kN));
    EXPECT_NEAR(moments.mean * kRate, 1, 5 * std::sqrt(1 / (b * kN))) << b;
    EXPECT_NEAR(moments.variance * kRate * kRate * b, 1, 5 * std::sqrt((2 + 6 / b) / kN)) << b;
  }
}

TEST(Arrivals, PoissonIsGammaOfShapeOne) {
  constexpr int kN = 100'000;
  const Moments moments(Gaps({.kind = ArrivalKind::kPoisson, .rate = 5, .seed = 9}, kN));
  EXPECT_NEAR(moments.mean * 5, 1, 5 / std::sqrt(kN));
  EXPECT_NEAR(moments.variance * 25, 1, 5 * std::sqrt(8.0 / kN));
}

TEST(Arrivals, SameSeedSameTimes) {
  const ArrivalOptions options{.kind = ArrivalKind::kGamma, .burstiness = 0.5, .seed = 7};
  ArrivalOptions other = options;
  other.seed = 8;
  EXPECT_EQ(Gaps(options, 50), Gaps(options, 50));
  EXPECT_NE(Gaps(options, 50), Gaps(other, 50));
}

// During a ramp of 10 s to 10/s, t^2 / 2 arrivals are due by t, 50 by its end; then 10 per second.
TEST(Arrivals, RampGrowsLinearly) {
  ArrivalSchedule schedule({.kind = ArrivalKind::kConstant, .rate = 10, .ramp = absl::Seconds(10)});
  std::vector<double> times;
  for (int i = 0; i < 100; ++i) times.push_back(schedule.Next());
  EXPECT_NEAR(times[1], 2, 1e-9);    // the second: t^2 / 2 = 2
  EXPECT_NEAR(times[31], 8, 1e-9);   // the 32nd
  EXPECT_NEAR(times[49], 10, 1e-9);  // the 50th
  EXPECT_NEAR(times[99], 15, 1e-9);
}

TEST(ClosedLoop, UsersComeEvenlyOverTheRamp) {
  std::vector<absl::Duration> starts;
  for (int64_t user = 0; user < 5; ++user)
    starts.push_back(UserStartTime(user, 5, absl::Seconds(8)));
  EXPECT_THAT(starts, ElementsAre(absl::ZeroDuration(), absl::Seconds(2), absl::Seconds(4),
                                  absl::Seconds(6), absl::Seconds(8)));
  EXPECT_EQ(UserStartTime(4, 5, absl::ZeroDuration()), absl::ZeroDuration());
  EXPECT_EQ(UserStartTime(0, 1, absl::Seconds(8)), absl::ZeroDuration());
}

TEST(Lengths, DrawWithinTheirBounds) {
  const auto uniform = LengthDistribution::Parse("uniform:3-6", 100);
  ASSERT_TRUE(uniform.ok()) << uniform.status();
  Random random(1);
  std::set<int64_t> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(uniform->Draw(random));
  EXPECT_EQ(seen, (std::set<int64_t>{3, 4, 5, 6}));

  const auto clipped = LengthDistribution::Parse("lognormal:50:2:10-60", 100);
  ASSERT_TRUE(clipped.ok()) << clipped.status();
  seen.clear();
  for (int i = 0; i < 1000; ++i) seen.insert(clipped->Draw(random));
  EXPECT_EQ(*seen.begin(), 10);
  EXPECT_EQ(*seen.rbegin(), 60);
}

// The variance of a lognormal of mean m is m^2 (exp(s^2) - 1). Clipping at ten times the mean is
// negligible at s = 0.5 (4.9 standard deviations of the logarithm), and rounding to whole tokens
// adds no bias. The test allows five standard errors.
TEST(Lengths, LognormalHasItsMean) {
  const auto lengths = LengthDistribution::Parse("lognormal:500:0.5", 1 << 20);
  ASSERT_TRUE(lengths.ok()) << lengths.status();
  constexpr int kN = 20'000;
  Random random(5);
  double sum = 0;
  for (int i = 0; i < kN; ++i) sum += static_cast<double>(lengths->Draw(random));
  EXPECT_NEAR(sum / kN, 500, 5 * 500 * std::sqrt((std::exp(0.25) - 1) / kN));
}

TEST(Lengths, WrongOnesSayWhatIsExpected) {
  for (const char* text : {"", "0", "101", "x", "uniform:5", "uniform:6-5", "uniform:0-5",
                           "lognormal:50", "lognormal:50:x", "lognormal:50:-1", "lognormal:0:1",
                           "lognormal:50:1:9-8", "lognormal:50:1:1-2:3", "normal:5:1"}) {
    const auto lengths = LengthDistribution::Parse(text, 100);
    ASSERT_FALSE(lengths.ok()) << text;
    EXPECT_THAT(std::string(lengths.status().message()), HasSubstr("expected N, uniform:A-B"));
  }
}

TEST(Trace, TakesSecondsAndMilliseconds) {
  const auto trace = ParseTrace(
      "{\"timestamp_s\": 12.5, \"input_length\": 7, \"output_length\": 3, \"session\": \"a\"}\n"
      "\n"
      "{\"timestamp\": 10000, \"input_length\": 5, \"output_length\": 2, \"hash_ids\": [1]}\r\n",
      "t");
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->size(), 2u);  // ordered by time, counted from the first
  EXPECT_EQ((*trace)[0].at_s, 0);
  EXPECT_EQ((*trace)[0].input_tokens, 5);
  EXPECT_EQ((*trace)[0].session, "");
  EXPECT_EQ((*trace)[1].at_s, 2.5);
  EXPECT_EQ((*trace)[1].output_tokens, 3);
  EXPECT_EQ((*trace)[1].session, "a");
}

TEST(Trace, ErrorsNameFileAndLine) {
  const std::string good = R"({"timestamp": 0, "input_length": 1, "output_length": 1})";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{", "t.jsonl:3: expected a JSON object"},
      {"[1]", "t.jsonl:3: expected a JSON object"},
      {R"({"input_length": 1, "output_length": 1})", "t.jsonl:3: expected one of timestamp_s"},
      {R"({"timestamp": 1, "timestamp_s": 1, "input_length": 1, "output_length": 1})",
       "t.jsonl:3: expected one of timestamp_s"},
      {R"({"timestamp": "1", "input_length": 1, "output_length": 1})",
       "t.jsonl:3: timestamp: expected a number from 0 on, got \"1\""},
      {R"({"timestamp": -1, "input_length": 1, "output_length": 1})", "t.jsonl:3: timestamp:"},
      {R"({"timestamp": 1, "output_length": 1})", "t.jsonl:3: input_length is missing"},
      {R"({"timestamp": 1, "input_length": 0, "output_length": 1})", "t.jsonl:3: input_length:"},
      {R"({"timestamp": 1, "input_length": 18446744073709551615, "output_length": 1})",
       "t.jsonl:3: input_length:"},
      {R"({"timestamp": 1, "input_length": 1, "output_length": 1.5})", "t.jsonl:3: output_length:"},
      {R"({"timestamp": 1, "input_length": 1, "output_length": 1, "session": 4})",
       "t.jsonl:3: session: expected a text, got 4"}};
  for (const auto& [line, message] : cases) {
    const auto trace = ParseTrace(good + "\n\n" + line + "\n" + good, "t.jsonl");
    ASSERT_FALSE(trace.ok()) << line;
    EXPECT_THAT(std::string(trace.status().message()), HasSubstr(message));
  }
  EXPECT_THAT(std::string(ParseTrace("\n", "t.jsonl").status().message()),
              HasSubstr("t.jsonl: expected at least one request"));
}

TEST(Workload, StopsAtItsRequests) {
  Workload workload({.turns = 3, .max_requests = 7});
  std::vector<size_t> turns;
  while (const auto conversation = workload.Next()) {
    EXPECT_TRUE(conversation->session);
    turns.push_back(conversation->turns.size());
  }
  EXPECT_EQ(turns, (std::vector<size_t>{3, 3, 1}));
}

TEST(Workload, GroupsATraceBySession) {
  Workload workload(
      {.max_requests = 4,
       .trace = {{0, 1, 1, "a"}, {1, 2, 1, ""}, {2, 3, 1, "a"}, {3, 4, 1, "b"}, {4, 5, 1, "a"}},
       .trace_speed = 2});
  const auto a = workload.Next(), alone = workload.Next(), b = workload.Next();
  ASSERT_TRUE(a && alone && b);
  EXPECT_FALSE(workload.Next());
  ASSERT_EQ(a->turns.size(), 2u);  // the fifth entry is beyond max_requests
  EXPECT_EQ(a->turns[1].input_tokens, 3);
  EXPECT_EQ(a->turns[1].due_s, 1.0);
  EXPECT_TRUE(a->session);
  EXPECT_FALSE(alone->session);
  EXPECT_TRUE(b->session);
}

TEST(Prompts, FollowSeedAndPlaceAlone) {
  const PromptMaker maker(1, 50), other(2, 50);
  const std::vector<uint32_t> ids = maker.Make(3, 1, 200);
  EXPECT_EQ(ids.size(), 200u);
  EXPECT_LT(*std::max_element(ids.begin(), ids.end()), 50u);
  EXPECT_EQ(ids, maker.Make(3, 1, 200));
  EXPECT_NE(ids, maker.Make(3, 2, 200));
  EXPECT_NE(ids, maker.Make(4, 1, 200));
  EXPECT_NE(ids, other.Make(3, 1, 200));
}

TEST(Prompts, SlicesOfATextGoRound) {
  const PromptMaker maker(1, std::vector<uint32_t>{7, 8, 9});
  const std::vector<uint32_t> ids = maker.Make(0, 0, 8);
  for (size_t i = 1; i < ids.size(); ++i) EXPECT_EQ(ids[i], ids[i - 1] == 9 ? 7 : ids[i - 1] + 1);
}

TEST(Options, Defaults) {
  const auto options = ParseOptions({});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_FALSE(options->open_loop());
  EXPECT_EQ(options->users(), 1);
}

TEST(Options, AreRead) {
  const std::vector<std::string> args = {"--rate",
                                         "2.5",
                                         "--arrivals=gamma",
                                         "--burstiness",
                                         "0.5",
                                         "--ramp-up=10s",
                                         "--goodput=ttft:200,e2e:5000",
                                         "--turns=3",
                                         "--think-time",
                                         "250ms"};
  const auto options = ParseOptions(args);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->rate, 2.5);
  EXPECT_EQ(options->plan.arrivals.kind, ArrivalKind::kGamma);
  EXPECT_EQ(options->plan.arrivals.burstiness, 0.5);
  EXPECT_EQ(options->plan.arrivals.ramp, absl::Seconds(10));
  EXPECT_EQ(options->plan.think_time, absl::Milliseconds(250));
  EXPECT_EQ(options->goodput->ttft_ms, 200);
  EXPECT_FALSE(options->goodput->tpot_ms.has_value());
}

TEST(Options, WrongOnesNameTheFlag) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--nonsense"}, "unknown flag --nonsense"},
      {{"load"}, "unexpected argument 'load'"},
      {{"--rate"}, "--rate needs a value"},
      {{"--sweep=1"}, "--sweep takes no value"},
      {{"--rate=0"}, "--rate: expected a number from 0.001 to 1e+06, got '0'"},
      {{"--rate=nan"}, "--rate: expected a number"},
      {{"--concurrency=0"}, "--concurrency: expected a whole number from 1 to 100000, got '0'"},
      {{"--duration=5"}, "--duration: expected a duration"},
      {{"--duration=inf"}, "--duration: expected a duration"},
      {{"--server=host"}, "--server: expected HOST:PORT"},
      {{"--output-length=uniform:9"}, "--output-length: expected N, uniform:A-B"},
      {{"--goodput=ttft:0"}, "--goodput: expected ttft:MS"},
      {{"--goodput=ttft:1,ttft:2"}, "--goodput: expected ttft:MS"},
      {{"--tls-cert=a"}, "give --tls-cert and --tls-key together"},
      {{"--rate=1", "--trace=t"}, "give one of --rate and --trace"},
      {{"--burstiness=2", "--rate=1"}, "--burstiness needs --arrivals gamma"},
      {{"--arrivals=poisson"}, "--arrivals needs --rate"},
      {{"--trace=t", "--turns=2"}, "--turns does not go with --trace"},
      {{"--sweep-gain=0.1"}, "--sweep-gain needs --sweep"},
      {{"--think-time=1s"}, "--think-time needs --turns above 1"},
      {{"--detailed"}, "--detailed needs --output-json"}};
  for (const auto& [args, message] : cases) {
    const auto options = ParseOptions(args);
    ASSERT_FALSE(options.ok()) << message;
    EXPECT_THAT(std::string(options.status().message()), HasSubstr(message));
  }
}

}  // namespace
}  // namespace ovq::load
