// Times a token of a constrained answer beside one of a free answer, through the engine, on one
// core, in CPU time.
//
//   bench_forms [--model models/python-bytes] [--vocab 150000] [--answers 1,8] [--tokens 256]
//               [--rounds 9]
//
// Two models: a folder's with its tokenizer, and a small one of random weights whose vocabulary is
// synthetic. A round has an answer of --tokens tokens (or so many at once) without a form and one
// in each of some forms that never end, in turn, each from an engine of its own: so masks are made
// in the round, as for a form that is new to a server. Tokens without a choice are drawn like
// others. A sample is the time of the engine's thread from one token of each answer to the next.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/language_model.h"
#include "model/tokenizer.h"
#include "server/engine/engine.h"
#include "tests/bench/bench_util.h"
#include "tests/bench/random_model.h"
#include "tests/bench/synthetic_vocabulary.h"
#include "tests/server/engine/served_model.h"

namespace ovq::bench {
namespace {

using constraint::Source;
using Constraint = std::shared_ptr<const engine::AnswerConstraint>;

struct Form {
  const char* name;
  const char* grammar;  // null: none
};
const Form kForms[] = {
    {"free", nullptr},
    {"JSON objects", R"gbnf(root ::= (object "\n")+
object ::= "{" ws (member ("," ws member)*)? "}"
member ::= string ws ":" ws value ws
array ::= "[" ws (value ws ("," ws value ws)*)? "]"
value ::= object | array | string | number | "true" | "false" | "null"
string ::= "\"" ([^"\\\x00-\x1f] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\""
number ::= "-"? ("0" | [1-9] [0-9]{0,19}) ("." [0-9]{1,20})? ([eE] [-+]? [0-9]{1,3})?
ws ::= " "? | "\n" " "{0,32})gbnf"},
    {"records of counted strings",
     R"gbnf(root ::= ("{\"name\": " string ", \"tags\": [" tags "], \"age\": " [1-9] [0-9]{0,2} "}\n")+
tags ::= string (", " string){0,9}
string ::= "\"" ([^"\\\x00-\x1f] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4})){0,1000} "\"")gbnf"},
    {"text without a marker", R"gbnf(root ::= ([^<] | "<" [^/])*)gbnf"},
};

Constraint Compile(const char* grammar) {
  if (grammar == nullptr) return nullptr;
  const engine::AnswerForm form =
      engine::AnswerForm::Given({.kind = Source::Kind::kGrammar, .text = grammar});
  auto made = engine::AnswerConstraint::Make(form, {}, std::make_shared<ByteBudget>(1 << 26), "");
  Check(made.ok(), "a form of this program compiles");
  return *made;
}

// Waits for the end of a call's stream, and drops what comes.
class Reader {
 public:
  Reader() : stream_(std::make_shared<engine::TokenStream>(1 << 20)) {
    stream_->SetListener([this] {
      while (stream_->TryPop()) {
      }
      if (stream_->closed() && !std::exchange(told_, true)) over_.set_value();
    });
  }
  ~Reader() { stream_->SetListener(nullptr); }
  const std::shared_ptr<engine::TokenStream>& stream() { return stream_; }
  absl::Status Wait() {
    over_.get_future().wait();
    return stream_->status();
  }

 private:
  std::shared_ptr<engine::TokenStream> stream_;
  std::promise<void> over_;
  bool told_ = false;
};

struct Load {
  int answers;
  int64_t tokens;
};

// CPU time of this thread, so that other programs do not count.
double Microseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e6 * static_cast<double>(now.tv_sec) + 1e-3 * static_cast<double>(now.tv_nsec);
}

// Appends the times of the tokens that follow the first.
void TimeAnswers(const engine::EngineModel& model, const Load& load, const Constraint& constraint,
                 uint64_t seed, std::vector<double>& times) {
  engine::EngineOptions options;
  options.seed = 1;
  options.force_tokens = false;
  // Callbacks run on the engine's thread, which ends before `times` is read.
  engine::EngineEvents events;
  double before = 0;
  events.first_token = [&](absl::Duration) { before = Microseconds(); };
  events.step = [&](const engine::IterationReport& report) {
    const double now = Microseconds();
    if (report.decode_tokens > 0) times.push_back(now - before);
    before = now;
  };
  engine::EngineThread host(model, std::move(options),
                            *kernels::DeviceContext::Make(kernels::Device::kCpu, /*n_threads=*/1),
                            std::move(events));
  engine::GenerateRequest request;
  request.prompt = {1, 2, 3, 4};
  request.sampling.seed = seed;
  request.stop.max_tokens = load.tokens;
  request.stop.ignore_eos = true;
  request.constraint = constraint;
  request.n = load.answers;
  Reader reader;
  absl::Status status = host.engine().Submit(std::move(request), reader.stream());
  if (status.ok()) status = reader.Wait();
  if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  Check(status.ok(), "an answer ends by its length");
}

double Percentile(const std::vector<double>& sorted, double share) {
  return sorted[static_cast<size_t>(share * static_cast<double>(sorted.size() - 1))];
}

void Measure(const engine::EngineModel& model, const Load& load, int rounds) {
  constexpr size_t kCount = std::size(kForms);
  std::vector<double> times[kCount];
  Constraint constraints[kCount];
  for (size_t i = 0; i < kCount; ++i) constraints[i] = Compile(kForms[i].grammar);
  for (int round = 0; round < rounds; ++round) {
    for (size_t k = 0; k < kCount; ++k) {
      const size_t i = (k + static_cast<size_t>(round)) % kCount;
      TimeAnswers(model, load, constraints[i], static_cast<uint64_t>(round) + 1, times[i]);
    }
  }
  std::printf("  %d at once, %lld tokens each, %d rounds\n", load.answers,
              static_cast<long long>(load.tokens), rounds);
  for (std::vector<double>& each : times) {
    Check(std::ssize(each) == rounds * (load.tokens - 1), "answers are whole");
    std::ranges::sort(each);
  }
  const double free_p50 = Percentile(times[0], 0.5), free_p99 = Percentile(times[0], 0.99);
  for (size_t i = 0; i < kCount; ++i) {
    const double p50 = Percentile(times[i], 0.5), p99 = Percentile(times[i], 0.99);
    std::printf("    %-28s p50 %8.1f us (%.3f of free)   p99 %8.1f us (%+.2f ms)\n", kForms[i].name,
                p50, p50 / free_p50, p99, (p99 - free_p99) / 1000);
  }
}

void MeasureEach(const char* name, const engine::EngineModel& model, Load load,
                 const std::vector<int64_t>& answers, int rounds) {
  std::printf("%s, %lld tokens\n", name, static_cast<long long>(model.vocab_size));
  for (const int64_t n : answers) {
    load.answers = static_cast<int>(n);
    Measure(model, load, rounds);
  }
}

std::unique_ptr<model::LanguageModel> LoadModel(const std::string& folder,
                                                kernels::DeviceContext& context) {
  auto model = model::LanguageModel::Load(folder, {}, context);
  if (!model.ok()) {
    std::fprintf(stderr, "%s\n", std::string(model.status().message()).c_str());
    std::exit(1);
  }
  return *std::move(model);
}

int Main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  CheckFlags(argc, argv, {"--model", "--vocab", "--answers", "--tokens", "--rounds"});
  const auto number = [&](const char* name, const char* otherwise) {
    return std::atoll(FlagValue(argc, argv, name, otherwise));
  };
  const std::string folder = FlagValue(argc, argv, "--model", "models/python-bytes");
  const std::vector<int64_t> answers = Numbers(FlagValue(argc, argv, "--answers", "1,8"));
  const auto rounds = static_cast<int>(number("--rounds", "9"));
  const Load load = {.answers = 1, .tokens = number("--tokens", "256")};
  const auto context = *kernels::DeviceContext::Make(kernels::Device::kCpu, /*n_threads=*/1);
  {
    const std::unique_ptr<model::LanguageModel> model = LoadModel(folder, *context);
    const auto tokenizer = *model::Tokenizer::Load(folder, model->config());
    engine::EngineModel served = engine::test::Served(*model);
    served.eos_token_ids = model->config().eos_token_ids;
    served.tokenizer = tokenizer.get();
    served.vocabulary = served.MakeVocabulary();
    Check(served.vocabulary != nullptr, "--model has a tokenizer with texts");
    MeasureEach(folder.c_str(), served, load, answers, rounds);
  }
  const int64_t vocab = number("--vocab", "150000");
  const std::filesystem::path random =
      std::filesystem::temp_directory_path() / ("ovq-bench-forms-" + std::to_string(vocab));
  WriteRandomModel(
      random,
      {.n_layers = 2, .d_model = 64, .n_heads = 1, .d_ff = 128, .vocab = static_cast<int>(vocab)},
      "ovq_attention");
  const std::unique_ptr<model::LanguageModel> model = LoadModel(random.string(), *context);
  std::filesystem::remove_all(random);
  engine::EngineModel served = engine::test::Served(*model);
  served.eos_token_ids = {static_cast<int32_t>(vocab) - 1};
  served.vocabulary = std::make_shared<const constraint::Vocabulary>(
      SyntheticTokens(static_cast<size_t>(vocab)), served.eos_token_ids);
  MeasureEach("synthetic", served, load, answers, rounds);
  return 0;
}

}  // namespace
}  // namespace ovq::bench

int main(int argc, char** argv) { return ovq::bench::Main(argc, argv); }
