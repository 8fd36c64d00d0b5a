// Costs of sessions apart from their tokens: bytes and time of a fork, a snapshot, a cached prompt,
// a rewind, a session file and a delta, and of a swap-in from disk, compared with prefilling the
// prompt again; and how much token history, checkpoints and a session folder slow down prefill and
// decode.
// Measured through the engine, on random weights of the paper's shapes.
//
//   bench_sessions [--shape 77m] [--mixer ovq_attention] [--threads 2] [--tokens 32768]
//                  [--centroids 1024,2048,16384] [--passes 7]   (0: turns alone)
//                  [--pairs 7]   (of turns with and without)
//                  [--folder /tmp/ovq-bench-sessions]   (created, and removed at the end)
//                  [--store redis://HOST:PORT/DB]   (instead of the folder; an empty database)
#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <future>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>

#include "model/language_model.h"
#include "server/disk/session_folder.h"
#include "server/engine/common/prefix_cache.h"
#include "server/engine/common/session_image.h"
#include "server/engine/engine.h"
#include "server/redis/redis_store.h"
#include "tests/bench/bench_util.h"
#include "tests/bench/random_model.h"
#include "tests/server/engine/served_model.h"

namespace ovq::bench {
namespace {

constexpr int64_t kAnswer = 256, kPart = 2048;  // tokens of a timed turn
constexpr int64_t kDelta = 64;                  // tokens of a delta

std::unique_ptr<model::LanguageModel> Load(const std::string& shape, const std::string& mixer,
                                           const model::ModelOptions& options,
                                           kernels::DeviceContext& context) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("ovq-bench-" + shape + "-" + mixer);
  if (!std::filesystem::exists(folder / "model.safetensors")) {
    WriteRandomModel(folder, PaperShape(shape), mixer);
  }
  auto model = model::LanguageModel::Load(folder.string(), options, context);
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

// Counts what a session store did.
class DiskLog {
 public:
  std::function<void(const store::StoreReport&)> callback() {
    return [this](const store::StoreReport& report) {
      Check(report.status.ok(), "the store takes it");
      std::lock_guard lock(mutex_);
      reports_.push_back(report);
      changed_.notify_all();
    };
  }
  size_t Count(const std::string& kind) {
    std::lock_guard lock(mutex_);
    return Of(kind).size();
  }
  store::StoreReport Await(const std::string& kind, size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return Of(kind).size() >= count; });
    return Of(kind)[count - 1];
  }

 private:
  std::vector<store::StoreReport> Of(const std::string& kind) const {
    std::vector<store::StoreReport> reports;
    for (const store::StoreReport& report : reports_) {
      if (report.kind == kind) reports.push_back(report);
    }
    return reports;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<store::StoreReport> reports_;
};

// An engine and the calls to it.
class Host {
 public:
  Host(const model::LanguageModel& model, int threads, engine::EngineOptions options)
      : engine_thread_(engine::test::Served(model), std::move(options),
                       ValueOrExit(kernels::DeviceContext::Make(kernels::Device::kCpu, threads)),
                       Events()) {}

  engine::Engine* operator->() { return &engine_thread_.engine(); }

  engine::SessionInfo Create(int32_t cap, std::vector<int32_t> prompt, bool keep_tokens,
                             bool cacheable = false) {
    engine::SessionOptions options;
    options.slot_cap = cap;
    options.cacheable = cacheable ? std::ssize(prompt) : 0;
    options.prompt = std::move(prompt);
    options.keep_tokens = keep_tokens;
    Answer<engine::SessionInfo> answer;
    (*this)->sessions().Create(std::move(options), answer.callback());
    return answer.Get();
  }
  std::string Import(engine::SessionImage image) {
    Answer<engine::SessionInfo> answer;
    (*this)->sessions().Import(std::move(image), {}, answer.callback());
    return answer.Get().id;
  }
  std::string Fork(const std::string& id) {
    Answer<std::vector<engine::SessionInfo>> answer;
    (*this)->sessions().Fork({.session_id = id}, answer.callback());
    return answer.Get().front().id;
  }
  int64_t Rewind(const std::string& id, int64_t position) {
    Answer<engine::RewindResult> answer;
    (*this)->sessions().Rewind({.session_id = id, .position = static_cast<uint64_t>(position)},
                               nullptr, answer.callback());
    return answer.Get().replay_tokens;
  }
  void Say(const std::string& id, std::vector<int32_t> prompt, int64_t n_answer) {
    engine::GenerateRequest request;
    request.session_id = id;
    request.prompt = std::move(prompt);
    request.stop.max_tokens = n_answer;
    request.stop.ignore_eos = true;
    const auto stream = std::make_shared<engine::TokenStream>(1 << 20);
    std::promise<void> over;
    bool told = false;
    stream->SetListener([&] {
      while (std::optional<engine::StreamEvent> event = stream->TryPop()) {
      }
      if (stream->closed() && !std::exchange(told, true)) over.set_value();
    });
    Check((*this)->Submit(std::move(request), stream).ok(), "a turn");
    over.get_future().wait();
    stream->SetListener(nullptr);
    Check(stream->status().ok(), "a turn ends well");
  }
  void ReadState(const std::string& id) {
    Check((*this)->sessions().Export(id, "").ok(), "an idle session's state");
  }
  void Delete(const std::string& id) {
    Check((*this)->sessions().Delete(id, "").ok(), "a session ends");
  }
  engine::SessionReport last_swap_in() {
    std::lock_guard lock(mutex_);
    return last_swap_in_;
  }

