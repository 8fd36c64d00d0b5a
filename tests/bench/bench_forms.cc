// Times a token of a constrained answer beside one of a free answer, through the engine, on one
// core, in CPU time.
//
//   bench_forms [--model models/python-bytes] [--vocab 150000] [--answers 1,8] [--tokens 256]
//               [--rounds 9]
//
// Two models: a folder's with its tokenizer, and a small one of random weights whose vocabulary is
// synthetic. A round has an answer of --tokens tokens (or so many at once) without a form and one
// in each of some forms that never end, each in an engine of its own: so masks are made in the
// round, as for a form that is new to a server. The engines take turns of some iterations, so that
// what else the machine does slows all of them alike. Tokens without a choice are drawn like
// others. A sample is the time of an engine's thread from one token of each answer to the next;
// printed are medians over the rounds, of their percentiles and of what these are beside the free
// answer's.
#include <time.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/language_model.h"
#include "model/tokenizer.h"
#include "server/engine/engine.h"
#include "tests/bench/bench_util.h"
#include "tests/bench/grammars.h"
#include "tests/bench/random_model.h"
#include "tests/bench/synthetic_vocabulary.h"
#include "tests/server/engine/served_model.h"

namespace ovq::bench {
namespace {

using constraint::Source;
using Constraint = std::shared_ptr<const engine::AnswerConstraint>;

struct Form {
  const char* name;
  std::string grammar;  // empty: none
};
const Form kForms[] = {
    {"free", ""},
    {"JSON objects", std::string("root ::= (object \"\\n\")+") + kObjectRules},
    {"records of counted strings", std::string("root ::= (record \"\\n\")+") + kRecordRules},
    {"text without a marker", std::string("root ::= text") + kTextRules},
};
constexpr size_t kCount = std::size(kForms);

Constraint Compile(const std::string& grammar) {
  if (grammar.empty()) return nullptr;
  const engine::AnswerForm form =
      engine::AnswerForm::Given({.kind = Source::Kind::kGrammar, .text = grammar});
  auto made = engine::AnswerConstraint::Make(form, {}, std::make_shared<ByteBudget>(1 << 26), "");
  Check(made.ok(), "a form of this program compiles");
  return *made;
}

// Waits for the end of a call's stream, and drops what comes. An error ends the program, because
// engines wait for one another.
class Reader {
 public:
  Reader() : stream_(std::make_shared<engine::TokenStream>(1 << 20)) {
    stream_->SetListener([this] {
      while (stream_->TryPop()) {
      }
      if (!stream_->closed() || std::exchange(told_, true)) return;
      if (!stream_->status().ok()) {
        std::fprintf(stderr, "%s\n", std::string(stream_->status().message()).c_str());
        std::quick_exit(1);
      }
      over_.set_value();
    });
  }
  ~Reader() { stream_->SetListener(nullptr); }
  const std::shared_ptr<engine::TokenStream>& stream() { return stream_; }
  void Wait() { over_.get_future().wait(); }

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

// Lets one of kCount engines run at a time, once all have begun.
class Turns {
 public:
  // The calling thread has turns from now on; returns when it has the first.
  void Begin(size_t engine) {
    std::unique_lock lock(mutex_);
    runs_[engine] = true;
    if (++n_begun_ == kCount) Next(kCount - 1);
    Wait(lock, engine);
  }
  // Lets the others have a turn each.
  void Pass(size_t engine) {
    std::unique_lock lock(mutex_);
    Next(engine);
    Wait(lock, engine);
  }
  void End(size_t engine) {
    std::unique_lock lock(mutex_);
    runs_[engine] = false;
    Next(engine);
  }

