// Architecture: how GGUF files of one general.architecture say what a family of transformers'
// checkpoints says in config.json and in the names of its tensors.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "kernels/common/attrs.h"
#include "model/gguf/gguf_file.h"

namespace ovq::model {

// Reads the keys ARCHITECTURE.* of a file and keeps errors.
class ArchitectureKeys {
 public:
  ArchitectureKeys(const GgufFile& file, std::string_view architecture)
      : file_(file), prefix_(std::string(architecture) + "."), reader_(file.metadata()) {}

  bool Has(std::string_view key) const { return reader_.Has(Full(key)); }
  int64_t Int(std::string_view key, int64_t most = kMost) {
    return reader_.Int(Full(key), 1, most);
  }
  int64_t IntOr(std::string_view key, int64_t fallback, int64_t min = 1) {
    return reader_.IntOr(Full(key), fallback, min, kMost);
  }
  double FloatOr(std::string_view key, double fallback) {
    return reader_.FloatOr(Full(key), fallback, 0, 1e30);
  }
  bool BoolOr(std::string_view key, bool fallback) { return reader_.BoolOr(Full(key), fallback); }
  std::string StringOr(std::string_view key, std::string_view fallback) {
    return reader_.StringOr(Full(key), std::string(fallback));
  }
  // An integer gives a list of n equal ones; a list must have n.
  std::vector<int64_t> IntPerLayer(std::string_view key, int64_t n) {
    return reader_.IntPerLayer(Full(key), static_cast<int>(n), 0, kMost);
  }
  void Fail(std::string_view key, std::string_view what) { reader_.Fail(Full(key), what); }
  // For a key that has no effect on what is computed.
  void Ignore(std::string_view key) { file_.metadata().Ignore(Full(key)); }
  const GgufFile& file() const { return file_; }
  // The errors, and one for each key that was not read: it may change what the model computes.
  absl::Status Done(std::span<const std::string_view> ignored) const;

 private:
  static constexpr int64_t kMost = 1 << 24;
  std::string Full(std::string_view key) const { return prefix_ + std::string(key); }

  const GgufFile& file_;
  const std::string prefix_;
  kernels::AttrReader reader_;
};

// The beginning of a tensor's name without blk.N., and what the family has in its place.
struct GgufName {
  std::string_view begin, in_family;
};

// Expert 5's matrices in the family: PREFIX5.GATEweight and so on.
struct ExpertNames {
  std::string_view prefix = "mlp.experts.", gate = "gate_proj.", up = "up_proj.",
                   down = "down_proj.";
};

struct Architecture {
  std::string_view name, model_type;
  // Names of tensors that differ from the usual ones.
  std::span<const GgufName> names = {};
  ExpertNames experts = {};
  // The two rows of q and k that RoPE turns together are neighbours, not half a head apart.
  bool interleaves_heads = false;
  // The value heads of linear attention that share a key head lie apart: the first of every key
  // head, then the second, not all of the first key head, then those of the second.
  bool tiles_value_heads = false;
  bool adds_one_to_norms = false;  // weights of norms are stored plus one
  // Layers differ: `read` reads key heads, widths of feed-forwards and channels that RoPE turns.
  bool is_hybrid = false;
  double rope_base = 10000;  // without rope.freq_base
  // Tensors that `read` makes fields of; they are no weights.
  std::span<const std::string_view> field_tensors = {};
  // Reads what the family has beside the usual fields.
  void (*read)(ArchitectureKeys& keys, nlohmann::json& config) = nullptr;
};

// Layers of the model, without those after them that draft tokens.
int64_t NumLayers(ArchitectureKeys& keys);
// Channels of a head; 0 if the keys do not say.
int64_t HeadDim(ArchitectureKeys& keys);
// Factors of RoPE in place of the fields of llama3, and the tensors that hold them.
inline constexpr char kRopeDivisors[] = "rope_freqs.weight";
inline constexpr std::string_view kRopeTensors[] = {kRopeDivisors};
// Makes them a rope_scaling, if the file has them.
void ReadRopeDivisors(ArchitectureKeys& keys, nlohmann::json& config);
// The numbers of a tensor, which GGUF has where config.json has a list; its shape as a text, which
// is no list, if it is not one; empty if it is absent.
nlohmann::json TensorNumbers(const GgufFile& file, std::string_view tensor);
// The first tensor whose name has that ending; null without one.
const GgufTensor* FindTensor(const GgufFile& file, std::string_view ending);

}  // namespace ovq::model
