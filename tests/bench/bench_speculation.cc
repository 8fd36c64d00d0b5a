// Gain and cost of --speculate ngram: tokens/s of an answer with and without it, in pairs of turns
// that follow one another, through the engine.
//
//   bench_speculation --text FILE [--model FOLDER | --shape 77m] [--threads 2] [--prompt 4096]
//                     [--answer 512] [--sessions 1,8] [--pairs 7]
//
// FILE is text that the model was not trained on; its bytes are the tokens. Kinds of answers:
//   text    the text that follows the prompt in FILE
//   copy    the prompt once more
//   noise   random bytes, which nothing predicts
//   greedy  the model's own answer, temperature 0
//   drawn   the model's own answer, temperature 1
// The first three are forced, whatever the model's logits are: drafts are accepted as often as in
// such a text, and every batch does the model's full work. The last two need --model. A kind whose
// tokens or states differ by one bit with and without speculation is not timed.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <random>
#include <thread>

#include "model/language_model.h"
#include "server/engine/engine.h"
#include "tests/bench/bench_util.h"
#include "tests/bench/random_model.h"
#include "tests/server/engine/copy_state.h"
#include "tests/server/engine/served_model.h"

namespace ovq::bench {
namespace {

std::unique_ptr<model::LanguageModel> Load(const std::string& named, const std::string& shape,
                                           const model::ModelOptions& options,
                                           kernels::DeviceContext& context) {
  std::filesystem::path folder = named;
  if (named.empty()) {
    folder = std::filesystem::temp_directory_path() / ("ovq-bench-" + shape + "-ovq_attention");
    if (!std::filesystem::exists(folder / "model.safetensors")) {
      WriteRandomModel(folder, PaperShape(shape), "ovq_attention");
    }
  }
  auto model = model::LanguageModel::Load(folder.string(), options, context);
  if (model.ok()) return *std::move(model);
  std::fprintf(stderr, "%s\n", std::string(model.status().message()).c_str());
  std::exit(1);
}

// The forced tokens of an answer, by position.
struct Script {
  std::vector<int32_t> tokens;
};

// The model, with logits that produce the script.
engine::EngineModel Scripted(const model::LanguageModel& model, const Script& script) {
  engine::EngineModel served = engine::test::Served(model);
  served.weight_bytes = static_cast<size_t>(model.weight_count().ReadBy(1));
  served.variants[0].forward = [&model, &script](const model::Batch& batch,
                                                 kernels::DeviceContext& context,
                                                 kernels::ScratchScope& scope) {
    const kernels::TensorView logits = model.Forward(batch, context, scope);
    int sequence = 0;
    for (size_t i = 0; i < batch.logits_indices.size() && !script.tokens.empty(); ++i) {
      const int32_t row = batch.logits_indices[i];
      while (row >= batch.token_begin[sequence + 1]) ++sequence;
      const auto next =
          static_cast<size_t>(batch.start_pos[sequence] + row - batch.token_begin[sequence] + 1);
      if (next >= script.tokens.size()) continue;
      logits.as<float>()[static_cast<int64_t>(i) * logits.shape[1] + script.tokens[next]] = 1e4f;
    }
    return logits;
  };
  return served;
}

struct Turn {
  std::vector<int32_t> tokens;
  std::vector<std::byte> state;
  double seconds = 0;  // from the first token to the last
  int64_t drafted = 0, accepted = 0;
};

class Host {
 public:
  Host(const model::LanguageModel& model, int threads)
      : engine_(Scripted(model, script_), engine::EngineOptions(),
                ValueOrExit(kernels::DeviceContext::Make(kernels::Device::kCpu, threads)),
                engine::EngineEvents()) {}

