// Constrained answers are the same however they are computed: with and without forced tokens,
// drafts and company, in one call or several, over forks, rewinds and restarts.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/ascii.h"
#include "server/disk/session_folder.h"
#include "server/engine/common/session_image.h"
#include "tests/folders.h"
#include "tests/server/engine/fake_model.h"
#include "tests/server/engine/forms.h"
#include "tests/server/engine/served_model.h"
#include "tests/test_util.h"

namespace ovq::engine::test {
namespace {

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

class ConstrainedHow : public testing::TestWithParam<int> {};

TEST_P(ConstrainedHow, GivesTheSameAnswer) {
  std::mt19937 random(static_cast<uint32_t>(GetParam()));
  TestEngine plain(FormOptions(false)), forcing(FormOptions(true)),
      drafting(FormOptions(false, Speculation::kNgram)),
      both(FormOptions(true, Speculation::kNgram));
  EngineOptions tiny_options = FormOptions(true);
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
    EngineOptions options = FormOptions(true, Speculation::kNgram);
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
    EngineThread engine(served, FormOptions(forces),
                        kernels::test::MakeContext(kernels::Device::kCpu), EngineEvents());
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
