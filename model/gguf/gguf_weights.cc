#include "model/gguf/gguf_weights.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/problems.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "model/gguf/find_architecture.h"

namespace ovq::model {
namespace {

constexpr GgufName kModelNames[] = {{"token_embd.", "model.embed_tokens."},
                                    {"output_norm.", "model.norm."},
                                    {"output.", "lm_head."}};
constexpr GgufName kLayerNames[] = {{"attn_norm.", "input_layernorm."},
                                    {"attn_q.", "self_attn.q_proj."},
                                    {"attn_k.", "self_attn.k_proj."},
                                    {"attn_v.", "self_attn.v_proj."},
                                    {"attn_qkv.", "self_attn.qkv_proj."},
                                    {"attn_q_norm.", "self_attn.q_norm."},
                                    {"attn_k_norm.", "self_attn.k_norm."},
                                    {"attn_output.", "self_attn.o_proj."},
                                    {"post_attention_norm.", "post_attention_layernorm."},
                                    {"ffn_norm.", "post_attention_layernorm."},
                                    {"post_ffw_norm.", "post_feedforward_layernorm."},
                                    {"ffn_gate.", "mlp.gate_proj."},
                                    {"ffn_up.", "mlp.up_proj."},
                                    {"ffn_down.", "mlp.down_proj."}};

// Replaces the beginning of a name; false if the table does not know it.
bool Rename(std::span<const GgufName> table, std::string_view leaf, std::string& name) {
  const auto fits = [leaf](const GgufName& entry) { return leaf.starts_with(entry.begin); };
  const auto found = std::ranges::find_if(table, fits);
  if (found == table.end()) return false;
  absl::StrAppend(&name, AbslView(found->in_family), AbslView(leaf.substr(found->begin.size())));
  return true;
}

// Numbers of the keys that decide how elements lie.
struct Sizes {
  int64_t head_dim, n_layers, n_blocks, n_experts;
  int64_t key_heads = 0, value_heads = 0, key_width = 0;  // of linear attention
};

Sizes ReadSizes(const Architecture& architecture, ArchitectureKeys& keys) {
  Sizes sizes = {.head_dim = HeadDim(keys),
                 .n_layers = NumLayers(keys),
                 .n_blocks = keys.Int("block_count"),
                 .n_experts = keys.IntOr("expert_count", 0, 0)};
  if (architecture.tiles_value_heads) {
    sizes.key_heads = keys.Int("ssm.group_count");
    sizes.value_heads = keys.Int("ssm.time_step_rank");
    sizes.key_width = sizes.key_heads * keys.Int("ssm.state_size");
  }
  return sizes;
}

// A tensor's name in two parts.
struct NameParts {
  std::string layer;  // "model.layers.3."; empty outside of layers
  std::string_view leaf;
};
NameParts SplitName(const Sizes& sizes, std::string_view name) {
  constexpr std::string_view kBlock = "blk.";
  const size_t dot = name.find('.', kBlock.size());
  if (!name.starts_with(kBlock) || dot == name.npos) return {"", name};
  const std::string_view number = name.substr(kBlock.size(), dot - kBlock.size());
  int64_t block = 0;
  const bool drafts = absl::SimpleAtoi(AbslView(number), &block) && block >= sizes.n_layers &&
                      block < sizes.n_blocks;
  return {absl::StrCat(drafts ? "mtp.layers." : "model.layers.", AbslView(number), "."),
          name.substr(dot + 1)};
}

std::string FamilyName(const Architecture& architecture, const Sizes& sizes,
                       std::string_view name) {
  const NameParts parts = SplitName(sizes, name);
  std::string renamed = parts.layer;
  const bool known = Rename(architecture.names, parts.leaf, renamed) ||
                     Rename(parts.layer.empty() ? std::span<const GgufName>(kModelNames)
                                                : std::span<const GgufName>(kLayerNames),
                            parts.leaf, renamed);
  if (known) return renamed;
  return parts.layer.starts_with("mtp.") ? absl::StrCat("mtp.", AbslView(name)) : std::string(name);
}

using WriteRow = std::function<void(int64_t row, std::span<float> to)>;

WriteRow WriteRows(const GgufTensor& tensor) {
  return [tensor](int64_t row, std::span<float> to) {
    const BlockType& type = *tensor.type;
    const auto n_block = static_cast<size_t>(type.elements);
    const size_t first = static_cast<size_t>(row) * to.size();
    const std::byte* block = tensor.bytes.data() + first / n_block * type.bytes;
    for (size_t i = 0; i < to.size(); i += n_block, block += type.bytes) {
      type.decode(block, to.data() + i);
    }
  };
}

// Runs of elements or rows from `first` on, of which the file's b a + i is the family's i b + j,
// j < b, i < a; then the next a b of them.
struct Order {
  int64_t a, b, run = 1, first = 0;