 private:
  engine::EngineEvents Events() {
    engine::EngineEvents events;
    events.session_event = [this](const engine::SessionReport& report) {
      std::lock_guard lock(mutex_);
      if (std::string_view(report.event) == "wake") last_swap_in_ = report;
    };
    return events;
  }

  std::mutex mutex_;
  engine::SessionReport last_swap_in_ = {};
  engine::EngineThread engine_thread_;
};

class Bench {
 public:
  // redis: the URL of a store in Redis; empty: the store is the folder.
  Bench(const model::LanguageModel& model, int threads, int passes, int pairs, std::string folder,
        std::string redis)
      : model_(model),
        threads_(threads),
        passes_(passes),
        pairs_(pairs),
        folder_(std::move(folder)),
        redis_(std::move(redis)) {}

  void Run(int32_t cap, int64_t n_tokens) {
    Host host(model_, threads_, Options());
    if (passes_ > 0) {
      const engine::SessionImage image = Once(host, cap, n_tokens);
      OnDisk(cap, image);
    }
    Turns(cap, host);
  }

 private:
  struct Side {
    Host& host;
    std::string id;  // the session that the others are forks of
  };

  // Times every operation on a session that has prefilled its prompt; returns its file.
  engine::SessionImage Once(Host& host, int32_t cap, int64_t n_tokens) {
    const double begin = Seconds();
    const engine::SessionInfo made = host.Create(cap, Tokens(n_tokens), true);
    read_ = Seconds() - begin;
    host.Say(made.id, {}, kAnswer);
    const engine::SessionInfo info = *host->sessions().Get(made.id, "");
    std::printf(
        "%lld tokens, N = %d: %zu bytes of state, %zu of copies, %zu of tokens; read in %.2f s\n",
        static_cast<long long>(info.position), cap, info.state_bytes,
        host->Stats().checkpoint_bytes, host->Stats().token_log_bytes, read_);
    InMemory(host, info, n_tokens);
    AsFiles(host, info.id);
    engine::SessionImage image = *host->sessions().Export(info.id, "");
    host.Delete(info.id);
    return image;
  }

  static engine::EngineOptions Options() {
    engine::EngineOptions options;
    options.state_memory_bytes = size_t{8} << 30;
    options.checkpoint_memory_bytes = options.prefix_memory_bytes = size_t{1} << 30;
    options.seed = 1;
    options.trust_session_files = true;
    return options;
  }
  std::vector<int32_t> Tokens(int64_t n) {
    std::vector<int32_t> tokens(static_cast<size_t>(n));
    for (int32_t& token : tokens) {
      token = static_cast<int32_t>(random_() % static_cast<uint64_t>(model_.config().vocab_size));
    }
    return tokens;
  }
  // replayed, bytes: -1 if there is nothing to report.
  void Print(const char* what, std::vector<double> seconds, int64_t replayed = -1,
             int64_t bytes = -1) const {
    const double median = Median(std::move(seconds));
    std::printf("  %-34s %10.2f ms   reading takes %6.0f times as long", what, 1e3 * median,
                read_ / median);
    if (replayed >= 0) std::printf("   (%lld tokens again)", static_cast<long long>(replayed));
    if (bytes >= 0) std::printf("   (%lld bytes)", static_cast<long long>(bytes));
    std::printf("\n");
  }

