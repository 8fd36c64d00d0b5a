// The fields of quantization_config and the forms that they choose are one file, because a form
// reads its tensors by what its fields said.
#include "model/quantization.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/problems.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace ovq::model {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kMethods[] = {"none", "fp8",  "compressed-tensors",
                                         "awq",  "gptq", "modelopt"};
constexpr int64_t kMaxBlock = 1 << 20;

std::string Joined(std::span<const std::string_view> words, absl::string_view by) {
  return absl::StrJoin(words, by, [](std::string* out, std::string_view w) { out->append(w); });
}

// Reads the fields of quantization_config, or of an object in it, and keeps the errors.
class FieldReader {
 public:
  FieldReader(const Json& object, std::string path) : object_(object), path_(std::move(path)) {}

  const absl::Status& status() const { return status_; }
  void Fail(std::string_view field, absl::string_view what) {
    AddProblems(status_,
                absl::InvalidArgumentError(absl::StrCat(path_, AbslView(field), ": ", what)));
  }
  Json at(const char* field) const { return object_.value(field, Json()); }
  // The field, which must be one of the choices; absent or null: the first.
  std::string Choice(const char* field, std::span<const std::string_view> choices) {
    const Json value = at(field);
    if (value.is_null()) return std::string(choices.front());
    const auto is_it = [&](std::string_view choice) { return value == choice; };
    if (std::ranges::any_of(choices, is_it)) return value.get<std::string>();
    Fail(field, absl::StrCat("expected one of ", Joined(choices, ", "), ", got ", value.dump()));
    return std::string(choices.front());
  }
  // Refuses any value but null, an empty one and `allowed`.
  void Only(const char* field, const Json& allowed, absl::string_view why) {
    const Json value = at(field);
    if (value.is_null() || value == allowed || (value.is_structured() && value.empty())) return;
    Fail(field, absl::StrCat("expected ", allowed.dump(), ", got ", value.dump(), ": ", why));
  }
  // A list of two sizes, the rows and columns of a block; absent or null: none.
  void Block(const char* field, QuantizationSpec& spec) {
    const Json value = at(field);
    if (value.is_null()) return;
    const auto is_size = [](const Json& size) {
      return size.is_number_integer() && size > 0 && size <= kMaxBlock;
    };
    if (!value.is_array() || value.size() != 2 || !std::ranges::all_of(value, is_size)) {
      return Fail(field,
                  absl::StrCat("expected two sizes in [1, ", kMaxBlock, "], got ", value.dump()));
    }
    spec.block_rows = value[0];
    spec.block_columns = value[1];
  }

 private:
  const Json& object_;
  const std::string path_;
  absl::Status status_;
};

void ReadBits(FieldReader& reader, std::span<const int> allowed, QuantizationSpec& spec) {
  const Json bits = reader.at("bits");
  const auto is_it = [&](int choice) { return bits == choice; };
  if (std::ranges::any_of(allowed, is_it)) {
    spec.bits = bits;
  } else {
    reader.Fail("bits",
                absl::StrCat("expected ", absl::StrJoin(allowed, " or "), ", got ", bits.dump()));
  }
}

absl::Status ReadCompressedTensors(const Json& object, QuantizationSpec& spec) {
  constexpr std::string_view kFormats[] = {"dense",           "int-quantized",  "float-quantized",
                                           "naive-quantized", "pack-quantized", "mixed-precision"};
  FieldReader reader(object, "quantization_config.");
  reader.Choice("format", kFormats);
  reader.Only("transform_config", Json::object(), "transformed weights are not supported");
  const Json sparsity = reader.at("sparsity_config");
  if (sparsity.is_object() && sparsity.value("format", Json("dense")) != "dense") {
    reader.Fail("sparsity_config.format", "expected \"dense\": sparse weights are not supported");
  }
  absl::Status problems = reader.status();
  const Json groups = reader.at("config_groups");
  for (const auto& [name, group] : groups.items()) {
    if (!group.is_object()) continue;
    FieldReader of_group(group, absl::StrCat("quantization_config.config_groups.", name, "."));
    of_group.Choice("format", kFormats);
    const Json weights = of_group.at("weights");
    if (weights.is_object()) {
      FieldReader of_weights(weights,
                             absl::StrCat("quantization_config.config_groups.", name, ".weights."));
      of_weights.Block("block_structure", spec);
      AddProblems(problems, of_weights.status());
    }
    AddProblems(problems, of_group.status());
  }
  return problems;
}