  // Runs the same turn in n new sessions at once.
  std::vector<Turn> Run(const std::vector<int32_t>& prompt, std::vector<int32_t> script,
                        engine::GenerateRequest request, int n) {
    script_.tokens = std::move(script);  // no batch is running here
    std::vector<std::string> ids;
    for (int i = 0; i < n; ++i) ids.push_back(Open(prompt));
    std::vector<std::shared_ptr<engine::TokenStream>> streams;
    for (const std::string& id : ids) {
      request.session_id = id;
      streams.push_back(std::make_shared<engine::TokenStream>(1 << 20));
      Check(engine_.engine().Submit(request, streams.back()).ok(), "a turn is taken");
    }
    std::vector<Turn> turns;
    for (const auto& stream : streams) turns.push_back(Read(*stream));
    for (int i = 0; i < n; ++i) {
      turns[static_cast<size_t>(i)].state =
          *engine::test::CopyState(engine_.engine(), ids[static_cast<size_t>(i)], "");
      Check(engine_.engine().sessions().Delete(ids[static_cast<size_t>(i)], "").ok(),
            "it is there");
    }
    return turns;
  }

 private:
  std::string Open(const std::vector<int32_t>& prompt) {
    std::promise<std::string> id;
    engine::SessionOptions options;
    options.prompt = prompt;
    engine_.engine().sessions().Create(options, [&](absl::StatusOr<engine::SessionInfo> session) {
      Check(session.ok(), "a session is opened");
      id.set_value(session->id);
    });
    return id.get_future().get();
  }
  static Turn Read(engine::TokenStream& stream) {
    Turn turn;
    while (!stream.closed()) {
      const std::optional<engine::StreamEvent> event = stream.TryPop();
      if (!event) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      if (event && event->chunk) {
        turn.tokens.insert(turn.tokens.end(), event->chunk->token_ids.begin(),
                           event->chunk->token_ids.end());
      }
      if (!event || !event->finished) continue;
      const engine::Usage& usage = event->finished->usage;
      turn.seconds = absl::ToDoubleSeconds(usage.decode_time);
      turn.drafted = usage.drafted_tokens;
      turn.accepted = usage.accepted_tokens;
    }
    Check(stream.status().ok(), "a turn ends well");
    return turn;
  }

  Script script_;
  engine::EngineThread engine_;
};

class Bench {
 public:
  Bench(Host& host, std::vector<int32_t> text, int prompt, int answer, int pairs)
      : host_(host), text_(std::move(text)), prompt_(prompt), answer_(answer), pairs_(pairs) {}

  void Time(const std::string& kind, int sessions) {
    std::vector<double> off, on, ratios;
    int64_t drafted = 0, accepted = 0;
    for (int pair = -1; pair < pairs_; ++pair) {  // pair -1 warms up and is compared
      std::vector<Turn> turns[2];
      for (const int way : pair % 2 == 0 ? std::array{0, 1} : std::array{1, 0}) {
        turns[way] = Run(kind, pair, sessions, way);
      }
      for (size_t i = 0; i < turns[0].size(); ++i) {
        if (turns[0][i].tokens == turns[1][i].tokens && turns[0][i].state == turns[1][i].state) {
          continue;
        }
        std::printf("%-8s %8d   the two ways differ: not timed\n", kind.c_str(), sessions);
        failed_ = true;
        return;
      }
      if (pair < 0) continue;
      off.push_back(Speed(turns[0]));
      on.push_back(Speed(turns[1]));
      ratios.push_back(on.back() / off.back());
      for (const Turn& turn : turns[1]) drafted += turn.drafted, accepted += turn.accepted;
    }
    const auto tokens = static_cast<double>(pairs_ * sessions * answer_);
    std::printf("%-8s %8d %10.1f %10.1f %7.2f %7.2f %9.3f %9.3f\n", kind.c_str(), sessions,
                Median(off), Median(on), Median(ratios), *std::ranges::min_element(ratios),
                static_cast<double>(drafted) / tokens, static_cast<double>(accepted) / tokens);
    std::fflush(stdout);
  }
  bool failed() const { return failed_; }