  void InMemory(Host& host, const engine::SessionInfo& info, int64_t n_tokens) {
    std::vector<double> fork, snapshot, turn, inside, half, prefix;
    // All tokens but the last are cached; the last one has to be computed.
    const std::vector<int32_t> prompt = Tokens(n_tokens + 1);
    const auto hits = [&host] {
      const auto by_kind = host->Stats().prefixes.hits;
      return std::accumulate(by_kind.begin(), by_kind.end(), int64_t{0});
    };
    const int64_t hits_before = hits();
    host.Delete(host.Create(info.slot_cap, prompt, true, true).id);  // leaves a copy in the prefix
                                                                     // cache
    int64_t of_turn = 0, of_inside = 0, of_half = 0;
    for (int pass = 0; pass < passes_; ++pass) {
      double before = Seconds();
      const std::string copy = host.Fork(info.id);
      fork.push_back(Seconds() - before);
      before = Seconds();
      host.ReadState(copy);
      snapshot.push_back(Seconds() - before);
      before = Seconds();
      of_inside = host.Rewind(copy, info.position - kAnswer / 2);
      inside.push_back(Seconds() - before);
      before = Seconds();
      of_turn = host.Rewind(copy, info.position - kAnswer);
      turn.push_back(Seconds() - before);
      before = Seconds();
      of_half = host.Rewind(copy, std::max<int64_t>(n_tokens - 1000, 0));
      half.push_back(Seconds() - before);
      host.Delete(copy);
      before = Seconds();
      const engine::SessionInfo hit = host.Create(info.slot_cap, prompt, true, true);
      prefix.push_back(Seconds() - before);
      host.Delete(hit.id);
    }
    Print("fork", fork);
    Print("the prompt from the prefix cache", prefix);
    Check(hits() == hits_before + passes_, "every pass was a hit");
    Print("snapshot into the host's memory", snapshot);
    Print("back by a turn's answer", turn, of_turn);
    Print("back by half of that", inside, of_inside);
    Print("back by 1,000 tokens of the prompt", half, of_half);
  }

  // Times exports; the file's bytes are built and dropped.
  void AsFiles(Host& host, const std::string& id) {
    std::vector<double> whole, delta;
    size_t whole_bytes = 0, delta_bytes = 0;
    for (int pass = 0; pass < passes_; ++pass) {
      const std::string copy = host.Fork(id);
      double before = Seconds();
      engine::SessionImage image = *host->sessions().Export(copy, "");
      const engine::SessionBase since = engine::MakeSessionBase(*image.tokens);
      whole_bytes = engine::EncodeSession(std::move(image)).bytes();
      whole.push_back(Seconds() - before);
      host.Say(copy, {}, kDelta);
      before = Seconds();
      delta_bytes = engine::EncodeDelta(*host->sessions().Export(copy, "", since), since).bytes();
      delta.push_back(Seconds() - before);
      host.Delete(copy);
    }
    Print("export", whole, -1, static_cast<int64_t>(whole_bytes));
    Print("delta after 64 tokens", delta, -1, static_cast<int64_t>(delta_bytes));
  }

  std::unique_ptr<store::SessionStore> OpenStore(DiskLog& log) const {
    if (redis_.empty()) {
      Check(!std::filesystem::exists(folder_), "--folder is a new one");
      auto folder = disk::SessionFolder::Open({.path = folder_}, log.callback());
      Check(folder.ok(), "a folder for sessions");
      return *std::move(folder);
    }
    const absl::StatusOr<redis::RedisAddress> address = redis::ParseRedisUrl(redis_);
    Check(address.ok(), "--store is a URL of Redis");
    auto store = redis::RedisStore::Open({.address = *address}, log.callback());
    Check(store.ok(), "--store is there");
    return *std::move(store);
  }
  engine::EngineOptions WithStore(DiskLog& log) const {
    engine::EngineOptions options = Options();
    std::unique_ptr<store::SessionStore> store = OpenStore(log);
    const absl::StatusOr<store::RecoveredSessions> found = store->Recover();
    Check(found.ok() && found->sessions.empty(), "a store without sessions");
    options.session_store = std::move(store);
    return options;
  }

  // A server with a store and memory for one session: using one session swaps the other out.
  void OnDisk(int32_t cap, const engine::SessionImage& image) {
    DiskLog log;
    engine::EngineOptions options = WithStore(log);
    options.overcommit = true;
    options.state_memory_bytes = model_.layout().bytes_cap(cap);
    {
      Host host(model_, threads_, std::move(options));
      const std::string id = host.Import(image), other = host.Create(cap, {}, true).id;
      std::vector<double> snapshot, wake, append;
      uint64_t bytes = 0;
      for (int pass = 0; pass < passes_; ++pass) {
        const size_t entries = log.Count("append");
        host.Say(id, Tokens(1), 0);  // the snapshot is now outdated
        append.push_back(absl::ToDoubleSeconds(log.Await("append", entries + 1).duration));
        const size_t written = log.Count("snapshot");
        host.ReadState(other);
        const store::StoreReport report = log.Await("snapshot", written + 1);
        snapshot.push_back(absl::ToDoubleSeconds(report.duration));
        bytes = report.bytes;
        host.ReadState(id);
        wake.push_back(absl::ToDoubleSeconds(host.last_swap_in().duration));
      }
      Print("a turn's entry into the store", append);
      Print("snapshot into the store", snapshot, -1, static_cast<int64_t>(bytes));
      Print("wake from there", wake, host.last_swap_in().replayed);
      host.Delete(id);
      host.Delete(other);
    }
    std::filesystem::remove_all(folder_);
  }

