// Fuzzes imports of session files in an engine that trusts them. It exports files of its own
// sessions on small models of every mixer, signs some, changes numbers, bytes and heads, corrects
// the checksums, imports the files and continues the sessions that are accepted. A finding is a
// crash, a sanitizer report, a call that does not end, an accepted session that ends in an
// impossible state, or a signature that is accepted for a changed state.
//
//   import_fuzz [--seed N] [--runs N] [--seconds N] [--first N] [--model NAME]
//
// A finding names its run; --first RUN --runs 1 with the same seed repeats it alone.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "base/binary.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/flags.h"
#include "model/language_model.h"
#include "server/engine/common/session_image.h"
#include "server/engine/common/validate.h"
#include "server/engine/engine.h"
#include "tests/folders.h"
#include "tests/fuzz/mutate.h"
#include "tests/server/engine/served_model.h"

// Part of every sanitizer's runtime; null without one.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*)());
// Undefined behaviour ends the program at once, as a finding.
extern "C" const char* __ubsan_default_options() { return "halt_on_error=1:print_stacktrace=1"; }

namespace ovq::fuzz {
namespace {

constexpr unsigned kMostSeconds = 120;  // for one run

std::atomic<uint64_t> current_seed, current_run;

void PrintCurrentRun() {
  char text[96];
  const int n = std::snprintf(text, sizeof text, "import_fuzz: in --seed %llu --first %llu\n",
                              static_cast<unsigned long long>(current_seed),
                              static_cast<unsigned long long>(current_run));
  (void)!write(STDERR_FILENO, text, static_cast<size_t>(n));
}
void Die(int signal) {
  PrintCurrentRun();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

template <class T>
class Answer {
 public:
  std::function<void(T)> callback() {
    return [this](T value) { promise_.set_value(std::move(value)); };
  }
  T Get() { return promise_.get_future().get(); }

 private:
  std::promise<T> promise_;
};

std::unique_ptr<kernels::DeviceContext> MakeContext() {
  auto context = kernels::DeviceContext::Make(kernels::Device::kCpu, 1);
  Check(context.ok(), "one thread of the CPU");
  return *std::move(context);
}

struct Kind {
  const char* folder;  // in tests/golden
  kernels::DType state_dtype;
};
constexpr Kind kKinds[] = {{"native/sw-ovq", kernels::DType::kF32},
                           {"native/sw-ovq", kernels::DType::kBF16},
                           {"native/ovq-delta", kernels::DType::kF32},
                           {"native/sw-closest-pair", kernels::DType::kF32},
                           {"native/sw-closest-pair", kernels::DType::kBF16},
                           {"native/keydiff-shares", kernels::DType::kF32},
                           {"native/sw-vq", kernels::DType::kF32},
                           {"native/transformer-vq", kernels::DType::kF32},
                           {"native/sw-full", kernels::DType::kBF16},
                           {"native/gdn-ovq", kernels::DType::kF32},
                           {"native/mamba2-ovq", kernels::DType::kF32},
                           {"native/mesa-sw", kernels::DType::kF32},
                           {"native/sw-lattice", kernels::DType::kF32},
                           {"kvm/kvm-power-law", kernels::DType::kBF16},
                           {"kvm/gptalpha-nope-swa", kernels::DType::kF32},
                           {"kvm/bswa-sinks", kernels::DType::kF32},
                           {"kvm/post-tokenshift", kernels::DType::kF32},
                           {"native/sw-ovq", kernels::DType::kI8},
                           {"native/sw-closest-pair", kernels::DType::kI8},
                           {"native/sw-full", kernels::DType::kI8}};

// A model, an engine that trusts session files, and files of sessions on it.
class Subject {
 public:
  explicit Subject(const Kind& kind) : context_(MakeContext()) {
    model::ModelOptions options;
    options.state_dtype = kind.state_dtype;
    options.limits.max_unbounded_tokens = 1 << 13;
    auto model = model::LanguageModel::Load(GoldenFolder() + "/" + kind.folder, options, *context_);
    Check(model.ok(), std::string(model.status().message()).c_str());
    model_ = *std::move(model);
    engine::EngineOptions trusting;
    trusting.trust_session_files = true;
    trusting.seed = 1;
    trusting.max_slot_cap = 4096;
    engine_thread_ = std::make_unique<engine::EngineThread>(engine::test::Served(*model_), trusting,
                                                            MakeContext(), engine::EngineEvents());
    Random random(7);
    for (const int length : {0, 20, 150, 333, 640}) MakeImage(length, random);
  }

  struct Counts {
    int64_t runs = 0, unread = 0, with_signature = 0, refused = 0, taken = 0, tokens = 0;
  };
  void Run(Random& random, Counts& counts) {
    const engine::SessionImage& original =
        images_[static_cast<size_t>(random.Upto(std::ssize(images_) - 1))];
    engine::SessionImage image = original;
    const bool bytes = random.OneIn(8), signs = random.OneIn(2);
    if (!bytes) MutateImage(model_->layout(), vocab_size(), random, image);
    const engine::EncodedSession encoded = engine::EncodeSession(std::move(image));
    std::string file = encoded.head;
    if (signs) file.insert(file.size() - kSectionStartBytes, Signature(original));
    file += encoded.state + encoded.tail;
    if (signs) Seal(file);
    if (bytes) MutateFile(random, file);
    ++counts.runs;
    absl::StatusOr<engine::SessionImage> read = Read(random, file);
    if (!read.ok()) return ++counts.unread, void();
    if (read->state_signed) ++counts.with_signature;
    Check(!read->state_signed || IsStateOf(original, *read), "a signature is of one state alone");
    Answer<absl::StatusOr<engine::SessionInfo>> imported;
    engine().sessions().Import(*std::move(read), {}, imported.callback());
    const absl::StatusOr<engine::SessionInfo> session = imported.Get();
    if (!session.ok()) return ++counts.refused, void();
    ++counts.taken;
    for (int64_t turn = random.Upto(1); turn >= 0; --turn) {
      counts.tokens += Talk(random, session->id);
      if (!CheckStill(session->id)) break;
    }
    Check(engine().sessions().Delete(session->id, "").ok(), "a session that was taken can go");
  }

 private:
  // The section that signs the image.
  std::string Signature(const engine::SessionImage& image) const {
    const std::string head = engine::EncodeAroundState(image, &keys_).head;
    const size_t bytes = kSectionStartBytes + engine::FleetKeys::kSignatureBytes + kSectionEndBytes;
    return head.substr(head.size() - kSectionStartBytes - bytes, bytes);
  }
  // Whether both say that this state is what these tokens make.
  static bool IsStateOf(const engine::SessionImage& a, const engine::SessionImage& b) {
    const bool same = a.model_fingerprint == b.model_fingerprint &&
                      a.layout_fingerprint == b.layout_fingerprint &&
                      a.cache_policy == b.cache_policy && a.slot_cap == b.slot_cap &&
                      a.position == b.position && a.state == b.state &&
                      a.tokens.has_value() == b.tokens.has_value();
    return same && (!a.tokens || std::equal(a.tokens->begin(), a.tokens->begin() + a.position,
                                            b.tokens->begin()));
  }
  engine::Engine& engine() { return engine_thread_->engine(); }
  int64_t vocab_size() const { return model_->config().vocab_size; }
  std::vector<int32_t> Tokens(int64_t n, Random& random) {
    std::vector<int32_t> tokens;
    while (std::ssize(tokens) < n) {
      tokens.push_back(static_cast<int32_t>(random.Upto(vocab_size() - 1)));
    }
    return tokens;
  }

  void MakeImage(int length, Random& random) {
    engine::SessionOptions options;
    options.prompt = Tokens(length, random);
    options.keep_tokens = length % 2 == 0;
    if (model_->layout().has_slot_cap()) options.slot_cap = 16 + length % 50;
    Answer<absl::StatusOr<engine::SessionInfo>> made;
    engine().sessions().Create(std::move(options), made.callback());
    const absl::StatusOr<engine::SessionInfo> session = made.Get();
    Check(session.ok(), "a session opens");
    if (length > 0) Talk(random, session->id);
    images_.push_back(*engine().sessions().Export(session->id, ""));
  }

  absl::StatusOr<engine::SessionImage> Read(Random& random, const std::string& file) {
    engine::SessionReader reader(
        [this](const engine::SessionImage& head) { return engine().sessions().CheckImport(head); },
        /*digest=*/true, &keys_);
    for (size_t at = 0; at < file.size();) {
      const std::string part = file.substr(at, 1 + static_cast<size_t>(random.Upto(1 << 17)));
      const absl::Status status = reader.Add(part);
      if (!status.ok()) return status;
      at += part.size();
    }
    return reader.Finish();
  }

  // Number of tokens that the turn read and generated.
  int64_t Talk(Random& random, const std::string& id) {
    engine::GenerateRequest request;
    request.session_id = id;
    request.prompt = Tokens(1 + random.Upto(random.OneIn(3) ? 200 : 20), random);
    request.stop.max_tokens = 1 + random.Upto(12);
    request.sampling.seed = 1;
    int64_t tokens = std::ssize(request.prompt);
    auto stream = std::make_shared<engine::TokenStream>(256);
    const absl::Status status = engine().Submit(std::move(request), stream);
    Check(status.ok(), std::string(status.message()).c_str());
    while (!stream->closed()) {
      const std::optional<engine::StreamEvent> event = stream->TryPop();
      if (event && event->chunk) tokens += std::ssize(event->chunk->token_ids);
      if (!event) usleep(50);
    }
    return tokens;
  }

  // False if the session is quarantined: unbounded numbers can damage the output, after which the
  // session can only be deleted. That is no finding.
  bool CheckStill(const std::string& id) {
    const absl::StatusOr<engine::SessionImage> image = engine().sessions().Export(id, "");
    if (absl::IsDataLoss(image.status())) return false;
    Check(image.ok(), "a session that was taken can leave");
    const std::string what(engine::CheckSessionState(*image, model_->layout()).message());
    if (what.find("nan, expected") != std::string::npos ||
        what.find("inf, expected") != std::string::npos)
      return true;
    Check(what.empty(), what.c_str());
    return true;
  }

  std::unique_ptr<kernels::DeviceContext> context_;
  std::unique_ptr<model::LanguageModel> model_;
  std::unique_ptr<engine::EngineThread> engine_thread_;
  std::vector<engine::SessionImage> images_;
  const engine::FleetKeys keys_ = *engine::FleetKeys::Parse(std::string(64, '7'));
};

int Main(const std::vector<std::string>& args) {
  uint64_t seed = 1, first = 0, runs = 1000, seconds = 3600;
  std::string model;
  bool help = false;
  Flags flags;
  flags.Add("seed", "N", Number(seed, 0, int64_t{1} << 40), "of the campaign");
  flags.Add("runs", "N", Number(runs, 1, int64_t{1} << 40), "files, at most");
  flags.Add("seconds", "N", Number(seconds, 1, 1 << 20), "after which no run begins");
  flags.Add("first", "N", Number(first, 0, int64_t{1} << 40), "the first run");
  flags.Add("model", "NAME", Text(model, "a part of a folder's name"),
            "only models of tests/golden with this in their names", "all");
  flags.AddEnd(
      "help", [&] { help = true; }, "print this and end");
  const absl::Status status = flags.Read(args);
  if (!status.ok() || help) {
    std::fprintf(stderr, "%s\n%s", std::string(status.message()).c_str(), flags.Help().c_str());
    return help ? 0 : 2;
  }
  current_seed = seed;
  for (const int signal : {SIGABRT, SIGALRM}) std::signal(signal, Die);
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback(PrintCurrentRun);
  } else {
    for (const int signal : {SIGSEGV, SIGBUS, SIGFPE}) std::signal(signal, Die);
  }

  std::vector<std::unique_ptr<Subject>> subjects;
  for (const Kind& kind : kKinds) {
    if (std::string(kind.folder).find(model) == std::string::npos) continue;
    subjects.push_back(std::make_unique<Subject>(kind));
  }
  Subject::Counts counts;
  const SteadyTime begin = std::chrono::steady_clock::now();
  for (current_run = first; current_run < first + runs; ++current_run) {
    if (TimeBetween(begin, std::chrono::steady_clock::now()) > absl::Seconds(seconds)) break;
    alarm(kMostSeconds);
    Random random(seed * 1'000'003 + current_run);
    subjects[static_cast<size_t>(random.Upto(std::ssize(subjects) - 1))]->Run(random, counts);
  }
  alarm(0);
  std::printf(
      "%lld runs: %lld files refused by the reader, %lld read with a valid signature, %lld states "
      "refused, %lld taken, which went on for %lld tokens\n",
      static_cast<long long>(counts.runs), static_cast<long long>(counts.unread),
      static_cast<long long>(counts.with_signature), static_cast<long long>(counts.refused),
      static_cast<long long>(counts.taken), static_cast<long long>(counts.tokens));
  return 0;
}

}  // namespace
}  // namespace ovq::fuzz

int main(int argc, char** argv) { return ovq::fuzz::Main({argv + 1, argv + argc}); }
