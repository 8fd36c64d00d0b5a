// Prints hashes of what models compute, to compare two builds of this project bit for bit: for
// every model folder and both dtypes, the SHA-256 of all logits and of a session's live state after
// the same tokens.
//
//   model_digest --device cpu --tokens 512 models/* > before.txt
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "kernels/common/random.h"
#include "model/language_model.h"
#include "tests/model/new_session.h"

namespace ovq::bench {
namespace {

constexpr int64_t kSlotCap = 200;
// Prefill in uneven parts, then single tokens.
constexpr int64_t kPrefillShare = 3, kOf = 4;
constexpr int64_t kParts[] = {1, 100, 37};

struct Options {
  kernels::Device device = kernels::Device::kCpu;
  int64_t tokens = 512;
  std::vector<std::string> folders;
};

std::vector<int32_t> Tokens(int64_t n, int64_t vocab_size) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t word = kernels::Philox4x32({static_cast<uint32_t>(i), 0, 0, 0}, {1, 2})[0];
    tokens.push_back(static_cast<int32_t>(word % static_cast<uint64_t>(vocab_size)));
  }
  return tokens;
}

void Digest(const std::string& folder, kernels::DType dtype, const Options& options) {
  auto context = kernels::DeviceContext::Make(options.device, 1);
  Check(context.ok(), std::string(context.status().message()).c_str());
  (*context)->BindThread();
  model::ModelOptions model_options;
  model_options.compute_dtype = dtype;
  model_options.state_dtype = dtype;
  model_options.limits = {4096, 4096};
  auto model = model::LanguageModel::Load(folder, model_options, **context);
  Check(model.ok(), std::string(model.status().message()).c_str());

  const model::StateLayout& layout = (*model)->layout();
  const std::vector<std::byte> state = model::test::NewSession(layout);
  const kernels::Buffer session = (*context)->Upload(state.data(), state.size());
  const std::vector<int32_t> tokens = Tokens(options.tokens, (*model)->config().vocab_size);
  const int64_t prefill = options.tokens * kPrefillShare / kOf;
  Sha256 logits_hash, state_hash;
  model::Batch batch;
  for (int64_t at = 0, step = 0; at < options.tokens; ++step) {
    const int64_t left = at < prefill ? prefill - at : 1;
    const int64_t n = std::min(left, kParts[step % 3]);
    batch = {};
    batch.Add(std::span(tokens).subspan(static_cast<size_t>(at), static_cast<size_t>(n)), at,
              kSlotCap, session.as<std::byte>(), static_cast<int>(n));
    kernels::ScratchScope scope(**context);
    const kernels::TensorView rows = (*model)->Forward(batch, **context, scope);
    std::vector<float> logits(static_cast<size_t>(n * (*model)->config().vocab_size));
    (*context)->CopyToHost(logits.data(), rows.data, logits.size() * sizeof(float));
    logits_hash.Add(logits.data(), logits.size() * sizeof(float));
    at += n;
  }
  for (const kernels::StateExtent& extent : layout.live_extents_at(options.tokens, kSlotCap)) {
    std::vector<std::byte> part(extent.bytes);
    (*context)->CopyToHost(part.data(), session.as<std::byte>() + extent.offset, extent.bytes);
    state_hash.Add(part.data(), part.size());
  }
  std::printf("%s %s %s logits %s state %s\n", std::filesystem::path(folder).filename().c_str(),
              kernels::DeviceName(options.device), kernels::DTypeName(dtype),
              logits_hash.Hex().c_str(), state_hash.Hex().c_str());
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--device" && i + 1 < argc) {
      const std::string name = argv[++i];
      const auto named = [&](kernels::Device device) {
        return name == kernels::DeviceName(device);
      };
      const std::array devices = {kernels::Device::kCpu, kernels::Device::kReference,
                                  kernels::Device::kCuda};
      const auto found = std::ranges::find_if(devices, named);
      Check(found != devices.end(), "--device: expected cpu, ref or cuda");
      options.device = *found;
    } else if (argument == "--tokens" && i + 1 < argc) {
      options.tokens = std::atoll(argv[++i]);
      Check(options.tokens > 0 && options.tokens <= 4096, "--tokens: expected 1 to 4096");
    } else {
      options.folders.push_back(argument);
    }
  }
  for (const std::string& folder : options.folders) {
    for (kernels::DType dtype : {kernels::DType::kF32, kernels::DType::kBF16})
      Digest(folder, dtype, options);
  }
  return options.folders.empty() ? 2 : 0;
}

}  // namespace
}  // namespace ovq::bench

int main(int argc, char** argv) { return ovq::bench::Main(argc, argv); }