 private:
  // Tokens per second of all sessions together.
  static double Speed(const std::vector<Turn>& turns) {
    double tokens = 0, seconds = 0;
    for (const Turn& turn : turns) {
      tokens += static_cast<double>(turn.tokens.size() - 1);
      seconds = std::max(seconds, turn.seconds);
    }
    return tokens / seconds;
  }
  std::vector<Turn> Run(const std::string& kind, int pair, int sessions, int way) {
    std::mt19937 random(static_cast<uint32_t>(pair) + 7);
    const size_t length = static_cast<size_t>(prompt_ + answer_) + 1;
    const size_t begin = random() % (text_.size() - length);
    const auto from = text_.begin() + static_cast<std::ptrdiff_t>(begin);
    std::vector<int32_t> script(from, from + static_cast<std::ptrdiff_t>(length));
    const std::vector<int32_t> prompt(script.begin(), script.begin() + prompt_ - 1);
    // The turn sends one token; the answer follows it.
    engine::GenerateRequest request;
    request.prompt = {script[static_cast<size_t>(prompt_) - 1]};
    for (size_t i = 0; i + static_cast<size_t>(prompt_) < length; ++i) {
      int32_t& token = script[i + static_cast<size_t>(prompt_)];
      if (kind == "copy") token = script[i % static_cast<size_t>(prompt_)];
      if (kind == "noise") token = static_cast<int32_t>(random() % 256);
    }
    if (kind == "greedy" || kind == "drawn") script.clear();
    request.sampling.temperature = kind == "drawn" ? 1 : 0;
    request.sampling.seed = random() | 1;
    request.stop.max_tokens = answer_;
    request.stop.ignore_eos = true;
    request.output.speculation = way == 0 ? engine::Speculation::kOff : engine::Speculation::kNgram;
    return host_.Run(prompt, std::move(script), std::move(request), sessions);
  }

  Host& host_;
  const std::vector<int32_t> text_;
  const int prompt_, answer_, pairs_;
  bool failed_ = false;
};

int Main(int argc, char** argv) {
  CheckFlags(argc, argv,
             {"--text", "--model", "--shape", "--threads", "--prompt", "--answer", "--sessions",
              "--pairs"});
  const std::string model_folder = FlagValue(argc, argv, "--model", "");
  const std::string shape = FlagValue(argc, argv, "--shape", "77m");
  const std::string file = FlagValue(argc, argv, "--text", "");
  const int threads = std::atoi(FlagValue(argc, argv, "--threads", "2"));
  const int prompt = std::atoi(FlagValue(argc, argv, "--prompt", "4096"));
  const int answer = std::atoi(FlagValue(argc, argv, "--answer", "512"));
  std::ifstream in(file, std::ios::binary);
  std::vector<int32_t> text;
  for (auto c = std::istreambuf_iterator<char>(in); c != std::istreambuf_iterator<char>(); ++c) {
    text.push_back(static_cast<unsigned char>(*c));
  }
  if (text.size() < static_cast<size_t>(prompt + answer) + 2) {
    std::fprintf(stderr, "--text: expected a file of more than --prompt and --answer bytes\n");
    return 2;
  }
  auto context = ValueOrExit(kernels::DeviceContext::Make(kernels::Device::kCpu, threads));
  context->BindThread();
  model::ModelOptions options;
  options.state_dtype = kernels::DType::kBF16;
  const auto model = Load(model_folder, shape, options, *context);
  Host host(*model, threads);
  Bench bench(host, std::move(text), prompt, answer,
              std::atoi(FlagValue(argc, argv, "--pairs", "7")));
  std::printf("%s, %.1fM parameters, %d threads, prompts of %d tokens, answers of %d\n",
              model_folder.empty() ? shape.c_str() : model_folder.c_str(),
              static_cast<double>(model->parameters()) / 1e6, threads, prompt, answer);
  std::printf("%-8s %8s %10s %10s %7s %7s %9s %9s\n", "answer", "sessions", "off", "ngram", "ratio",
              "least", "drafted", "accepted");
  std::vector<std::string> kinds = {"text", "copy", "noise"};
  if (!model_folder.empty()) kinds.insert(kinds.end(), {"greedy", "drawn"});
  for (const int64_t sessions : Numbers(FlagValue(argc, argv, "--sessions", "1,8"))) {
    for (const std::string& kind : kinds) bench.Time(kind, static_cast<int>(sessions));
  }
  std::printf(
      "tokens/s of all sessions: medians of pairs; ratio and the least of them pair by pair;\n"
      "drafted and accepted a token of the answers\n");
  return bench.failed() ? 1 : 0;
}

}  // namespace
}  // namespace ovq::bench

int main(int argc, char** argv) { return ovq::bench::Main(argc, argv); }
