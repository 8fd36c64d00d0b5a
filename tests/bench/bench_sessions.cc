// What a session costs beside its tokens: bytes and time of a fork, of a snapshot, of a prompt that
// is cached and of going back, laid beside reading the prompt again; and what keeping tokens and
// checkpoints takes off reading and decoding. Through the engine, on random weights of the paper's
// shapes.
//
//   bench_sessions [--shape 77m] [--mixer ovq_attention] [--threads 2] [--tokens 32768]
//                  [--centroids 1024,2048,16384] [--passes 7]
#include <cstdio>
#include <filesystem>
#include <future>
#include <memory>
#include <random>

#include "model/language_model.h"
#include "server/engine/engine.h"
#include "server/engine/prefix_cache.h"
#include "tests/bench/bench_util.h"
#include "tests/bench/random_model.h"
#include "tests/server/engine/served_model.h"

namespace ovq::bench {
namespace {

constexpr int64_t kAnswer = 256, kPart = 2048;  // tokens of a turn that is timed

std::unique_ptr<LanguageModel> Load(const std::string& shape, const std::string& mixer,
                                    const ModelOptions& options, DeviceContext& context) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("ovq-bench-" + shape + "-" + mixer);
  if (!std::filesystem::exists(folder / "model.safetensors")) {
    WriteRandomModel(folder, PaperShape(shape), mixer);
  }
  auto model = LanguageModel::Load(folder.string(), options, context);
  Check(model.ok(), "the model that was written just now loads");
  return *std::move(model);
}

template <class Result>
class Answer {
 public:
  std::function<void(absl::StatusOr<Result>)> callback() {
    return [this](absl::StatusOr<Result> result) { promise_.set_value(std::move(result)); };
  }
  Result Get() {
    absl::StatusOr<Result> result = promise_.get_future().get();
    if (result.ok()) return *std::move(result);
    std::fprintf(stderr, "%s\n", std::string(result.status().message()).c_str());
    std::exit(1);
  }

 private:
  std::promise<absl::StatusOr<Result>> promise_;
};

class Bench {
 public:
  Bench(const LanguageModel& model, std::unique_ptr<DeviceContext> context)
      : vocab_size_(model.config().vocab_size),
        engine_thread_(test::Served(model), Options(), std::move(context), {}),
        engine_(engine_thread_.engine()) {}

  void Run(int32_t cap, int64_t n_tokens, int passes) {
    const double begin = Seconds();
    const SessionInfo made = Create(cap, Tokens(n_tokens), true);
    const double read = Seconds() - begin;
    Say(made.id, {}, kAnswer);
    const SessionInfo info = *engine_.GetSession(made.id, "");
    std::printf(
        "%lld tokens, N = %d: %zu bytes of state, %zu of copies, %zu of tokens; read in %.2f s\n",
        static_cast<long long>(info.position), cap, info.state_bytes,
        engine_.Stats().checkpoint_bytes, engine_.Stats().token_log_bytes, read);
    const auto print = [read](const char* what, std::vector<double> seconds, int64_t replayed) {
      const double median = Median(std::move(seconds));
      std::printf("  %-34s %10.2f ms   reading takes %6.0f times as long", what, 1e3 * median,
                  read / median);
      if (replayed >= 0) std::printf("   (%lld tokens again)", static_cast<long long>(replayed));
      std::printf("\n");
    };
    std::vector<double> fork, snapshot, turn, inside, half, prefix;
    // All but its last token is cached, and that one waits.
    const std::vector<int32_t> prompt =
        Tokens(n_tokens / kPrefixBlockTokens * kPrefixBlockTokens + 1);
    const int64_t hits = engine_.Stats().prefixes.hits;
    Check(engine_.DeleteSession(Create(cap, prompt, true, true).id, "").ok(), "it leaves a copy");
    int64_t of_turn = 0, of_inside = 0, of_half = 0;
    for (int pass = 0; pass < passes; ++pass) {
      double before = Seconds();
      const std::string copy = Fork(info.id);
      fork.push_back(Seconds() - before);
      before = Seconds();
      Check(engine_.CopyState(copy, "").ok(), "an idle session's state");
      snapshot.push_back(Seconds() - before);
      before = Seconds();
      of_inside = Rewind(copy, info.position - kAnswer / 2);
      inside.push_back(Seconds() - before);
      before = Seconds();
      of_turn = Rewind(copy, info.position - kAnswer);
      turn.push_back(Seconds() - before);
      before = Seconds();
      of_half = Rewind(copy, n_tokens - 1000);
      half.push_back(Seconds() - before);
      Check(engine_.DeleteSession(copy, "").ok(), "a copy ends");
      before = Seconds();
      const SessionInfo hit = Create(cap, prompt, true, true);
      prefix.push_back(Seconds() - before);
      Check(engine_.DeleteSession(hit.id, "").ok(), "it ends");
    }
    print("fork", fork, -1);
    print("the prompt from the prefix cache", prefix, -1);
    Check(engine_.Stats().prefixes.hits == hits + passes, "every pass was a hit");
    print("snapshot into the host's memory", snapshot, -1);
    print("back by a turn's answer", turn, of_turn);
    print("back by half of that", inside, of_inside);
    print("back by 1,000 tokens of the prompt", half, of_half);
    Check(engine_.DeleteSession(info.id, "").ok(), "it ends");
    Compare(cap, passes);
  }

