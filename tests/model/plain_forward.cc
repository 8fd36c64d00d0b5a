// Forward, the last function, is the place to begin; each function uses those above it.
//
// T tokens, D hidden_size, V vocab_size, F intermediate_size; H query heads and G key/value heads,
// of which each serves H / G query heads; d head_dim, dv value_head_dim. Equations are those of the
// OVQ paper.
#include "tests/model/plain_forward.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/check.h"
#include "model/safetensors.h"
#include "tests/model/model_test_util.h"

namespace ovq::model::plain {
namespace {

using Vector = std::vector<double>;
using Matrix = std::vector<Vector>;  // a list of rows

struct Model {
  nlohmann::json config;
  SafetensorsFile file;

  int64_t field(const char* name) const { return config.at(name).get<int64_t>(); }
  kernels::TensorView tensor(const std::string& name) const { return test::View(file, name); }
};

double Dot(const Vector& a, const Vector& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

// y_ti = sum_j w_ij x_tj, for weights [out, in].
Matrix Multiply(const Matrix& x, const kernels::TensorView& w) {
  const int64_t n_out = w.shape[0], n_in = w.shape[1];
  Matrix y(x.size(), Vector(n_out));
  for (size_t t = 0; t < x.size(); ++t) {
    for (int64_t i = 0; i < n_out; ++i) {
      for (int64_t j = 0; j < n_in; ++j) y[t][i] += kernels::FloatAt(w, i * n_in + j) * x[t][j];
    }
  }
  return y;
}

void Add(Matrix& x, const Matrix& y) {
  for (size_t t = 0; t < x.size(); ++t) {
    for (size_t i = 0; i < x[t].size(); ++i) x[t][i] += y[t][i];
  }
}

// x_i w_i / sqrt(mean x^2 + eps).
Matrix RmsNorm(Matrix x, const kernels::TensorView& w, double eps) {
  for (Vector& row : x) {
    const double scale = 1 / std::sqrt(Dot(row, row) / static_cast<double>(row.size()) + eps);
    for (size_t i = 0; i < row.size(); ++i)
      row[i] *= scale * kernels::FloatAt(w, static_cast<int64_t>(i));
  }
  return x;
}

// Head `head` of a row of heads with n channels each: channels [head n, (head + 1) n).
Vector Head(const Vector& row, int64_t head, int64_t n) {
  return Vector(row.begin() + head * n, row.begin() + (head + 1) * n);
}

// x / sqrt(sum x^2 + 1e-6): queries and keys have length 1 (appendix 8.2).
Vector UnitNorm(Vector x) {
  const double scale = 1 / std::sqrt(Dot(x, x) + 1e-6);
  for (double& value : x) value *= scale;
  return x;
}

// Rotary position embedding: turns channels (i, i + d/2) by the angle t theta^(-2i/d).
Vector Rotate(Vector x, int64_t t, double theta) {
  const size_t half = x.size() / 2;
  for (size_t i = 0; i < half; ++i) {
    const double angle = static_cast<double>(t) * std::pow(theta, -static_cast<double>(i) / half);
    const double a = x[i], b = x[i + half];
    x[i] = a * std::cos(angle) - b * std::sin(angle);
    x[i + half] = a * std::sin(angle) + b * std::cos(angle);
  }
  return x;
}

// A token that attention reads, or a centroid: the mean of `count` tokens.
struct Slot {
  Vector key, value;  // [d], [dv]
  double count = 1;
};

// o = sum_j p_j v_j, p = softmax_j(beta q . k_j + ln count_j): eq. 15, and eq. 1 where all counts
// are 1.
Vector Attend(const Vector& q, double beta, const std::vector<Slot>& slots) {
  Vector p;
  for (const Slot& slot : slots) p.push_back(beta * Dot(q, slot.key) + std::log(slot.count));
  const double highest = *std::max_element(p.begin(), p.end());
  double sum = 0;
  for (double& score : p) sum += score = std::exp(score - highest);
  Vector o(slots[0].value.size());
  for (size_t j = 0; j < slots.size(); ++j) {
    for (size_t i = 0; i < o.size(); ++i) o[i] += p[j] / sum * slots[j].value[i];
  }
  return o;
}

// Takes a full chunk into the dictionary, which grows to n_slots centroids (eq. 18 and 19).
void UpdateDictionary(std::span<const Slot> chunk, size_t n_slots, std::vector<Slot>& dictionary) {
  // Each key's best old centroid, and its similarity to it. In the first chunk key 0 stands for the
  // dictionary: it comes first in the order below and so becomes centroid 0.
  const bool is_first = dictionary.empty();
  const size_t n_old = dictionary.size();
  std::vector<size_t> slot_of(chunk.size(), 0);
  Vector similarity(chunk.size(), -std::numeric_limits<double>::infinity());
  for (size_t i = is_first ? 1 : 0; i < chunk.size(); ++i) {
    for (size_t j = 0; j < std::max<size_t>(n_old, 1); ++j) {
      const double score = Dot(chunk[i].key, is_first ? chunk[0].key : dictionary[j].key);
      if (score > similarity[i]) similarity[i] = score, slot_of[i] = j;
    }
  }
  // The least similar keys become new centroids, in ascending order; the lower index wins a tie.
  std::vector<size_t> order(chunk.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return similarity[a] < similarity[b]; });
  for (size_t j = n_old; j < n_slots; ++j) slot_of[order[j - n_old]] = j;
  const Slot empty = {Vector(chunk[0].key.size()), Vector(chunk[0].value.size()), 0};
  dictionary.resize(n_slots, empty);
  // Counts first; then D_j += sum_i (k_i - D_j) / count_j with the old D_j, values alike.
  for (size_t j : slot_of) dictionary[j].count += 1;
  const std::vector<Slot> old = dictionary;
  for (size_t i = 0; i < chunk.size(); ++i) {
    Slot& slot = dictionary[slot_of[i]];
    const Slot& before = old[slot_of[i]];
    for (size_t c = 0; c < slot.key.size(); ++c) {
      slot.key[c] += (chunk[i].key[c] - before.key[c]) / slot.count;
    }
    for (size_t c = 0; c < slot.value.size(); ++c) {
      slot.value[c] += (chunk[i].value[c] - before.value[c]) / slot.count;
    }
  }
}

// The attention of one layer, x [T, D] to [T, D]. `layer` is "model.layers.0.".
Matrix Attention(const Model& model, const std::string& layer, const std::string& type,
                 int64_t max_centroids, const Matrix& x) {
  const bool slides = type == "sliding_attention", has_dictionary = type == "ovq_attention";
  Check(slides || has_dictionary || type == "full_attention", "a layer type of this page");
  const auto n_tokens = static_cast<int64_t>(x.size());
  const int64_t n_heads = model.field("num_attention_heads");
  const int64_t n_kv_heads = model.config.value("num_key_value_heads", n_heads);
  const int64_t d = model.field("head_dim"), dv = model.field("value_head_dim");
  const int64_t window = model.field("sliding_window");
  const int64_t chunk = model.config.at("ovq").at("chunk_size").get<int64_t>();
  const double theta = model.config.at("rope_theta").get<double>();

  const Matrix q = Multiply(x, model.tensor(layer + "self_attn.q_proj.weight"));  // [T, H d]
  const Matrix k = Multiply(x, model.tensor(layer + "self_attn.k_proj.weight"));  // [T, G d]
  const Matrix v = Multiply(x, model.tensor(layer + "self_attn.v_proj.weight"));  // [T, G dv]
  const kernels::TensorView beta = model.tensor(layer + "self_attn.beta");        // [H]
  // Only sliding layers know positions.
  const auto unit = [&](const Matrix& rows, int64_t t, int64_t head) {  // [d]
    const Vector normed = UnitNorm(Head(rows[t], head, d));
    return slides ? Rotate(normed, t, theta) : normed;
  };
  Matrix out(x.size(), Vector(n_heads * dv));  // [T, H dv]
  for (int64_t g = 0; g < n_kv_heads; ++g) {
    std::vector<Slot> tokens, dictionary;  // of this key/value head
    for (int64_t t = 0; t < n_tokens; ++t) {
      tokens.push_back({unit(k, t, g), Head(v[t], g, dv)});
      // Token t reads its window, or all tokens, or the dictionary and its own chunk.
      const int64_t begin = slides           ? std::max<int64_t>(t + 1 - window, 0)
                            : has_dictionary ? t / chunk * chunk
                                             : 0;
      std::vector<Slot> slots = dictionary;  // empty in layers without one
      slots.insert(slots.end(), tokens.begin() + begin, tokens.end());
      for (int64_t h = g * n_heads / n_kv_heads; h < (g + 1) * n_heads / n_kv_heads; ++h) {
        const Vector o = Attend(unit(q, t, h), kernels::FloatAt(beta, h), slots);  // [dv]
        std::copy(o.begin(), o.end(), out[t].begin() + h * dv);
      }
      // The last token of a chunk still reads the old dictionary. n(t) = floor(t N / (t + N)),
      // eq. 17.
      const int64_t n = t + 1;
      if (has_dictionary && n % chunk == 0) {
        UpdateDictionary(std::span(tokens).last(static_cast<size_t>(chunk)),
                         static_cast<size_t>(n * max_centroids / (n + max_centroids)), dictionary);
      }
    }
  }
  return Multiply(out, model.tensor(layer + "self_attn.o_proj.weight"));  // [T, D]
}

// down(silu(gate x) up x), x [T, D] to [T, D].
Matrix FeedForward(const Model& model, const std::string& layer, const Matrix& x) {
  Matrix gate = Multiply(x, model.tensor(layer + "mlp.gate_proj.weight"));    // [T, F]
  const Matrix up = Multiply(x, model.tensor(layer + "mlp.up_proj.weight"));  // [T, F]
  for (size_t t = 0; t < x.size(); ++t) {
    for (size_t i = 0; i < up[t].size(); ++i) gate[t][i] *= up[t][i] / (1 + std::exp(-gate[t][i]));
  }
  return Multiply(gate, model.tensor(layer + "mlp.down_proj.weight"));  // [T, D]
}

}  // namespace

std::vector<double> Forward(const std::string& folder, std::span<const int32_t> tokens,
                            int64_t max_centroids) {
  const Model model = {nlohmann::json::parse(test::ReadBytes(folder + "/config.json")),
                       test::OpenSafetensors(folder + "/model.safetensors").value()};
  if (max_centroids == 0) max_centroids = model.config.at("ovq").at("max_centroids").get<int64_t>();
  const double eps = model.config.at("rms_norm_eps").get<double>();

  const kernels::TensorView embedding = model.tensor("model.embed_tokens.weight");  // [V, D]
  Matrix x;                                                                         // [T, D]
  for (int32_t id : tokens) {
    Vector& row = x.emplace_back();
    const int64_t width = embedding.shape[1];
    for (int64_t i = 0; i < width; ++i) row.push_back(kernels::FloatAt(embedding, id * width + i));
  }
  int index = 0;
  for (const std::string type : model.config.at("layer_types")) {
    const std::string layer = "model.layers." + std::to_string(index++) + ".";
    const Matrix a = RmsNorm(x, model.tensor(layer + "input_layernorm.weight"), eps);
    Add(x, Attention(model, layer, type, max_centroids, a));
    const Matrix b = RmsNorm(x, model.tensor(layer + "post_attention_layernorm.weight"), eps);
    Add(x, FeedForward(model, layer, b));
  }
  x = RmsNorm(x, model.tensor("model.norm.weight"), eps);
  std::vector<double> logits;
  for (const Vector& row : Multiply(x, model.tensor("lm_head.weight"))) {  // [T, V]
    logits.insert(logits.end(), row.begin(), row.end());
  }
  return logits;
}

}  // namespace ovq::model::plain
