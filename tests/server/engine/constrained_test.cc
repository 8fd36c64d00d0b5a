// Constrained answers keep their form, and are the same however they are computed: with and without
// forced tokens, drafts and company, in one call or several, over forks, rewinds and restarts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <random>
#include <set>
#include <string>
#include <string_view>

#include "absl/strings/ascii.h"
#include "server/disk/session_folder.h"
#include "server/engine/common/form_progress.h"
#include "server/engine/common/session_image.h"
#include "tests/folders.h"
#include "tests/server/engine/fake_model.h"
#include "tests/server/engine/served_model.h"
#include "tests/test_util.h"

namespace ovq::engine::test {
namespace {

using testing::HasSubstr;
using Constraint = std::shared_ptr<const AnswerConstraint>;

std::shared_ptr<ByteBudget> SomeMemory() { return std::make_shared<ByteBudget>(size_t{64} << 20); }

Constraint Compiled(const AnswerForm& form) {
  absl::StatusOr<Constraint> made = AnswerConstraint::Make(form, {}, SomeMemory(), "");
  EXPECT_TRUE(made.ok()) << made.status();
  return made.ok() ? *made : nullptr;
}

// Where texts of the form may end that begin at `begin`: by the definition of each part.
std::set<size_t> EndsOf(const AnswerForm& form, std::string_view text, size_t begin) {
  const std::string_view rest = text.substr(begin);
  std::set<size_t> ends;
  switch (form.kind) {
    case AnswerForm::Kind::kSource:
      ADD_FAILURE() << "not in these tests";
      break;
    case AnswerForm::Kind::kLiteral:
      if (rest.starts_with(form.text)) ends.insert(begin + form.text.size());
      break;
    case AnswerForm::Kind::kThrough:
      if (const size_t at = rest.find(form.text); at != rest.npos) {
        ends.insert(begin + at + form.text.size());
      }
      break;
    case AnswerForm::Kind::kWithout:
      for (size_t n = 0; n <= rest.size(); ++n) {
        const bool has = !form.text.empty() && rest.substr(0, n).find(form.text) != rest.npos;
        if (!has) ends.insert(begin + n);
      }
      break;
    case AnswerForm::Kind::kChoice:
      for (const AnswerForm& part : form.parts) ends.merge(EndsOf(part, text, begin));
      break;
    case AnswerForm::Kind::kSequence:
      ends = {begin};
      for (const AnswerForm& part : form.parts) {
        std::set<size_t> after;
        for (const size_t end : ends) after.merge(EndsOf(part, text, end));
        ends = after;
      }
      break;
    case AnswerForm::Kind::kRepeat: {
      std::set<size_t> now = {begin};
      if (form.least == 0) ends = now;
      const int64_t enough = form.least + std::ssize(text) + 1;
      for (int64_t i = 1; i <= std::min(form.most.value_or(enough), enough); ++i) {
        std::set<size_t> after;
        for (const size_t end : now) after.merge(EndsOf(form.parts[0], text, end));
        now = after;
        if (i >= form.least) ends.insert(now.begin(), now.end());
      }
      break;
    }
  }
  return ends;
}

bool IsWhole(const AnswerForm& form, std::string_view text) {
  return EndsOf(form, text, 0).contains(text.size());
}

// Texts of few letters, many of them without a choice.
AnswerForm RandomForm(std::mt19937& random, int depth) {
  const auto upto = [&](int most) { return static_cast<int>(random() % (most + 1u)); };
  const auto literal = [&](int least) {
    std::string text;
    for (int i = upto(10) + least; i > 0; --i) text += static_cast<char>('a' + upto(3));
    return AnswerForm::Literal(text);
  };
  const auto parts = [&](int n) {
    std::vector<AnswerForm> all;
    for (int i = 0; i < n; ++i) all.push_back(RandomForm(random, depth - 1));
    return all;
  };
  switch (depth == 0 ? 0 : upto(7)) {
    case 1:
    case 2:
      return AnswerForm::Choice(parts(2 + upto(2)));
    case 3:
    case 4:
      return AnswerForm::Sequence(parts(2 + upto(2)));
    case 5: {
      const int least = upto(2);
      const bool bound = upto(1) == 0;
      return AnswerForm::Repeat(literal(1), least,
                                bound ? std::optional<int64_t>(least + upto(3)) : std::nullopt);
    }
    case 6:
      return AnswerForm::Repeat(AnswerForm::Choice({literal(1), literal(1)}), 1 + upto(2), 40);
    case 7:
      return upto(1) == 0 ? AnswerForm::Through(std::string(1, static_cast<char>('a' + upto(3))))
                          : AnswerForm::Without("bb");
    default:
      return literal(1);
  }
}

GenerateRequest Constrained(Constraint constraint, int64_t max_tokens, uint64_t seed = 1) {
  GenerateRequest request = SampleRequest(SomeTokens(20, 3), max_tokens, seed);
  request.constraint = std::move(constraint);
  return request;
}

EngineOptions Options(bool forces, Speculation speculation = Speculation::kOff) {
  EngineOptions options;
  options.force_tokens = forces;
  options.speculation = speculation;
  return options;
}

std::string Text(std::span<const int32_t> tokens) {
  std::string text;
  for (const int32_t token : tokens) {
    if (token != kEos) text += static_cast<char>(token);
  }
  return text;
}

void ExpectSameAnswer(const Answer& one, const Answer& other, const std::string& what) {
  EXPECT_EQ(one.tokens, other.tokens) << what;
  EXPECT_EQ(one.text, other.text) << what;
  ASSERT_EQ(one.logprobs.size(), other.logprobs.size()) << what;
  for (size_t i = 0; i < one.logprobs.size(); ++i) {
    EXPECT_EQ(one.logprobs[i], other.logprobs[i]) << what << " at " << i;
    ASSERT_EQ(one.top[i].size(), other.top[i].size()) << what << " at " << i;
    EXPECT_EQ(one.top[i][0].token_id, other.top[i][0].token_id) << what << " at " << i;
    EXPECT_EQ(one.top[i][0].logprob, other.top[i][0].logprob) << what << " at " << i;
  }
  ASSERT_TRUE(one.finished && other.finished) << what;
  EXPECT_EQ(one.finished->reason, other.finished->reason) << what;
  EXPECT_EQ(one.finished->matched_token_id, other.finished->matched_token_id) << what;
  EXPECT_EQ(one.finished->usage.position, other.finished->usage.position) << what;
}

// --- what a constraint does ---

TEST(Constrained, TextsWithoutAChoiceTakeNoStepsOfTheirOwn) {
  const std::string text = "{\"a name that is long\": [1, 2, 3]}";
  for (const bool forces : {false, true}) {
    TestEngine engine(Options(forces));
    GenerateRequest request = Constrained(Compiled(AnswerForm::Literal(text)), 200);
    request.output = {.logprobs = true, .top_logprobs = 2};
    const Answers answers = engine.Run(request);
    ASSERT_TRUE(answers.status.ok()) << answers.status;
    EXPECT_EQ(answers.of[0].text, text);
    EXPECT_EQ(answers.of[0].tokens.size(), text.size()) << "no token for the end";
    EXPECT_EQ(answers.of[0].finished->reason, FinishReason::kStop);
    for (const float logprob : answers.of[0].logprobs) EXPECT_EQ(logprob, 0);
    for (const auto& top : answers.of[0].top) EXPECT_EQ(top.size(), 1u);
    const int64_t steps = engine.model().gate().steps();
    const ConstraintStats stats = engine.SettledStats().constraints;
    if (forces) {
      EXPECT_EQ(steps, 2) << "the prompt's, and one for all that is forced";
      EXPECT_EQ(stats.forced_tokens, std::ssize(text) - 2);
    } else {
      EXPECT_EQ(steps, std::ssize(text));
      EXPECT_EQ(stats.forced_tokens, 0);
    }
    EXPECT_EQ(stats.matchers, 1);
    EXPECT_GT(stats.masks, 0);
    EXPECT_GT(stats.bytes, 0u);
  }
}

TEST(Constrained, LogprobsAreOfTheAllowedTokens) {
  TestEngine engine;
  GenerateRequest request = Constrained(
      Compiled(AnswerForm::Choice({AnswerForm::Literal("x"), AnswerForm::Literal("y")})), 5);
  request.output = {.logprobs = true, .top_logprobs = 5};
  const Answers answers = engine.Run(request);
  ASSERT_EQ(answers.of[0].top[0].size(), 2u);
  double sum = 0;
  for (const model::TokenLogprob& one : answers.of[0].top[0]) sum += std::exp(one.logprob);
  EXPECT_NEAR(sum, 1, 1e-5);
}

TEST(Constrained, LimitsOfTheAnswerKeepTheirMeaning) {
  TestEngine engine;
  const AnswerForm digits = AnswerForm::Repeat(
      AnswerForm::Choice({AnswerForm::Literal("1"), AnswerForm::Literal("2")}), 1, std::nullopt);
  GenerateRequest request = Constrained(Compiled(digits), 30);
  Answers answers = engine.Run(request);
  EXPECT_EQ(answers.of[0].finished->reason, FinishReason::kLength);
  EXPECT_EQ(answers.of[0].tokens.size(), 30u);

  request.sampling.logit_bias[kEos] = 90;  // the model ends as soon as it may
  answers = engine.Run(request);
  EXPECT_EQ(answers.of[0].tokens.size(), 2u);
  EXPECT_EQ(answers.of[0].finished->matched_token_id, kEos);
  request.stop.min_tokens = 7;
  EXPECT_EQ(engine.Run(request).of[0].tokens.size(), 8u);
  request.stop.ignore_eos = true;
  EXPECT_EQ(engine.Run(request).of[0].finished->reason, FinishReason::kLength);

  // Nothing is left to draw: the answer ends by itself where its form may end.
  request = Constrained(Compiled(AnswerForm::Repeat(AnswerForm::Literal("ab"), 1, 1)), 30);
  request.session_id = engine.NewSession().id;
  request.stop.ignore_eos = true;
  answers = engine.Run(request);
  EXPECT_EQ(answers.of[0].text, "ab");
  EXPECT_EQ(answers.of[0].finished->reason, FinishReason::kStop);

  // A stop string may end it early.
  request = Constrained(Compiled(AnswerForm::Literal("one two three")), 30);
  request.stop.strings = {"two"};
  answers = engine.Run(request);
  EXPECT_EQ(answers.of[0].text, "one ");
  EXPECT_EQ(answers.of[0].finished->matched_stop, "two");
}

TEST(Constrained, WhereNothingCanFollowTheErrorNamesTheConstraint) {
  TestEngine engine;
  GenerateRequest request = Constrained(Compiled(AnswerForm::Literal("abc")), 30);
  request.stop.token_ids = {'b'};
  request.stop.min_tokens = 10;  // "b" is not drawn, and the form needs it
  const Answers answers = engine.Run(request);
  EXPECT_TRUE(absl::IsFailedPrecondition(answers.status)) << answers.status;
  EXPECT_THAT(std::string(answers.status.message()), HasSubstr("constraint"));
  EXPECT_EQ(engine.Run(Constrained(Compiled(AnswerForm::Literal("abc")), 30)).of[0].text, "abc");
}

TEST(Constrained, AGrammarThatIsTooAmbiguousEndsTheAnswer) {
  TestEngine engine;
  const AnswerForm item = AnswerForm::Choice(
      {AnswerForm::Literal("a"), AnswerForm::Literal("aa"), AnswerForm::Literal("aaa")});
  const AnswerForm form =
      AnswerForm::Sequence({AnswerForm::Repeat(item, 0, 100'000), AnswerForm::Literal(".")});
  GenerateRequest request = Constrained(Compiled(form), 5000);
  request.sampling.logit_bias['a'] = 90;
  const Answers answers = engine.Run(request);
  EXPECT_TRUE(absl::IsResourceExhausted(answers.status)) << answers.status;
  EXPECT_THAT(std::string(answers.status.message()), HasSubstr("constraint"));
  EXPECT_GT(answers.of[0].tokens.size(), 100u);
  EXPECT_EQ(engine.Run(Constrained(Compiled(AnswerForm::Literal("abc")), 30)).of[0].text, "abc");
}

// A clock that goes on by `step` whenever somebody looks at it.
Clock SteppingClock(std::shared_ptr<std::atomic<int64_t>> step_ms) {
  const auto now = std::make_shared<std::atomic<int64_t>>(1'000'000);
  return {.steady = [=] { return SteadyTime(std::chrono::milliseconds(*now += *step_ms)); }};
}

TEST(Constrained, AFormKnowsHowLongATokenTakes) {
  const auto step = std::make_shared<std::atomic<int64_t>>(1);
  FakeModel model;
  MatcherCache matchers(model.Make().vocabulary, size_t{1} << 20, SteppingClock(step));
  FormProgress form(Compiled(AnswerForm::Literal("abcdef")), matchers, /*has_end=*/false);
  EXPECT_EQ(form.token_time(), absl::Milliseconds(1)) << "a mask";
  ASSERT_TRUE(form.Add('a').ok());
  EXPECT_EQ(form.token_time(), absl::Milliseconds(2)) << "a place and a mask";
  const std::vector<int32_t> drafted = {'b', 'c'};
  EXPECT_EQ(form.Draft(drafted), 2);
  ASSERT_TRUE(form.Add('b').ok());
  EXPECT_EQ(form.token_time(), absl::Milliseconds(6)) << "and those of the draft";
  *step = 0;
  ASSERT_TRUE(form.Add('c').ok());
  EXPECT_EQ(form.token_time(), absl::Milliseconds(4.5)) << "it is forgotten by and by";
}

TEST(Constrained, AnswersWhoseFormTakesLongBeginOneAfterAnother) {
  const AnswerForm letters = AnswerForm::Repeat(
      AnswerForm::Choice({AnswerForm::Literal("x"), AnswerForm::Literal("y")}), 1, 40);
  GenerateRequest request = Constrained(Compiled(letters), 12);
  request.n = 5;
  const Answers expected = TestEngine().Run(request);
  EngineOptions options;
  options.clock = SteppingClock(std::make_shared<std::atomic<int64_t>>(3));
  for (const bool beside_another : {false, true}) {
    SCOPED_TRACE(beside_another);
    TestEngine engine(options);
    std::shared_ptr<TokenStream> other;
    if (beside_another) other = engine.Start(SampleRequest(SomeTokens(20, 4), 2000, 2), 4000);
    const Answers answers = engine.Run(request);
    ASSERT_TRUE(answers.status.ok()) << answers.status;
    ASSERT_EQ(answers.of.size(), 5u);
    for (int i = 0; i < 5; ++i) {
      EXPECT_EQ(answers.of[i].tokens, expected.of[i].tokens) << i;
      EXPECT_EQ(answers.of[i].finished->reason, expected.of[i].finished->reason) << i;
    }
  }
}

TEST(Constrained, AModelWithoutTextRefuses) {
  TestEngine engine({}, {.with_text = false});
  const Answers answers = ReadAll(*[&] {
    auto stream = std::make_shared<TokenStream>();
    const absl::Status status =
        engine->Submit(Constrained(Compiled(AnswerForm::Literal("a")), 3), stream);
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("constraint"));
    stream->Close(status);
    return stream;
  }());
  EXPECT_FALSE(answers.status.ok());
}

// --- forms ---

TEST(AnswerConstraint, BytesOfAFormMakeItAgain) {
  std::mt19937 random(4);
  for (int i = 0; i < 200; ++i) {
    const AnswerForm form = RandomForm(random, 3);
    const Constraint made = Compiled(form);
    const auto again = AnswerConstraint::Decode(made->encoded(), {}, SomeMemory(), "");
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ((*again)->encoded(), made->encoded());
    EXPECT_EQ((*again)->digest(), made->digest());
    for (size_t cut = 0; cut < made->encoded().size(); ++cut) {
      EXPECT_TRUE(absl::IsDataLoss(
          AnswerConstraint::Decode(made->encoded().substr(0, cut), {}, SomeMemory(), "").status()));
    }
    EXPECT_TRUE(absl::IsDataLoss(
        AnswerConstraint::Decode(made->encoded() + "x", {}, SomeMemory(), "").status()));
  }
}

TEST(AnswerConstraint, RefusesWhatIsNoForm) {
  const auto status = [](const AnswerForm& form) {
    return AnswerConstraint::Make(form, {}, SomeMemory(), "").status();
  };
  EXPECT_TRUE(absl::IsInvalidArgument(status(AnswerForm::Through(""))));
  EXPECT_TRUE(absl::IsInvalidArgument(status(AnswerForm::Through(std::string(257, 'x')))));
  EXPECT_TRUE(absl::IsInvalidArgument(status(AnswerForm::Choice({}))));
  EXPECT_TRUE(absl::IsInvalidArgument(status(AnswerForm::Repeat(AnswerForm::Literal("a"), 3, 2))));
  AnswerForm deep = AnswerForm::Literal("a");
  for (int i = 0; i < 20; ++i) deep = AnswerForm::Sequence({deep});
  EXPECT_TRUE(absl::IsInvalidArgument(status(deep)));
  EXPECT_TRUE(absl::IsInvalidArgument(
      status(AnswerForm::Sequence(std::vector<AnswerForm>(5000, AnswerForm::Literal("a"))))));
  EXPECT_TRUE(
      absl::IsResourceExhausted(status(AnswerForm::Literal(std::string(kMaxFormBytes, 'a')))));
}

TEST(AnswerConstraint, ItsBytesAreTheClientsUntilItGoes) {
  const auto memory = std::make_shared<ByteBudget>(size_t{1} << 20);
  absl::StatusOr<Constraint> made =
      AnswerConstraint::Make(AnswerForm::Literal(std::string(1000, 'a')), {}, memory, "me");
  ASSERT_TRUE(made.ok());
  EXPECT_GT(memory->held(), 1000u);
  *made = nullptr;
  EXPECT_EQ(memory->held(), 0u);
  const auto little = std::make_shared<ByteBudget>(600);
  EXPECT_TRUE(absl::IsResourceExhausted(
      AnswerConstraint::Make(AnswerForm::Literal(std::string(1000, 'a')), {}, little, "")
          .status()));
  EXPECT_EQ(little->held(), 0u);
}

// --- the same answer, however it is computed ---

class ConstrainedHow : public testing::TestWithParam<int> {};

TEST_P(ConstrainedHow, GivesTheSameAnswer) {
  std::mt19937 random(static_cast<uint32_t>(GetParam()));
  TestEngine plain(Options(false)), forcing(Options(true)),
      drafting(Options(false, Speculation::kNgram)), both(Options(true, Speculation::kNgram));
  EngineOptions tiny_options = Options(true);
  tiny_options.constraint_memory_bytes = 1;
  TestEngine tiny(tiny_options, {.full_attention = true});
  for (int trial = 0; trial < 6 && !HasFailure(); ++trial) {
    const AnswerForm form = RandomForm(random, 3);
    GenerateRequest request = Constrained(Compiled(form), 20 + random() % 60, 1 + random() % 100);
    request.output = {.logprobs = true, .top_logprobs = 1};
    if (random() % 3 == 0) request.sampling.repetition_penalty = 1.3f;
    if (random() % 3 == 0) request.sampling.frequency_penalty = 0.5f;
    if (random() % 3 == 0) request.sampling.temperature = 0;
    if (random() % 2 == 0) request.sampling.logit_bias[kEos] = 35;
    if (random() % 4 == 0) request.stop.strings = {"ab", "cc"};
    if (random() % 4 == 0) request.stop.min_tokens = random() % 10;
    request.n = 1 + static_cast<int>(random() % 3);
    const Answers expected = plain.Run(request);
    if (!expected.status.ok()) {  // min_tokens bans what the form needs
      EXPECT_TRUE(absl::IsFailedPrecondition(expected.status)) << expected.status;
      EXPECT_EQ(both.Run(request).status, expected.status);
      continue;
    }
    for (const Answer& answer : expected.of) {
      const bool whole =
          answer.finished->reason == FinishReason::kStop && answer.finished->matched_stop.empty();
      EXPECT_TRUE(!whole || IsWhole(form, Text(answer.tokens))) << answer.text;
    }
    for (TestEngine* engine : {&forcing, &drafting, &both, &tiny}) {
      std::vector<std::shared_ptr<TokenStream>> company;
      for (int i = 0; i < 3; ++i) {
        GenerateRequest other = Constrained(Compiled(RandomForm(random, 2)), 40, 9);
        if (i == 0) other.constraint = nullptr;
        company.push_back(engine->Start(other, 1000));
      }
      const Answers got = engine->Run(request);
      ASSERT_TRUE(got.status.ok()) << got.status;
      if (engine == &tiny) continue;  // another model, whose memory for masks is too small
      for (size_t i = 0; i < got.of.size(); ++i) {
        ExpectSameAnswer(got.of[i], expected.of[i], "trial " + std::to_string(trial));
      }
      for (const auto& stream : company) ReadAll(*stream);
    }
  }
  EXPECT_LT(tiny.SettledStats().constraints.matchers, 2);
}

// A session's answer in parts, over forks, rewinds, exports and restarts, is that of one call.
TEST_P(ConstrainedHow, GoesOnAsIfItHadNotEnded) {
  std::mt19937 random(static_cast<uint32_t>(1000 + GetParam()));
  const std::string path =
      testing::TempDir() + "/constrained" + std::to_string(getpid()) + std::to_string(GetParam());
  std::filesystem::remove_all(path);
  std::unique_ptr<TestEngine> engine;
  const auto start = [&] {
    engine.reset();
    auto folder = disk::SessionFolder::Open({.path = path}, [](const store::StoreReport&) {});
    ASSERT_TRUE(folder.ok()) << folder.status();
    auto found = (*folder)->Recover();
    ASSERT_TRUE(found.ok() && found->damaged.empty());
    EngineOptions options = Options(true, Speculation::kNgram);
    options.session_store = *std::move(folder);
    options.trust_session_files = random() % 2 == 0;
    engine = std::make_unique<TestEngine>(options);
    EXPECT_TRUE((*engine)->sessions().Adopt(std::move(found->sessions)).empty());
  };
  start();
  for (int trial = 0; trial < 3 && !HasFailure(); ++trial) {
    const AnswerForm form = RandomForm(random, 3);
    const Constraint constraint = Compiled(form);
    GenerateRequest whole = Constrained(constraint, 60, 7);
    whole.sampling.logit_bias[kEos] = 32;
    whole.session_id = engine->NewSession().id;
    const Answers expected = engine->Run(whole);
    ASSERT_TRUE(expected.status.ok()) << expected.status;
    const std::vector<int32_t>& tokens = expected.of[0].tokens;

    const bool keeps = random() % 4 != 0;
    SessionOptions session_options;
    session_options.keep_tokens = keeps;
    std::string id = engine->NewSession(session_options).id;
    std::vector<int32_t> got;
    GenerateRequest part = whole;
    bool first = true;
    while (got.size() < tokens.size() && !HasFailure()) {
      part.session_id = id;
      const auto left = static_cast<int64_t>(tokens.size() - got.size());
      part.stop.max_tokens = std::min<int64_t>(1 + random() % 12, left);
      part.constraint = first || random() % 2 == 0 ? Compiled(form) : nullptr;
      if (!first) part.prompt.clear();
      first = false;
      const Answers answers = engine->Run(part);
      ASSERT_TRUE(answers.status.ok()) << answers.status;
      got.insert(got.end(), answers.of[0].tokens.begin(), answers.of[0].tokens.end());
      ASSERT_TRUE(std::equal(got.begin(), got.end(), tokens.begin()))
          << Text(got) << " is not how " << Text(tokens) << " begins";
      switch (random() % 6) {
        case 0:
          start();
          break;
        case 1: {
          Receiver<absl::StatusOr<std::vector<SessionInfo>>> forked;
          (*engine)->sessions().Fork({.session_id = id}, forked.callback());
          id = forked.Wait()->front().id;
          break;
        }
        case 2: {
          const size_t back = random() % got.size();
          const bool ended = got.size() == tokens.size();
          if (!keeps || back == 0 || ended) break;
          Receiver<absl::StatusOr<RewindResult>> rewound;
          const auto position = static_cast<uint64_t>(20 + got.size() - back);
          (*engine)->sessions().Rewind({.session_id = id, .position = position}, nullptr,
                                       rewound.callback());
          ASSERT_TRUE(rewound.Wait().ok());
          got.resize(got.size() - back);
          break;
        }
        case 3: {
          if (!keeps) break;
          SessionImage image = *(*engine)->sessions().Export(id, "");
          Receiver<absl::StatusOr<SessionInfo>> made;
          (*engine)->sessions().Import(std::move(image), {}, made.callback());
          const absl::StatusOr<SessionInfo> info = made.Wait();
          ASSERT_TRUE(info.ok()) << info.status();
          id = info->id;
          break;
        }
        default:
          break;
      }
    }
    EXPECT_EQ(got, tokens);
  }
  engine.reset();
  std::filesystem::remove_all(path);
}

INSTANTIATE_TEST_SUITE_P(Seeds, ConstrainedHow, testing::Range(0, 12));

TEST(Constrained, OtherCallsEndAnUnfinishedAnswer) {
  TestEngine engine;
  const std::string text(40, 'x');
  GenerateRequest call = Constrained(Compiled(AnswerForm::Literal(text)), 10);
  call.session_id = engine.NewSession().id;
  EXPECT_EQ(engine.Run(call).of[0].text, std::string(10, 'x'));
  const auto go_on = [&](Constraint constraint, std::vector<int32_t> prompt) {
    GenerateRequest next = Turn(call.session_id, std::move(prompt), 10);
    next.constraint = std::move(constraint);
    return engine.Run(next).of[0].text;
  };
  EXPECT_EQ(go_on(nullptr, {}), std::string(10, 'x'));
  EXPECT_EQ(go_on(Compiled(AnswerForm::Literal(std::string(30, 'y'))), {}), std::string(10, 'y'));
  EXPECT_EQ(go_on(nullptr, {}), std::string(10, 'y'));
  EXPECT_NE(go_on(nullptr, {1}), std::string(10, 'y'));
  EXPECT_NE(go_on(nullptr, {}), std::string(10, 'y'));

  // A rewind to before the answer forgets it.
  call.prompt = {5};
  EXPECT_EQ(engine.Run(call).of[0].text, std::string(10, 'x'));
  const int64_t position = engine->sessions().Get(call.session_id, "")->position;
  Receiver<absl::StatusOr<RewindResult>> rewound;
  engine->sessions().Rewind(
      {.session_id = call.session_id, .position = static_cast<uint64_t>(position - 10)}, nullptr,
      rewound.callback());
  ASSERT_TRUE(rewound.Wait().ok());
  EXPECT_NE(go_on(nullptr, {}), std::string(10, 'x'));
}

TEST(Constrained, ACancelledAnswerGoesOn) {
  TestEngine engine;
  engine.model().gate().CloseAt(6);
  GenerateRequest call = Constrained(
      Compiled(AnswerForm::Repeat(
          AnswerForm::Choice({AnswerForm::Literal("p"), AnswerForm::Literal("q")}), 0, 200)),
      200);
  call.session_id = engine.NewSession().id;
  const std::shared_ptr<TokenStream> stream = engine.Start(call);
  engine.model().gate().AwaitEntered(6);
  stream->Cancel();
  engine.model().gate().Open();
  const Answers cancelled = ReadAll(*stream);
  EXPECT_EQ(cancelled.of[0].finished->reason, FinishReason::kCancelled);
  const std::string text = engine.Run(Turn(call.session_id, {}, 20)).of[0].text;
  EXPECT_EQ(text.size(), 20u);
  EXPECT_EQ(text.find_first_not_of("pq"), std::string::npos) << text;
}

TEST(Constrained, FilesWithAnotherAnswerAreRefused) {
  TestEngine engine;
  GenerateRequest call = Constrained(Compiled(AnswerForm::Literal(std::string(40, 'x'))), 10);
  call.session_id = engine.NewSession().id;
  engine.Run(call);
  const SessionImage image = *engine->sessions().Export(call.session_id, "");
  ASSERT_FALSE(image.unfinished.empty());
  const auto import = [&](const std::string& unfinished) {
    SessionImage changed = image;
    changed.unfinished = unfinished;
    Receiver<absl::StatusOr<SessionInfo>> made;
    engine->sessions().Import(std::move(changed), {}, made.callback());
    return made.Wait().status();
  };
  EXPECT_TRUE(import(image.unfinished).ok());
  std::string bytes = image.unfinished;
  bytes[4] = 'y';  // the answer's first token
  EXPECT_TRUE(absl::IsDataLoss(import(bytes)));
  for (size_t cut = 1; cut < bytes.size(); ++cut) {
    EXPECT_FALSE(import(image.unfinished.substr(0, cut)).ok()) << cut;
  }
}

// --- every mixer ---

class ConstrainedOf : public testing::TestWithParam<const char*> {};

// The golden models have no tokenizer: a token's text is its id as two letters.
std::shared_ptr<const constraint::Vocabulary> Letters(int64_t vocab_size) {
  std::vector<std::string> texts;
  for (int64_t id = 0; id < vocab_size; ++id) {
    texts.emplace_back();
    if (id >= 256) continue;
    texts.back() = {static_cast<char>('a' + id / 16), static_cast<char>('a' + id % 16)};
  }
  return std::make_shared<const constraint::Vocabulary>(texts, std::vector<int32_t>{});
}

TEST_P(ConstrainedOf, ForcedTokensLeaveTheSameState) {
  const auto context = kernels::test::MakeContext(kernels::Device::kCpu);
  model::ModelOptions model_options;
  model_options.limits.max_unbounded_tokens = 4096;
  const auto model =
      model::LanguageModel::Load(GoldenFolder() + "/native/" + GetParam(), model_options, *context);
  ASSERT_TRUE(model.ok()) << model.status();
  std::string cycle;
  for (int i = 0; i < 60; ++i) cycle += i % 7 == 6 ? "bc" : "ab";
  const AnswerForm form = AnswerForm::Repeat(
      AnswerForm::Sequence(
          {AnswerForm::Literal(cycle),
           AnswerForm::Choice({AnswerForm::Literal("aa"), AnswerForm::Literal("ac")})}),
      1, 3);
  std::vector<Answers> answers;
  std::vector<std::vector<std::byte>> states;
  for (const bool forces : {false, true}) {
    EngineModel served = Served(**model);
    served.vocabulary = Letters(served.vocab_size);
    EngineThread engine(served, Options(forces), kernels::test::MakeContext(kernels::Device::kCpu),
                        EngineEvents());
    Receiver<absl::StatusOr<SessionInfo>> receiver;
    engine.engine().sessions().Create({}, receiver.callback());
    const std::string id = receiver.Wait()->id;
    GenerateRequest request = Turn(id, {1, 2, 3}, 150);
    request.constraint = Compiled(form);
    request.output = {.logprobs = true, .top_logprobs = 1};
    auto stream = std::make_shared<TokenStream>(100'000);
    ASSERT_TRUE(engine.engine().Submit(request, stream).ok());
    answers.push_back(ReadAll(*stream));
    ASSERT_TRUE(answers.back().status.ok()) << answers.back().status;
    states.push_back(*CopyState(engine.engine(), id, ""));
    states.back() = *CopyState(engine.engine(), id, "");  // statistics are of a boundary before it
    EXPECT_EQ(engine.engine().Stats().constraints.forced_tokens > 100, forces);
  }
  ExpectSameAnswer(answers[0].of[0], answers[1].of[0], GetParam());
  EXPECT_EQ(states[0], states[1]);
}

INSTANTIATE_TEST_SUITE_P(Mixers, ConstrainedOf,
                         testing::Values("sw-ovq", "ovq-delta", "sw-closest-pair", "sw-vq",
                                         "mamba2-ovq", "mesa-sw", "sw-lattice", "transformer-vq",
                                         "sw-full"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace_if(
                               name, [](char c) { return !absl::ascii_isalnum(c); }, '_');
                           return name;
                         });

}  // namespace
}  // namespace ovq::engine::test