  void Turns(int32_t cap, Host& host) {
    const std::vector<int32_t> prompt = Tokens(4 * kPart);
    const std::string bare = host.Create(cap, prompt, false).id,
                      kept = host.Create(cap, prompt, true).id;
    Compare("nothing of the kind", {host, bare}, {host, bare});
    Compare("tokens and checkpoints", {host, kept}, {host, bare});
    host.Delete(bare);
    DiskLog log;
    {
      Host durable(model_, threads_, WithStore(log));
      const std::string id = durable.Create(cap, prompt, true).id;
      const size_t appends = log.Count("append"), snapshots = log.Count("snapshot");
      Compare("a session store", {durable, id}, {host, kept});
      std::printf("  (%zu journal entries in %d turns, %zu snapshots)\n",
                  log.Count("append") - appends, 2 * pairs_, log.Count("snapshot") - snapshots);
      durable.Delete(id);
    }
    host.Delete(kept);
    std::filesystem::remove_all(folder_);
  }

  // Compares turns of two sessions of equal length side by side; each goes first in every second
  // pair. Each pair uses new forks: of two sessions one can be faster by up to a tenth for its
  // whole life, depending on where the system placed its state.
  void Compare(const char* what, const Side& with, const Side& without) {
    std::vector<double> reading, decoding;
    const auto time = [](Host& host, const std::string& id, const std::vector<int32_t>& prompt,
                         int64_t n_answer) {
      const double before = Seconds();
      host.Say(id, prompt, n_answer);
      return Seconds() - before;
    };
    for (int pair = 0; pair < pairs_; ++pair) {
      const bool swapped = pair % 2 == 1;
      const Side &first = swapped ? without : with, &second = swapped ? with : without;
      const std::string one = first.host.Fork(first.id), two = second.host.Fork(second.id);
      const auto ratio = [&](const std::vector<int32_t>& prompt, int64_t n_answer) {
        const double before = time(first.host, one, prompt, n_answer),
                     after = time(second.host, two, prompt, n_answer);
        return swapped ? after / before : before / after;
      };
      reading.push_back(ratio(Tokens(kPart), 0));
      decoding.push_back(ratio({}, kAnswer));
      first.host.Delete(one);
      second.host.Delete(two);
    }
    std::printf("  with %s, turns take, of the time without (medians of %d pairs):\n", what,
                pairs_);
    PrintRatios("tokens read", kPart, reading);
    PrintRatios("drawn", kAnswer, decoding);
  }
  static void PrintRatios(const char* what, int64_t n, std::vector<double> ratios) {
    std::ranges::sort(ratios);
    const size_t quarter = ratios.size() / 4;
    std::printf("    %.3f (%lld %s; half of the pairs %.3f to %.3f, all %.3f to %.3f)\n",
                Median(ratios), static_cast<long long>(n), what, ratios[quarter],
                ratios[ratios.size() - 1 - quarter], ratios.front(), ratios.back());
  }

  const model::LanguageModel& model_;
  const int threads_, passes_, pairs_;
  const std::string folder_, redis_;
  std::mt19937 random_{3};
  double read_ = 0;  // s, of the prompt's prefill
};

int Main(int argc, char** argv) {
  CheckFlags(argc, argv,
             {"--shape", "--mixer", "--threads", "--tokens", "--centroids", "--passes", "--pairs",
              "--folder", "--store"});
  const int threads = std::atoi(FlagValue(argc, argv, "--threads", "2"));
  const std::vector<int64_t> caps =
      Numbers(FlagValue(argc, argv, "--centroids", "1024,2048,16384"));
  const int64_t tokens = std::atoll(FlagValue(argc, argv, "--tokens", "32768"));
  const int passes = std::atoi(FlagValue(argc, argv, "--passes", "7"));
  const int pairs = std::atoi(FlagValue(argc, argv, "--pairs", "7"));
  const std::string folder = FlagValue(argc, argv, "--folder", "/tmp/ovq-bench-sessions");
  const auto context = ValueOrExit(kernels::DeviceContext::Make(kernels::Device::kCpu, threads));
  model::ModelOptions options;
  options.state_dtype = kernels::DType::kBF16;
  const std::unique_ptr<model::LanguageModel> model =
      Load(FlagValue(argc, argv, "--shape", "77m"),
           FlagValue(argc, argv, "--mixer", "ovq_attention"), options, *context);
  Bench bench(*model, threads, passes, pairs, folder, FlagValue(argc, argv, "--store", ""));
  for (const int64_t cap : caps) bench.Run(static_cast<int32_t>(cap), tokens);
  return 0;
}

}  // namespace
}  // namespace ovq::bench

int main(int argc, char** argv) { return ovq::bench::Main(argc, argv); }
