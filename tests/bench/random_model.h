// Writes a model folder with random BF16 weights in one of the paper's shapes (appendix 8). Sizes
// are as published; the contents are meaningless, so it is generated and never committed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/common/tensor.h"

namespace ovq::bench {

struct ModelShape {
  int n_layers, d_model, n_heads, d_ff, vocab;
  int n_kv_heads = n_heads;
};
inline ModelShape PaperShape(const std::string& name) {
  if (name == "77m") return {8, 768, 6, 2304, 10000};
  if (name == "257m") return {17, 1024, 8, 2304, 32000};
  if (name == "478m") return {21, 1280, 10, 3200, 32000};
  // These two are not from the paper: layers and channels of 77m, with four or eight query heads
  // for one key head.
  if (name == "77m-group4") return {8, 768, 8, 2304, 10000, 2};
  if (name == "77m-group8") return {8, 768, 8, 2304, 10000, 1};
  std::fprintf(stderr, "--shape: expected 77m, 77m-group4, 77m-group8, 257m or 478m, got %s\n",
               name.c_str());
  std::exit(2);
}

// mixer: the layer type that alternates with sliding_attention.
inline nlohmann::json RandomModelConfig(const ModelShape& shape, const std::string& mixer) {
  std::vector<std::string> layer_types;
  for (int i = 0; i < shape.n_layers; ++i) {
    layer_types.push_back(i % 2 == 0 ? "sliding_attention" : mixer);
  }
  return {{"model_type", "ovq_hybrid"},
          {"vocab_size", shape.vocab},
          {"hidden_size", shape.d_model},
          {"num_hidden_layers", shape.n_layers},
          {"num_attention_heads", shape.n_heads},
          {"num_key_value_heads", shape.n_kv_heads},
          {"head_dim", 128},
          {"intermediate_size", shape.d_ff},
          {"hidden_act", "silu"},
          {"rms_norm_eps", 1e-5},
          {"tie_word_embeddings", false},
          {"sliding_window", 128},
          {"rope_theta", 10000.0},
          {"layer_types", layer_types},
          {"ovq", {{"chunk_size", 128}, {"max_centroids", 2048}}},
          {"torch_dtype", "bfloat16"}};
}

// Writes tensors of random numbers. Half a billion draws would take a quarter of a minute, so one
// tile of numbers is drawn and repeated: each tensor goes on where the one before has ended. The
// tile's length is a prime, so rows of a matrix begin at different places of it.
class RandomModelWriter {
 public:
  void Add(const std::string& name, std::vector<int64_t> shape, float mean, float deviation) {
    size_t n = 1;
    for (int64_t dim : shape) n *= static_cast<size_t>(dim);
    header_[name] = {
        {"dtype", "BF16"}, {"shape", std::move(shape)}, {"data_offsets", {bytes_, bytes_ + 2 * n}}};
    bytes_ += 2 * n;
    tensors_.push_back({n, mean, deviation});
  }
  void Write(const std::filesystem::path& path) const {
    std::string header = header_.dump();
    header.append((8 - header.size() % 8) % 8, ' ');
    const uint64_t length = header.size();
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&length), sizeof length);
    file.write(header.data(), static_cast<std::streamsize>(header.size()));
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> tile(kTile);
    for (float& value : tile) value = normal(random);
    std::vector<kernels::BF16> values(kTile);
    size_t begin = 0;
    for (const Tensor& tensor : tensors_) {
      for (size_t i = 0; i < std::min(tensor.n, kTile); ++i) {
        values[i] =
            kernels::RoundToBF16(tensor.mean + tensor.deviation * tile[(begin + i) % kTile]);
      }
      for (size_t at = 0; at < tensor.n; at += kTile) {
        file.write(reinterpret_cast<const char*>(values.data()),
                   static_cast<std::streamsize>(std::min(kTile, tensor.n - at) * sizeof values[0]));
      }
      begin = (begin + tensor.n) % kTile;
    }
    Check(file.good(), "the random model is written");
  }

 private:
  static constexpr size_t kTile = 262'147;
  struct Tensor {
    size_t n;
    float mean, deviation;
  };
  nlohmann::json header_ = nlohmann::json::object();
  size_t bytes_ = 0;
  std::vector<Tensor> tensors_;
};

inline void WriteRandomModel(const std::filesystem::path& folder, const ModelShape& shape,
                             const std::string& mixer) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << RandomModelConfig(shape, mixer).dump(1);
  RandomModelWriter weights;
  const int64_t d = shape.d_model, heads = int64_t{shape.n_heads} * 128,
                kv_heads = int64_t{shape.n_kv_heads} * 128, f = shape.d_ff;
  weights.Add("model.embed_tokens.weight", {shape.vocab, d}, 0, 1);
  for (int i = 0; i < shape.n_layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    weights.Add(layer + "input_layernorm.weight", {d}, 1, 0.02f);
    weights.Add(layer + "post_attention_layernorm.weight", {d}, 1, 0.02f);
    weights.Add(layer + "self_attn.q_proj.weight", {heads, d}, 0, 0.03f);
    for (const char* name : {"k_proj", "v_proj"}) {
      weights.Add(layer + "self_attn." + name + ".weight", {kv_heads, d}, 0, 0.03f);
    }
    weights.Add(layer + "self_attn.o_proj.weight", {d, heads}, 0, 0.03f);
    weights.Add(layer + "self_attn.beta", {shape.n_heads}, 8, 0.5f);
    weights.Add(layer + "mlp.gate_proj.weight", {f, d}, 0, 0.03f);
    weights.Add(layer + "mlp.up_proj.weight", {f, d}, 0, 0.03f);
    weights.Add(layer + "mlp.down_proj.weight", {d, f}, 0, 0.02f);
  }
  weights.Add("model.norm.weight", {d}, 1, 0.02f);
  weights.Add("lm_head.weight", {shape.vocab, d}, 0, 0.03f);
  weights.Write(folder / "model.safetensors");
}

}  // namespace ovq::bench