// Element i of a little-endian array that may begin at any address.
template <class T>
T Load(std::span<const std::byte> bytes, int64_t i) {
  T value;
  std::memcpy(&value, bytes.data() + static_cast<size_t>(i) * sizeof(T), sizeof(T));
  return value;
}

// Number i of those of `bits` bits that fill 32-bit words from their lowest bits.
uint32_t Packed(std::span<const std::byte> words, int64_t i, int bits) {
  const int in_word = 32 / bits;
  const auto shift = static_cast<uint32_t>(i % in_word * bits);
  return (Load<uint32_t>(words, i / in_word) >> shift) & ((1u << static_cast<uint32_t>(bits)) - 1);
}

// The value of each byte as a float with 4 bits of exponent (bias 7) and 3 of mantissa, without
// infinities; 0x7f and 0xff are NaN.
const std::array<float, 256>& E4M3() {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> values{};
    for (int code = 0; code < 256; ++code) {
      const int exponent = code >> 3 & 15, mantissa = code & 7;
      float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                  : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
      if ((code & 127) == 127) value = std::numeric_limits<float>::quiet_NaN();
      values[static_cast<size_t>(code)] = code < 128 ? value : -value;
    }
    return values;
  }();
  return table;
}

// Scales and zero points of the blocks of a matrix, or of equal matrices end to end.
struct Blocks {
  std::vector<float> scales, zeros;         // [matrices][row blocks][groups]; no zeros: all 0
  int64_t matrix_rows = 1, row_blocks = 1;  // of a matrix
  int64_t rows = 1;                         // of a block
  std::vector<int32_t> group;               // of each column
  int64_t n_groups = 1;

  // The place of the first group's scale for this row of all matrices.
  int64_t Place(int64_t row) const {
    return (row / matrix_rows * row_blocks + row % matrix_rows / rows) * n_groups;
  }
};

// Makes the weight `name` of the tensors whose names begin with `base`, and keeps the errors.
class Maker {
 public:
  Maker(const QuantizationSpec& spec, Weights& weights, std::string base, std::string name)
      : spec_(spec), weights_(weights), base_(std::move(base)), name_(std::move(name)) {}

  const absl::Status& status() const { return status_; }
  // Integers or 8-bit floats with one scale for each block: a matrix, or one for each expert.
  void MakeOfBytes(const StoredTensor& q);
  // compressed-tensors' integers of 4 or 8 bits, packed along a row.
  void MakeOfPacked(const StoredTensor& q);
  void MakeAwq(const StoredTensor& q);
  void MakeGptq(const StoredTensor& q);

 private:
  void Fail(absl::string_view leaf, absl::string_view what) {
    AddProblems(status_, absl::InvalidArgumentError(
                             absl::StrCat(weights_.FileNameFor(base_ + std::string(leaf)), ": ",
                                          base_, leaf, ": ", what)));
  }
  // The tensor, which must have one of these types; null: it is not there. It counts as used.
  const StoredTensor* Find(const char* leaf, std::span<const std::string_view> dtypes);
  // The tensor, which must have this shape too. It is an error if it is needed and not there.
  const StoredTensor* Find(const char* leaf, const kernels::Shape& shape, bool is_needed,
                           std::span<const std::string_view> dtypes);
  std::vector<float> Floats(const StoredTensor& tensor) const;
  // The blocks of a matrix [rows, columns], or of several [n, rows, columns], with those scales: of
  // the whole tensor, of each matrix, of rows, of groups of columns, or of rectangles.
  std::optional<Blocks> ReadBlocks(const char* leaf, const StoredTensor& scales,
                                   const kernels::Shape& shape);
  // Groups of the columns: by a list of them, or of this width.
  void SetGroups(const char* leaf, int64_t columns, int64_t width, Blocks& blocks);
  // Adds the weight of that shape with q(o, i) for the element before it is scaled, o counting the
  // rows of all matrices.
  template <class Code>
  void Add(const kernels::Shape& shape, Blocks blocks, Code q);

  const QuantizationSpec& spec_;
  Weights& weights_;
  const std::string base_, name_;
  std::vector<std::string> parts_;
  absl::Status status_;
};