 private:
  static EngineOptions Options() {
    EngineOptions options;
    options.state_memory_bytes = size_t{8} << 30;
    options.checkpoint_memory_bytes = options.prefix_memory_bytes = size_t{1} << 30;
    options.seed = 1;
    return options;
  }
  std::vector<int32_t> Tokens(int64_t n) {
    std::vector<int32_t> tokens(static_cast<size_t>(n));
    for (int32_t& token : tokens) token = static_cast<int32_t>(random_() % vocab_size_);
    return tokens;
  }
  SessionInfo Create(int32_t cap, std::vector<int32_t> prompt, bool keep_tokens,
                     bool cacheable = false) {
    SessionOptions options;
    options.slot_cap = cap;
    options.cacheable = cacheable ? std::ssize(prompt) : 0;
    options.prompt = std::move(prompt);
    options.keep_tokens = keep_tokens;
    Answer<SessionInfo> answer;
    engine_.CreateSession(std::move(options), answer.callback());
    return answer.Get();
  }
  std::string Fork(const std::string& id) {
    Answer<std::vector<SessionInfo>> answer;
    engine_.ForkSession({.session_id = id}, answer.callback());
    return answer.Get().front().id;
  }
  int64_t Rewind(const std::string& id, int64_t position) {
    Answer<RewindResult> answer;
    engine_.RewindSession({.session_id = id, .position = static_cast<uint64_t>(position)}, nullptr,
                          answer.callback());
    return answer.Get().replay_tokens;
  }
  void Say(const std::string& id, std::vector<int32_t> prompt, int64_t n_answer) {
    GenerateRequest request;
    request.session_id = id;
    request.prompt = std::move(prompt);
    request.stop.max_tokens = n_answer;
    request.stop.ignore_eos = true;
    const auto stream = std::make_shared<TokenStream>(1 << 20);
    std::promise<void> over;
    bool told = false;
    stream->SetListener([&] {
      while (std::optional<StreamEvent> event = stream->TryPop()) {
      }
      if (stream->closed() && !std::exchange(told, true)) over.set_value();
    });
    Check(engine_.Submit(std::move(request), stream).ok(), "a turn");
    over.get_future().wait();
    stream->SetListener(nullptr);
    Check(stream->status().ok(), "a turn ends well");
  }

  // Turns of a session that keeps its tokens beside those of one that does not.
  void Compare(int32_t cap, int passes) {
    const SessionInfo kept = Create(cap, Tokens(4 * kPart), true),
                      bare = Create(cap, Tokens(4 * kPart), false);
    std::vector<double> reading, decoding;
    const auto time = [&](const std::string& id, std::vector<int32_t> prompt, int64_t n_answer) {
      const double before = Seconds();
      Say(id, std::move(prompt), n_answer);
      return Seconds() - before;
    };
    for (int pass = 0; pass < passes; ++pass) {
      const std::vector<int32_t> part = Tokens(kPart);
      const double with = time(kept.id, part, 0), without = time(bare.id, part, 0);
      reading.push_back(with / without);
      const double answer = time(kept.id, {}, kAnswer), same = time(bare.id, {}, kAnswer);
      decoding.push_back(answer / same);
    }
    std::printf(
        "  with tokens and checkpoints, turns take %.3f (%lld tokens read) and %.3f (%lld drawn) "
        "of the time without\n",
        Median(reading), static_cast<long long>(kPart), Median(decoding),
        static_cast<long long>(kAnswer));
    for (const SessionInfo& session : {kept, bare}) {
      Check(engine_.DeleteSession(session.id, "").ok(), "it ends");
    }
  }

  const int64_t vocab_size_;
  std::mt19937 random_{3};
  EngineThread engine_thread_;
  Engine& engine_;
};

int Main(int argc, char** argv) {
  CheckFlags(argc, argv,
             {"--shape", "--mixer", "--threads", "--tokens", "--centroids", "--passes"});
  const int threads = std::atoi(FlagValue(argc, argv, "--threads", "2"));
  const std::vector<int64_t> caps =
      Numbers(FlagValue(argc, argv, "--centroids", "1024,2048,16384"));
  const int64_t tokens = std::atoll(FlagValue(argc, argv, "--tokens", "32768"));
  const int passes = std::atoi(FlagValue(argc, argv, "--passes", "7"));
  auto context = *DeviceContext::Make(Device::kCpu, threads);
  ModelOptions options;
  options.state_dtype = DType::kBF16;
  const std::unique_ptr<LanguageModel> model =
      Load(FlagValue(argc, argv, "--shape", "77m"),
           FlagValue(argc, argv, "--mixer", "ovq_attention"), options, *context);
  Bench bench(*model, std::move(context));
  for (const int64_t cap : caps) bench.Run(static_cast<int32_t>(cap), tokens, passes);
  return 0;
}

}  // namespace
}  // namespace ovq::bench

int main(int argc, char** argv) { return ovq::bench::Main(argc, argv); }