  int64_t InFile(int64_t in_family) const {
    if (in_family < first) return in_family;
    const int64_t at = in_family - first, n = at / run, i = n % (a * b);
    return first + (n - i + i % b * a + i / b) * run + at % run;
  }
};

WriteRow WithRows(WriteRow rows, const Order& order) {
  return [rows = std::move(rows), order](int64_t row, std::span<float> to) {
    rows(order.InFile(row), to);
  };
}

WriteRow WithColumns(WriteRow rows, const Order& order) {
  return [rows = std::move(rows), order](int64_t row, std::span<float> to) {
    std::vector<float> in_file(to.size());
    rows(row, in_file);
    for (size_t i = 0; i < to.size(); ++i) {
      to[i] = in_file[static_cast<size_t>(order.InFile(static_cast<int64_t>(i)))];
    }
  };
}

WriteRow WithEach(WriteRow rows, float (*change)(float)) {
  return [rows = std::move(rows), change](int64_t row, std::span<float> to) {
    rows(row, to);
    std::ranges::transform(to, to.begin(), change);
  };
}

// Gives a tensor the shape that the family has: files keep vectors as columns and leave dimensions
// of 1 out, or have more of them.
void SetShape(const Architecture& architecture, GgufWeight& weight) {
  const std::string_view name = weight.name;
  kernels::Shape& shape = weight.shape;
  const int64_t n = shape.elements(), last = shape[shape.rank() - 1];
  const bool is_vector = name.ends_with(".A_log") || name.ends_with(".D") ||
                         name.ends_with("mixer.norm.weight") || name.ends_with("mamba.norm.weight");
  if (is_vector) shape = {n};
  if (name.ends_with("conv1d.weight") && last > 0) shape = {n / last, 1, last};
  if (name.ends_with("shared_expert_gate.weight")) shape = {1, n};
  if (name.ends_with(".A_log") && architecture.model_type == "kimi_linear") shape = {1, 1, n, 1};
}

// The order of a weight whose value heads are tiled; none for others. In `of_columns` it says
// whether columns have it.
std::optional<Order> ValueHeadOrder(const Sizes& sizes, const GgufWeight& weight,
                                    bool& of_columns) {
  constexpr std::string_view kMixer = ".linear_attn.";
  const size_t at = weight.name.find(kMixer);
  if (at == weight.name.npos || sizes.key_heads <= 0 || sizes.value_heads <= 0 ||
      sizes.value_heads % sizes.key_heads != 0)
    return std::nullopt;
  const std::string_view leaf = std::string_view(weight.name).substr(at + kMixer.size());
  const kernels::Shape& shape = weight.shape;
  of_columns = shape.rank() == 1 || leaf == "out_proj.weight";
  const bool has_keys = leaf == "in_proj_qkv.weight" || leaf == "conv1d.weight";
  Order order = {sizes.key_heads, sizes.value_heads / sizes.key_heads};
  order.first = has_keys ? 2 * sizes.key_width : 0;
  const int64_t n = (of_columns ? shape[shape.rank() - 1] : shape[0]) - order.first;
  if (leaf == "norm.weight" || n <= 0 || n % sizes.value_heads != 0) return std::nullopt;
  order.run = n / sizes.value_heads;
  return order;
}

// Sets how elements are made where the file's differ from the family's.
void SetChange(const Architecture& architecture, const Sizes& sizes, GgufWeight& weight) {
  SetShape(architecture, weight);
  const std::string_view name = weight.name;
  const kernels::Shape& shape = weight.shape;
  const auto rows = [&] {
    return weight.write_row ? std::move(weight.write_row) : WriteRows(weight.parts[0]);
  };
  if (!weight.parts[0].type->is_float()) weight.write_row = rows();
  std::optional<Order> order;
  bool of_columns = shape.rank() == 1;
  const int64_t head = sizes.head_dim;
  const bool is_query_or_key =
      name.find(".q_proj.") != name.npos || name.find(".k_proj.") != name.npos;
  if (architecture.interleaves_heads && is_query_or_key && head > 0 && head % 2 == 0 &&
      shape[0] % head == 0) {
    order = Order{2, head / 2};
  }
  if (architecture.tiles_value_heads) order = ValueHeadOrder(sizes, weight, of_columns);
  if (order && order->a > 1 && order->b > 1) {
    weight.write_row = of_columns ? WithColumns(rows(), *order) : WithRows(rows(), *order);
  }
  if (architecture.adds_one_to_norms && name.ends_with("norm.weight") &&
      !name.ends_with("linear_attn.norm.weight")) {
    weight.write_row = WithEach(rows(), [](float x) { return x - 1; });
  }
  if (name.ends_with(".A_log")) {
    weight.write_row = WithEach(rows(), [](float x) { return std::log(-x); });
  }
}

// Latent attention's up-projections of keys [heads, rank, key] and values [heads, value, rank],
// which are one tensor in the family, [heads (key + value), rank].
absl::StatusOr<GgufWeight> KeyValueWeight(const GgufFile& file, const std::string& name,
                                          const NameParts& name_parts) {
  constexpr std::string_view kKeys = "attn_k_b.weight";
  const std::string other =
      absl::StrCat(name.substr(0, name.size() - kKeys.size()), "attn_v_b.weight");
  const auto found = file.tensors().find(other);
  const GgufTensor& k = file.tensors().at(name);
  if (k.shape.rank() != 3 || k.bytes.empty() || found == file.tensors().end() ||
      found->second.shape.rank() != 3 || found->second.bytes.empty() ||
      found->second.shape[0] != k.shape[0] || found->second.shape[2] != k.shape[1]) {
    return absl::InvalidArgumentError(absl::StrCat("expected [heads, rank, key], and beside it ",
                                                   Quoted(other), " of [heads, value, rank]"));
  }
  const GgufTensor& v = found->second;
  const int64_t rank = k.shape[1], key = k.shape[2], value = v.shape[1];
  return GgufWeight{.name = name_parts.layer + "self_attn.kv_b_proj.weight",
                    .shape = {k.shape[0] * (key + value), rank},
                    .names = {name, other},
                    .parts = {k, v},
                    .write_row = [=, keys = WriteRows(k), values = WriteRows(v)](
                                     int64_t row, std::span<float> to) {
                      const int64_t head = row / (key + value), i = row % (key + value);
                      if (i >= key) return values(head * value + i - key, to);
                      std::vector<float> of_rank(static_cast<size_t>(key));
                      for (int64_t r = 0; r < rank; ++r) {
                        keys(head * rank + r, of_rank);
                        to[static_cast<size_t>(r)] = of_rank[static_cast<size_t>(i)];
                      }
                    }};
}

// The leaves, in the family, of one expert's matrices that lie one above the other in a tensor of
// all experts; none for other tensors.
std::vector<std::string_view> ExpertLeaves(const Architecture& architecture,
                                           std::string_view leaf) {
  const ExpertNames& names = architecture.experts;
  if (leaf == "ffn_gate_exps.weight") return {names.gate};
  if (leaf == "ffn_up_exps.weight") return {names.up};
  if (leaf == "ffn_down_exps.weight") return {names.down};
  if (leaf == "ffn_gate_up_exps.weight") return {names.gate, names.up};
  return {};
}

// Adds the matrices of all experts [experts, rows, columns], each by itself.
absl::Status AddExperts(const Architecture& architecture, const Sizes& sizes,
                        const std::string& name, const GgufTensor& tensor,
                        std::vector<GgufWeight>& weights) {
  constexpr int64_t kMostMatrices = 1 << 20;
  const NameParts name_parts = SplitName(sizes, name);
  const std::vector<std::string_view> leaves = ExpertLeaves(architecture, name_parts.leaf);
  const auto n_leaves = static_cast<int64_t>(leaves.size());
  const kernels::Shape& shape = tensor.shape;
  if (shape.rank() != 3 || shape[0] != sizes.n_experts || shape[1] % n_leaves != 0 ||
      tensor.bytes.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected [", sizes.n_experts, " (expert_count), ",
        n_leaves == 2 ? "twice the width" : "rows", ", columns], got ", shape.ToString()));
  }
  const int64_t n = shape[0] * n_leaves;
  if (std::ssize(weights) + n > kMostMatrices) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected at most ", kMostMatrices, " matrices in all"));
  }
  const size_t bytes = tensor.bytes.size() / static_cast<size_t>(n);
  for (int64_t i = 0; i < n; ++i) {
    const GgufTensor part = {.type = tensor.type,
                             .shape = {shape[1] / n_leaves, shape[2]},
                             .bytes = tensor.bytes.subspan(static_cast<size_t>(i) * bytes, bytes)};
    weights.push_back(
        {.name = absl::StrCat(name_parts.layer, AbslView(architecture.experts.prefix), i / n_leaves,
                              ".", AbslView(leaves[static_cast<size_t>(i % n_leaves)]), "weight"),
         .shape = part.shape,
         .names = {name},
         .parts = {part},
         .write_row = {}});
  }
  return absl::OkStatus();
}