constexpr std::string_view kFloatTypes[] = {"F32", "BF16", "F16"};
// Bytes are exponents e of scales 2^(e - 127).
constexpr std::string_view kScaleTypes[] = {"F32", "BF16", "F16", "F8_E8M0", "U8"};
constexpr std::string_view kWordTypes[] = {"I32", "U32"};
constexpr std::string_view kByteTypes[] = {"I8"}, kSizeTypes[] = {"I64", "I32"};
constexpr std::string_view kUnusedTypes[] = {"F8_E4M3", "F32", "BF16", "F16", "I8"};

const StoredTensor* Maker::Find(const char* leaf, std::span<const std::string_view> dtypes) {
  const auto it = weights_.tensors().find(base_ + leaf);
  if (it == weights_.tensors().end()) return nullptr;
  parts_.push_back(it->first);
  if (std::ranges::find(dtypes, it->second.dtype) != dtypes.end()) return &it->second;
  Fail(leaf, absl::StrCat("expected ", Joined(dtypes, " or "), ", got ", it->second.dtype));
  return nullptr;
}

const StoredTensor* Maker::Find(const char* leaf, const kernels::Shape& shape, bool is_needed,
                                std::span<const std::string_view> dtypes) {
  const bool is_there = weights_.tensors().contains(base_ + leaf);
  if (!is_there && is_needed) Fail(leaf, absl::StrCat("is missing; expected ", shape.ToString()));
  const StoredTensor* const tensor = Find(leaf, dtypes);
  if (tensor == nullptr || tensor->shape == shape) return tensor;
  Fail(leaf, absl::StrCat("expected ", shape.ToString(), ", got ", tensor->shape.ToString()));
  return nullptr;
}