 private:
  void Next(size_t engine) {
    for (size_t i = 1; i <= kCount; ++i) {
      now_ = (engine + i) % kCount;
      if (runs_[now_]) break;
    }
    changed_.notify_all();
  }
  void Wait(std::unique_lock<std::mutex>& lock, size_t engine) {
    changed_.wait(lock, [&] { return now_ == engine; });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool runs_[kCount] = {};
  size_t n_begun_ = 0, now_ = kCount;
};

// An engine with a call, which notes the times of its tokens but for the first.
class TimedEngine {
 public:
  TimedEngine(const engine::EngineModel& model, size_t form, Turns& turns)
      : form_(form), turns_(turns) {
    engine::EngineOptions options;
    options.seed = 1;
    options.force_tokens = false;
    engine::EngineEvents events;  // on the engine's thread
    events.first_token = [this](absl::Duration) {
      turns_.Begin(form_);
      before_ = Microseconds();
    };
    events.step = [this](const engine::IterationReport& report) { Note(report); };
    host_.emplace(model, std::move(options),
                  ValueOrExit(kernels::DeviceContext::Make(kernels::Device::kCpu, /*n_threads=*/1)),
                  std::move(events));
  }
  void Submit(const Load& load, const Constraint& constraint, uint64_t seed) {
    n_times_ = static_cast<size_t>(load.tokens - 1);
    engine::GenerateRequest request;
    request.prompt = {1, 2, 3, 4};
    request.sampling.seed = seed;
    request.stop.max_tokens = load.tokens;
    request.stop.ignore_eos = true;
    request.constraint = constraint;
    request.n = load.answers;
    Check(host_->engine().Submit(std::move(request), reader_.stream()).ok(),
          "the engine accepts the call");
  }
  // Waits for the call's end; the times in microseconds, ascending.
  std::vector<double> Times() {
    reader_.Wait();
    host_.reset();
    Check(times_.size() == n_times_, "each iteration has a token of each answer");
    std::ranges::sort(times_);
    return std::move(times_);
  }

 private:
  static constexpr size_t kTurn = 16;  // iterations

  void Note(const engine::IterationReport& report) {
    const double now = Microseconds();
    if (report.decode_tokens > 0) {
      times_.push_back(now - before_);
      if (times_.size() == n_times_) {
        turns_.End(form_);
      } else if (times_.size() % kTurn == 0) {
        turns_.Pass(form_);
      }
    }
    before_ = Microseconds();
  }

  const size_t form_;
  Turns& turns_;
  Reader reader_;
  size_t n_times_ = 0;
  double before_ = 0;
  std::vector<double> times_;
  std::optional<engine::EngineThread> host_;
};

// Percentiles of the times of a round.
struct Percentiles {
  explicit Percentiles(const std::vector<double>& times)
      : p50(At(times, 0.5)), p99(At(times, 0.99)) {}
  static double At(const std::vector<double>& sorted, double share) {
    return sorted[static_cast<size_t>(share * static_cast<double>(sorted.size() - 1))];
  }
  double p50, p99;
};

void Measure(const engine::EngineModel& model, const Load& load, int rounds) {
  Constraint constraints[kCount];
  for (size_t i = 0; i < kCount; ++i) constraints[i] = Compile(kForms[i].grammar);
  std::vector<double> p50[kCount], p99[kCount], parts[kCount], more[kCount];
  for (int round = 0; round < rounds; ++round) {
    Turns turns;
    std::vector<std::unique_ptr<TimedEngine>> engines;
    for (size_t i = 0; i < kCount; ++i) {
      engines.push_back(std::make_unique<TimedEngine>(model, i, turns));
    }
    for (size_t i = 0; i < kCount; ++i) {
      engines[i]->Submit(load, constraints[i], static_cast<uint64_t>(round) + 1);
    }
    std::optional<Percentiles> free;
    for (size_t i = 0; i < kCount; ++i) {
      const Percentiles times(engines[i]->Times());
      if (i == 0) free = times;
      p50[i].push_back(times.p50);
      p99[i].push_back(times.p99);
      parts[i].push_back(times.p50 / free->p50);
      more[i].push_back((times.p99 - free->p99) / 1000);
    }
  }
  std::printf("  %d at once, %lld tokens each, %d rounds\n", load.answers,
              static_cast<long long>(load.tokens), rounds);
  for (size_t i = 0; i < kCount; ++i) {
    std::printf("    %-28s p50 %8.1f us (%.3f of free)   p99 %8.1f us (%+.2f ms)\n", kForms[i].name,
                Median(p50[i]), Median(parts[i]), Median(p99[i]), Median(more[i]));
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
  const auto context =
      ValueOrExit(kernels::DeviceContext::Make(kernels::Device::kCpu, /*n_threads=*/1));
  {
    const std::unique_ptr<model::LanguageModel> model = LoadModel(folder, *context);
    const auto tokenizer = ValueOrExit(model::Tokenizer::Load(folder, model->config()));
    engine::EngineModel served = engine::test::Served(*model);
    served.eos_token_ids = model->config().eos_token_ids;
    served.tokenizer = tokenizer.get();
    served.vocabulary = served.MakeVocabulary();
    if (served.vocabulary == nullptr) {
      std::fprintf(stderr, "error: --model: expected a folder that has a tokenizer with texts\n");
      return 2;
    }
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