// Adds the weight or weights that a tensor of the file is, but for changes of their elements.
absl::Status AddWeights(const Architecture& architecture, const Sizes& sizes, const GgufFile& file,
                        const std::string& name, std::vector<GgufWeight>& weights) {
  const GgufTensor& tensor = file.tensors().at(name);
  const NameParts name_parts = SplitName(sizes, name);
  if (!name_parts.layer.starts_with("mtp.")) {
    if (!ExpertLeaves(architecture, name_parts.leaf).empty()) {
      return AddExperts(architecture, sizes, name, tensor, weights);
    }
    if (name_parts.leaf == "attn_k_b.weight") {
      ASSIGN_OR_RETURN(GgufWeight weight, KeyValueWeight(file, name, name_parts));
      weights.push_back(std::move(weight));
      return absl::OkStatus();
    }
    constexpr std::string_view kValues = "attn_v_b.weight";
    if (name_parts.leaf == kValues &&
        file.tensors().contains(
            absl::StrCat(name.substr(0, name.size() - kValues.size()), "attn_k_b.weight"))) {
      return absl::OkStatus();
    }
  }
  weights.push_back({.name = FamilyName(architecture, sizes, name),
                     .shape = tensor.shape,
                     .names = {name},
                     .parts = {tensor},
                     .write_row = {}});
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<GgufWeight>> GgufWeights(const GgufFile& file) {
  ASSIGN_OR_RETURN(const Architecture* const architecture, FindArchitecture(file));
  ArchitectureKeys keys(file, architecture->name);
  const Sizes sizes = ReadSizes(*architecture, keys);
  std::vector<GgufWeight> weights;
  std::map<std::string, std::string> by_family_name;
  absl::Status problems;
  for (const auto& [name, tensor] : file.tensors()) {
    const std::span<const std::string_view> fields = architecture->field_tensors;
    if (std::ranges::find(fields, std::string_view(name)) != fields.end()) continue;
    const auto wrong = [&, &name = name](const auto&... what) {
      AddProblems(problems,
                  absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(name), ": ", what...)));
    };
    size_t i = weights.size();
    const absl::Status status = AddWeights(*architecture, sizes, file, name, weights);
    if (!status.ok()) wrong(status.message());
    for (; i < weights.size(); ++i) {
      GgufWeight& weight = weights[i];
      SetChange(*architecture, sizes, weight);
      const BlockType& type = *tensor.type;
      if (weight.parts.size() == 1 && weight.shape[weight.shape.rank() - 1] % type.elements != 0) {
        wrong("expected F32, F16 or BF16, got ", AbslView(type.name));
      }
      const auto [other, is_new] = by_family_name.emplace(weight.name, name);
      if (!is_new) wrong("is ", weight.name, ", as is ", Quoted(other->second));
    }
  }
  if (!problems.ok()) return problems;
  return weights;
}

}  // namespace ovq::model