std::vector<float> Maker::Floats(const StoredTensor& tensor) const {
  std::vector<float> values(static_cast<size_t>(tensor.shape.elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    if (tensor.dtype == "F32") {
      values[i] = Load<float>(tensor.bytes, at);
    } else if (tensor.dtype == "BF16") {
      values[i] = std::bit_cast<float>(uint32_t{Load<uint16_t>(tensor.bytes, at)} << 16);
    } else if (tensor.dtype == "F16") {
      values[i] = kernels::HalfToFloat(Load<uint16_t>(tensor.bytes, at));
    } else {
      values[i] = std::ldexp(1.0f, Load<uint8_t>(tensor.bytes, at) - 127);
    }
  }
  return values;
}

void Maker::SetGroups(const char* leaf, int64_t columns, int64_t width, Blocks& blocks) {
  const int64_t n_groups = blocks.n_groups;
  blocks.group.resize(static_cast<size_t>(columns));
  const StoredTensor* const list = Find(leaf, {columns}, /*is_needed=*/false, kWordTypes);
  const auto listed = [list](int64_t i) { return Load<int32_t>(list->bytes, i); };
  // compressed-tensors fills a list with -1 at first and takes one that has it for none.
  const bool may_be_unset = spec_.method == QuantizationMethod::kCompressedTensors;
  bool is_set = list != nullptr;
  for (int64_t i = 0; is_set && may_be_unset && i < columns; ++i) is_set = listed(i) != -1;
  for (int64_t i = 0; i < columns; ++i) {
    const int64_t group = is_set ? listed(i) : i / width;
    if (group < 0 || group >= n_groups) {
      return Fail(leaf, absl::StrCat("expected groups in [0, ", n_groups - 1, "], got ", group,
                                     " at [", i, "]"));
    }
    blocks.group[static_cast<size_t>(i)] = static_cast<int32_t>(group);
  }
}

std::optional<Blocks> Maker::ReadBlocks(const char* leaf, const StoredTensor& scales,
                                        const kernels::Shape& shape) {
  const auto ceil = [](int64_t n, int64_t by) { return (n + by - 1) / by; };
  const kernels::Shape& grid = scales.shape;
  const int rank = shape.rank();
  const int64_t rows = shape[rank - 2], columns = shape[rank - 1], n = rank == 2 ? 1 : shape[0];
  Blocks blocks;
  blocks.scales = Floats(scales);
  blocks.matrix_rows = rows;
  if (grid.elements() == 1) {
    blocks.matrix_rows = n * rows;
  } else if (grid.rank() == rank && (rank == 2 || grid[0] == n)) {
    blocks.row_blocks = grid[rank - 2];
    blocks.n_groups = grid[rank - 1];
  } else if (rank == 2 && grid == kernels::Shape{rows}) {
    blocks.row_blocks = rows;
  } else if (grid != kernels::Shape{n}) {
    blocks.row_blocks = 0;
  }
  int64_t width = 0;
  if (spec_.block_rows > 0 && blocks.row_blocks == ceil(rows, spec_.block_rows) &&
      blocks.n_groups == ceil(columns, spec_.block_columns)) {
    blocks.rows = spec_.block_rows;
    width = spec_.block_columns;
  } else if (blocks.row_blocks > 0 && blocks.n_groups > 0 &&
             blocks.matrix_rows % blocks.row_blocks == 0 && columns % blocks.n_groups == 0) {
    blocks.rows = blocks.matrix_rows / blocks.row_blocks;
    width = columns / blocks.n_groups;
  } else {
    Fail(leaf,
         absl::StrCat("expected one scale or a grid of equal blocks of ", shape.ToString(),
                      spec_.block_rows > 0 ? absl::StrCat(" or of blocks of ", spec_.block_rows,
                                                          " x ", spec_.block_columns)
                                           : "",
                      ", got ", grid.ToString()));
    return std::nullopt;
  }
  SetGroups("_g_idx", columns, width, blocks);
  return blocks;
}

template <class Code>
void Maker::Add(const kernels::Shape& shape, Blocks blocks, Code q) {
  if (!status_.ok()) return;
  const int64_t columns = shape[shape.rank() - 1];
  const auto shared = std::make_shared<const Blocks>(std::move(blocks));
  const auto write = [shared, columns, q](int64_t first, std::span<float> out) {
    const Blocks& of = *shared;
    for (size_t i = 0; i < out.size(); ++first) {
      const int64_t block = of.Place(first);
      for (int64_t column = 0; column < columns; ++column, ++i) {
        const auto at = static_cast<size_t>(block + of.group[static_cast<size_t>(column)]);
        out[i] = (q(first, column) - (of.zeros.empty() ? 0.0f : of.zeros[at])) * of.scales[at];
      }
    }
  };
  weights_.Add(name_, {shape, std::move(parts_), write});
}

void Maker::MakeOfBytes(const StoredTensor& q) {
  const int rank = q.shape.rank();
  if ((rank != 2 && rank != 3) || q.shape.elements() == 0) {
    return Fail("",
                absl::StrCat("expected a matrix or one for each expert, got ", q.shape.ToString()));
  }
  const int64_t columns = q.shape[rank - 1];
  parts_.push_back(base_);
  const bool is_inverse = weights_.tensors().contains(base_ + "_scale_inv");
  const char* const leaf = is_inverse ? "_scale_inv" : "_scale";
  const StoredTensor* const scales = Find(leaf, kScaleTypes);
  if (scales == nullptr) {
    if (status_.ok()) Fail(leaf, absl::StrCat("is missing, the scale of ", q.dtype));
    return;
  }
  std::optional<Blocks> blocks = ReadBlocks(leaf, *scales, q.shape);
  if (!blocks) return;
  const auto bytes = q.bytes;
  if (q.dtype == "I8") {
    const StoredTensor* const zeros =
        Find("_zero_point", scales->shape, /*is_needed=*/false, kByteTypes);
    for (int64_t i = 0; zeros != nullptr && i < zeros->shape.elements(); ++i) {
      blocks->zeros.push_back(Load<int8_t>(zeros->bytes, i));
    }
    return Add(q.shape, *std::move(blocks), [bytes, columns](int64_t row, int64_t column) {
      return static_cast<float>(Load<int8_t>(bytes, row * columns + column));
    });
  }
  Find("_zero_point", kUnusedTypes);  // some writers add it; floats are symmetric
  const float* const values = E4M3().data();
  Add(q.shape, *std::move(blocks), [bytes, columns, values](int64_t row, int64_t column) {
    return values[Load<uint8_t>(bytes, row * columns + column)];
  });
}

void Maker::MakeOfPacked(const StoredTensor& q) {
  parts_.push_back(base_ + "_packed");
  const StoredTensor* const shape = Find("_shape", {2}, /*is_needed=*/true, kSizeTypes);
  if (shape == nullptr) return;
  const auto size = [&](int64_t i) -> int64_t {
    return shape->dtype == "I64" ? Load<int64_t>(shape->bytes, i) : Load<int32_t>(shape->bytes, i);
  };
  const int64_t rows = size(0), columns = size(1);
  const auto words = [](int64_t n, int bits) { return (n + 32 / bits - 1) / (32 / bits); };
  int bits = 0;
  for (const int choice : {4, 8}) {
    const bool fits = q.shape.rank() == 2 && rows > 0 && columns > 0 && columns < INT32_MAX &&
                      q.shape == kernels::Shape{rows, words(columns, choice)};
    if (fits) bits = choice;
  }
  if (bits == 0) {
    return Fail("_packed", absl::StrCat("expected 4 or 8 bits for each element of [", rows, ", ",
                                        columns, "], got ", q.shape.ToString()));
  }
  const StoredTensor* const scales = Find("_scale", kScaleTypes);
  if (scales == nullptr) {
    if (status_.ok()) Fail("_scale", "is missing");
    return;
  }
  std::optional<Blocks> blocks = ReadBlocks("_scale", *scales, {rows, columns});
  if (!blocks) return;
  const int offset = 1 << (bits - 1);  // of the unsigned form of a signed integer
  const int64_t n_groups = blocks->n_groups;
  const StoredTensor* const zeros =
      Find("_zero_point", {words(rows, bits), n_groups}, /*is_needed=*/false, kWordTypes);
  for (int64_t i = 0; zeros != nullptr && i < rows * n_groups; ++i) {  // packed along the rows
    const int64_t row = i / n_groups, in_word = 32 / bits;
    const uint32_t word = Load<uint32_t>(zeros->bytes, row / in_word * n_groups + i % n_groups);
    const auto shift = static_cast<uint32_t>(row % in_word * bits);
    const uint32_t code = (word >> shift) & ((1u << static_cast<uint32_t>(bits)) - 1);
    blocks->zeros.push_back(static_cast<float>(static_cast<int>(code) - offset));
  }
  const int64_t stride = q.shape[1] * (32 / bits);
  const auto bytes = q.bytes;
  Add({rows, columns}, *std::move(blocks),
      [bytes, stride, bits, offset](int64_t row, int64_t column) {
        const auto code = static_cast<int>(Packed(bytes, row * stride + column, bits));
        return static_cast<float>(code - offset);
      });
}

// Fills in scales and zero points from tensors whose rows are groups of columns and whose columns
// are rows: scales [groups, rows], and zeros less `add`, modulo 2^bits, of which place(row) is the
// place in a group.
template <class Place>
void FillTransposed(const std::vector<float>& scales, std::span<const std::byte> zeros, int bits,
                    uint32_t add, int64_t rows, Place place, Blocks& blocks) {
  const int64_t n_groups = blocks.n_groups;
  const uint32_t most = (1u << static_cast<uint32_t>(bits)) - 1;
  for (int64_t i = 0; i < rows * n_groups; ++i) {
    const int64_t row = i / n_groups, group = i % n_groups;
    blocks.scales.push_back(scales[static_cast<size_t>(group * rows + row)]);
    const uint32_t zero = (Packed(zeros, group * rows + place(row), bits) + add) & most;
    blocks.zeros.push_back(static_cast<float>(zero));
  }
}

void Maker::MakeAwq(const StoredTensor& q) {
  constexpr int kInWord = 8;
  if (q.shape.rank() != 2 || q.shape.elements() == 0) {
    return Fail("qweight", absl::StrCat("expected a matrix, got ", q.shape.ToString()));
  }
  const int64_t columns = q.shape[0], rows = q.shape[1] * kInWord;
  parts_.push_back(base_ + "qweight");
  const StoredTensor* const scales = Find("scales", kFloatTypes);
  if (scales == nullptr || scales->shape.rank() != 2 || scales->shape[1] != rows ||
      scales->shape[0] < 1 || columns % scales->shape[0] != 0) {
    if (status_.ok()) {
      Fail("scales", absl::StrCat("expected [groups of ", columns, " inputs, ", rows, "], got ",
                                  scales == nullptr ? "none" : scales->shape.ToString()));
    }
    return;
  }
  const StoredTensor* const zeros =
      Find("qzeros", {scales->shape[0], q.shape[1]}, true, kWordTypes);
  if (zeros == nullptr) return;
  Blocks blocks;
  blocks.n_groups = scales->shape[0];
  SetGroups("g_idx", columns, (columns + blocks.n_groups - 1) / blocks.n_groups, blocks);
  // The numbers of a word lie in the order 0, 2, 4, 6, 1, 3, 5, 7; this is its inverse.
  const auto place = [](int64_t row) {
    constexpr int kPlaces[kInWord] = {0, 4, 1, 5, 2, 6, 3, 7};
    return row / kInWord * kInWord + kPlaces[row % kInWord];
  };
  FillTransposed(Floats(*scales), zeros->bytes, 4, /*add=*/0, rows, place, blocks);
  const auto bytes = q.bytes;
  Add({rows, columns}, std::move(blocks), [bytes, rows, place](int64_t row, int64_t column) {
    return static_cast<float>(Packed(bytes, column * rows + place(row), 4));
  });
}

void Maker::MakeGptq(const StoredTensor& q) {
  const int bits = spec_.bits, in_word = 32 / bits;
  if (q.shape.rank() != 2 || q.shape.elements() == 0 || q.shape[1] % in_word != 0) {
    return Fail("qweight", absl::StrCat("expected a matrix with a multiple of ", in_word,
                                        " columns, got ", q.shape.ToString()));
  }
  const int64_t columns = q.shape[0] * in_word, rows = q.shape[1];
  parts_.push_back(base_ + "qweight");
  const StoredTensor* const scales = Find("scales", kFloatTypes);
  if (scales == nullptr || scales->shape.rank() != 2 || scales->shape[1] != rows ||
      scales->shape[0] < 1 || scales->shape[0] > columns) {
    if (status_.ok()) {
      Fail("scales", absl::StrCat("expected [groups, ", rows, "], got ",
                                  scales == nullptr ? "none" : scales->shape.ToString()));
    }
    return;
  }
  const StoredTensor* const zeros =
      Find("qzeros", {scales->shape[0], rows / in_word}, true, kWordTypes);
  if (zeros == nullptr) return;
  Blocks blocks;
  blocks.n_groups = scales->shape[0];
  SetGroups("g_idx", columns, (columns + blocks.n_groups - 1) / blocks.n_groups, blocks);
  FillTransposed(
      Floats(*scales), zeros->bytes, bits, spec_.zeros_less_one ? 1 : 0, rows,
      [](int64_t row) { return row; }, blocks);
  const auto bytes = q.bytes;
  Add({rows, columns}, std::move(blocks),
      [bytes, rows, bits, in_word](int64_t row, int64_t column) {
        const auto word =
            Load<uint32_t>(bytes, column / in_word * rows + row);  // packed along inputs
        const auto shift = static_cast<uint32_t>(column % in_word * bits);
        return static_cast<float>((word >> shift) & ((1u << static_cast<uint32_t>(bits)) - 1));
      });
}

// Whether a tensor holds the scale of activations or of a KV cache, which are not quantized here.
bool IsActivationScale(std::string_view name) {
  constexpr std::string_view kLeaves[] = {".input_scale",      ".input_zero_point", ".output_scale",
                                          "_activation_scale", ".k_scale",          ".v_scale",
                                          ".q_scale",          "_input_scale"};
  return std::ranges::any_of(kLeaves, [&](std::string_view leaf) { return name.ends_with(leaf); });
}

// Whether a tensor holds integers or 8-bit floats that have scales: a weight, or all experts'.
bool IsOfBytes(const Weights& weights, const std::string& name, const StoredTensor& stored) {
  if (stored.dtype != "F8_E4M3" && stored.dtype != "I8") return false;
  return name.ends_with(".weight") || weights.tensors().contains(name + "_scale") ||
         weights.tensors().contains(name + "_scale_inv");
}

}  // namespace

std::string_view QuantizationName(QuantizationMethod method) {
  return kMethods[static_cast<size_t>(method)];
}

absl::Status ReadQuantization(const Json& object, QuantizationSpec& spec) {
  constexpr std::string_view kFp8Formats[] = {"e4m3"}, kAwqVersions[] = {"gemm"};
  constexpr std::string_view kModelOptForms[] = {"FP8"};
  constexpr std::string_view kGptqFormats[] = {"gptq", "gptq_v2"};
  constexpr int kFour[] = {4}, kFourOrEight[] = {4, 8};
  FieldReader reader(object, "quantization_config.");
  const Json name = reader.at("quant_method");
  const auto method = std::ranges::find_if(std::begin(kMethods) + 1, std::end(kMethods),
                                           [&](std::string_view known) { return name == known; });
  if (method == std::end(kMethods)) {
    reader.Fail("quant_method",
                absl::StrCat("expected one of ", Joined(std::span(kMethods).subspan(1), ", "),
                             ", got ", name.dump()));
    return reader.status();
  }
  spec.method = QuantizationMethod(method - std::begin(kMethods));
  switch (spec.method) {
    case QuantizationMethod::kNone:
      break;
    case QuantizationMethod::kFp8:
      reader.Choice("fmt", kFp8Formats);
      reader.Block("weight_block_size", spec);
      break;
    case QuantizationMethod::kCompressedTensors:
      return ReadCompressedTensors(object, spec);
    case QuantizationMethod::kAwq:
      ReadBits(reader, kFour, spec);
      reader.Choice("version", kAwqVersions);
      break;
    case QuantizationMethod::kGptq:
      ReadBits(reader, kFourOrEight, spec);
      spec.zeros_less_one = reader.Choice("checkpoint_format", kGptqFormats) == "gptq";
      break;
    case QuantizationMethod::kModelOpt:
      reader.Choice("quant_algo", kModelOptForms);
      break;
  }
  return reader.status();
}

absl::Status AddQuantized(const QuantizationSpec& spec, Weights& weights) {
  using Method = QuantizationMethod;
  if (spec.method == Method::kNone) return absl::OkStatus();
  absl::Status problems;
  for (const auto& [name, stored] : weights.tensors()) {
    if (IsActivationScale(name)) weights.MarkUsed(name);
    constexpr std::string_view kWords = "qweight", kPacked = "_packed";
    const auto without = [&](std::string_view end) {
      return name.substr(0, name.size() - end.size());
    };
    if (spec.method == Method::kAwq || spec.method == Method::kGptq) {
      if (!name.ends_with(".qweight")) continue;
      if (stored.dtype != "I32" && stored.dtype != "U32") {
        AddProblems(problems,
                    absl::InvalidArgumentError(absl::StrCat(weights.FileNameFor(name), ": ", name,
                                                            ": expected I32, got ", stored.dtype)));
        continue;
      }
      Maker maker(spec, weights, without(kWords), without(kWords) + "weight");
      spec.method == Method::kAwq ? maker.MakeAwq(stored) : maker.MakeGptq(stored);
      AddProblems(problems, maker.status());
    } else if (IsOfBytes(weights, name, stored)) {
      Maker maker(spec, weights, name, name);
      maker.MakeOfBytes(stored);
      AddProblems(problems, maker.status());
    } else if (name.ends_with(".weight_packed") && stored.dtype == "I32") {
      Maker maker(spec, weights, without(kPacked), without(kPacked));
      maker.MakeOfPacked(stored);
      AddProblems(problems, maker.status());
    }
  }
  return problems;
}

RoundingLoss MeasureLoss(const Weights& weights) {
  double squares = 0, of_bf16 = 0, of_int8 = 0;
  std::vector<float> row, rounded;
  for (const auto& [name, made] : weights.made()) {
    if (made.parts.empty()) continue;  // computed, not stored
    const int64_t width = made.shape.rank() == 0 ? 1 : made.shape[made.shape.rank() - 1];
    row.resize(static_cast<size_t>(width));
    rounded.resize(row.size());
    for (int64_t r = 0; width > 0 && r < made.shape.elements() / width; ++r) {
      made.write(r, row);
      float most = 0;
      for (size_t i = 0; i < row.size(); ++i) {
        rounded[i] = kernels::ToFloat(kernels::RoundToBF16(row[i]));
        most = std::max(most, std::abs(rounded[i]));
      }
      const float scale = most / 127;
      for (size_t i = 0; i < row.size(); ++i) {
        const double w = row[i], q = most > 0 ? std::nearbyint(rounded[i] / scale) * scale : 0;
        squares += w * w;
        of_bf16 += (rounded[i] - w) * (rounded[i] - w);
        of_int8 += (q - w) * (q - w);
      }
    }
  }
  if (squares == 0) return {};
  return {std::sqrt(of_bf16 / squares), std::sqrt(of_int8 / squares)};
}

}  // namespace ovq::model
