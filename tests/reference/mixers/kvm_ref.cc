// The reference of Key-Value Means, from the paper's section 4 and README.md in plain loops and
// double precision. It shares the state's layout with the other devices but no decisions or
// arithmetic. For one head with rows (sk, sv, sl) and window keys K and values V:
//   o_t = softmax(q_t [LN(sk) temp_s | K temp_f]^T) [sv / |sv| sl | V]
// When a chunk leaves the window, p_i = LN(k_i without masked channels) and gate g_i = 1 +
// elu(z_i): rows are appended, then
//   sk_r += sum_i g_i p_i,  sv_r += sum_i g_i v_i  over the tokens i merged into r.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/common/random.h"
#include "kernels/mixers/common/block_attention.h"
#include "kernels/mixers/kvm/kvm.h"
#include "tests/reference/mixers/attention_ref.h"
#include "tests/reference/reference_of.h"
#include "tests/reference/vectors.h"

namespace ovq::kernels {
namespace {

Vector LayerNorm(const KvmWeights& weights, const Vector& x) {
  const auto n = static_cast<double>(x.size());
  double mean = 0, variance = 0;
  for (double value : x) mean += value / n;
  for (double value : x) variance += (value - mean) * (value - mean) / n;
  Vector y;
  for (size_t c = 0; c < x.size(); ++c) {
    y.push_back((x[c] - mean) / std::sqrt(variance + 1e-5) * weights.norm_weight[c] +
                weights.norm_bias[c]);
  }
  return y;
}

// The number of rows that the budget allows in the chunk of `position`.
int64_t SlotsFor(const KvmLaw& law, int64_t position, int64_t cap) {
  using Real = long double;
  const int64_t chunk = position / law.chunk_len;
  if (chunk < law.window_chunks) return 0;
  const auto at = static_cast<Real>(chunk * law.chunk_len), n = static_cast<Real>(law.saturation_n);
  Real target = 0;
  if (law.budget == KvmBudget::kPowerLaw) {
    target = static_cast<Real>(law.factor) * std::pow(at, static_cast<Real>(law.exponent));
  }
  if (law.budget == KvmBudget::kSaturation) target = n * at / (n + at);
  const auto args = static_cast<Real>(law.round_down);
  target = std::floor(std::floor(target) / args) * args;
  target = std::max(target, static_cast<Real>(law.min_slots));
  // At most the tokens that have left the window, and at most the maximum.
  target = std::min(target, static_cast<Real>((chunk + 1 - law.window_chunks) * law.chunk_len));
  target = std::min(target, static_cast<Real>(law.max_chunks * law.chunk_len));
  return std::min(cap, std::max(law.chunk_len, static_cast<int64_t>(target)));
}

// One head of a session at the end of a chunk that pushes another one out of the window.
class FoldRef {
 public:
  FoldRef(const KvmArgs& args, const TokenRef& at, int64_t n_old, int64_t n_next)
      : args_(args), config_(args.config), at_(at), n_old_(n_old), n_next_(n_next) {
    const int n = static_cast<int>(config_.law.chunk_len);
    for (int i = 0; i < n; ++i) {
      keys_.push_back(WindowKey(i));
      for (double& x : keys_.back()) x /= args_.weights.front_temps[at_.kv_head];
      std::fill_n(keys_.back().begin(), config_.masked_dims, 0.0);
      keys_.back() = LayerNorm(args_.weights, keys_.back());
    }
    for (int64_t row = 0; row < n_old; ++row) AddSlotKey(row);
  }

  void Run() {
    const std::vector<int> appended = ChooseAppended();
    std::vector<bool> is_appended(keys_.size());
    for (size_t i = 0; i < appended.size(); ++i) {
      Append(appended[i], n_old_ + static_cast<int64_t>(i));
      AddSlotKey(n_old_ + static_cast<int64_t>(i));
      is_appended[appended[i]] = true;
    }
    std::vector<std::vector<int>> members(static_cast<size_t>(n_next_));
    for (int i = 0; i < static_cast<int>(keys_.size()); ++i) {
      if (!is_appended[i]) members[MergeTarget(i)].push_back(i);
    }
    for (int64_t row = 0; row < n_next_; ++row) MergeInto(row, members[row]);
    if (!config_.value_lengths && appended.size() < keys_.size()) {
      for (int64_t row = 0; row < n_next_; ++row) ++Length(row);
    }
    for (int64_t row = 0; row < n_next_; ++row) Refresh(row);
    MoveWindow();
  }

 private:
  Vector WindowKey(int i) const {
    const SlotRef slot = RecentSlotRef(args_, at_, i);
    std::vector<float> key(static_cast<size_t>(args_.blocks.shape.head_dim));
    LoadKey(slot.keys, args_.blocks.dtype, args_.blocks.shape.head_dim, slot.slot, key.data());
    return {key.begin(), key.end()};
  }
  Vector WindowValue(int i) const {
    const SlotRef slot = RecentSlotRef(args_, at_, i);
    std::vector<float> value(static_cast<size_t>(args_.blocks.shape.value_head_dim));
    LoadValue(slot.values, args_.blocks.dtype, args_.blocks.shape.value_head_dim,
              ValueStride(args_.blocks.shape.value_head_dim), slot.slot, value.data());
    return {value.begin(), value.end()};
  }
  void* BlockAt(const StatePlace& place, int64_t row) const {
    return place.At(at_.session, at_.kv_head, row / kBlockSlots);
  }
  Vector KeySum(int64_t row) const {
    std::vector<float> key(static_cast<size_t>(args_.blocks.shape.head_dim));
    LoadKey(BlockAt(args_.parts.key_sums, row), args_.blocks.dtype, args_.blocks.shape.head_dim,
            static_cast<int>(row % kBlockSlots), key.data());
    return {key.begin(), key.end()};
  }
  Vector ValueSum(int64_t row) const {
    std::vector<float> value(static_cast<size_t>(args_.blocks.shape.value_head_dim));
    LoadValue(BlockAt(args_.parts.value_sums, row), args_.blocks.dtype,
              args_.blocks.shape.value_head_dim, ValueStride(args_.blocks.shape.value_head_dim),
              static_cast<int>(row % kBlockSlots), value.data());
    return {value.begin(), value.end()};
  }
  float& Length(int64_t row) const {
    return static_cast<float*>(BlockAt(args_.parts.lengths, row))[row % kBlockSlots];
  }
  double Gate(int i) const {
    return config_.gated() ? *args_.parts.gates.At<float>(at_.session, at_.kv_head, i) : 1;
  }
  void AddSlotKey(int64_t row) { slot_keys_.push_back(LayerNorm(args_.weights, KeySum(row))); }

  // The tokens that become rows, in order of position: the first ones of the first chunk, later
  // those whose most similar row is least similar.
  std::vector<int> ChooseAppended() const {
    std::vector<double> nearness(keys_.size(), 0);
    for (size_t i = 0; n_old_ > 0 && i < keys_.size(); ++i) {
      nearness[i] = -std::numeric_limits<double>::infinity();
      for (int64_t row = 0; row < n_old_; ++row) {
        nearness[i] = std::max(nearness[i], Dot(keys_[i], slot_keys_[row]));
      }
    }
    std::vector<int> appended;
    std::vector<bool> taken(keys_.size());
    for (int64_t row = n_old_; row < n_next_; ++row) {
      int farthest = -1;
      for (int i = 0; i < static_cast<int>(keys_.size()); ++i) {
        if (!taken[i] && (farthest < 0 || nearness[i] < nearness[farthest])) farthest = i;
      }
      taken[farthest] = true;
      appended.push_back(farthest);
    }
    std::sort(appended.begin(), appended.end());
    return appended;
  }

  int64_t MergeTarget(int i) const {
    double best = -std::numeric_limits<double>::infinity();
    const int64_t first = std::min<int64_t>(config_.sink_len, n_next_ - 1);
    int64_t target = first;
    for (int64_t row = first; row < n_next_; ++row) {
      const double similarity = Dot(keys_[i], slot_keys_[row]);
      if (similarity > best) {
        best = similarity;
        target = row;
      }
    }
    return target;
  }

  void Append(int i, int64_t row) const {
    const bool first = n_old_ == 0;
    const double gate = (first ? config_.gate_first : config_.gate_appends) ? Gate(i) : 1;
    Vector key = keys_[i], value = WindowValue(i);
    const double whole = std::sqrt(Dot(value, value));
    for (double& x : key) x *= first || config_.gate_keys ? gate : 1;
    for (double& x : value) x *= first || config_.gate_values ? gate : 1;
    StoreSums(row, key, value);
    Length(row) = config_.value_lengths
                      ? static_cast<float>(first ? whole : std::sqrt(Dot(value, value)))
                      : 1;
  }

  void MergeInto(int64_t row, const std::vector<int>& members) const {
    if (members.empty()) return;
    Vector key = KeySum(row), value = ValueSum(row);
    for (int i : members) {
      const Vector v = WindowValue(i);
      for (size_t c = 0; c < key.size(); ++c) {
        key[c] += keys_[i][c] * (config_.gate_keys ? Gate(i) : 1);
      }
      for (size_t c = 0; c < value.size(); ++c) {
        value[c] += v[c] * (config_.gate_values ? Gate(i) : 1);
      }
    }
    StoreSums(row, key, value);
  }

  void StoreSums(int64_t row, const Vector& key, const Vector& value) const {
    const int slot = static_cast<int>(row % kBlockSlots);
    const std::vector<float> k = Rounded(key, row, 0), v = Rounded(value, row, 1);
    StoreKey(k.data(), args_.blocks.shape.head_dim, args_.blocks.dtype,
             BlockAt(args_.parts.key_sums, row), slot);
    StoreValue(v.data(), args_.blocks.shape.value_head_dim,
               ValueStride(args_.blocks.shape.value_head_dim), args_.blocks.dtype,
               BlockAt(args_.parts.value_sums, row), slot);
  }

  // Stochastic rounding to bfloat16: 16 random bits, drawn for (layer, head, row, channel, chunk),
  // are added below the bits that stay.
  std::vector<float> Rounded(const Vector& sums, int64_t row, uint32_t is_value) const {
    std::vector<float> rounded(sums.begin(), sums.end());
    const auto chunk = static_cast<uint64_t>(at_.position / config_.law.chunk_len);
    for (size_t c = 0; c < sums.size() && args_.blocks.dtype == DType::kBF16; ++c) {
      const auto words =
          Philox4x32({static_cast<uint32_t>(row), static_cast<uint32_t>(c / 8),
                      static_cast<uint32_t>(chunk), static_cast<uint32_t>(chunk >> 32)},
                     {static_cast<uint32_t>(2 * args_.blocks.layer) + is_value,
                      static_cast<uint32_t>(at_.kv_head)});
      const uint32_t random = words[c % 8 / 2] >> (c % 2 * 16) & 0xffff;
      const uint64_t bits = uint64_t{std::bit_cast<uint32_t>(rounded[c])} + random;
      rounded[c] = std::bit_cast<float>(static_cast<uint32_t>(bits >> 16) << 16);
    }
    return rounded;
  }

  // Recomputes a row's key and value, which attention reads.
  void Refresh(int64_t row) const {
    const int slot = static_cast<int>(row % kBlockSlots);
    const Vector normed = LayerNorm(args_.weights, KeySum(row)), sum = ValueSum(row);
    const double norm = std::max(std::sqrt(Dot(sum, sum)), 1e-12);
    std::vector<float> key, value;
    for (double x : normed) {
      key.push_back(static_cast<float>(x * args_.weights.state_temps[at_.kv_head]));
    }
    for (double x : sum) {
      value.push_back(
          static_cast<float>(config_.value_lengths ? x / norm * Length(row) : x / Length(row)));
      if (config_.round_values) value.back() = ToFloat(RoundToBF16(value.back()));
    }
    StoreKey(key.data(), args_.blocks.shape.head_dim, args_.blocks.dtype,
             BlockAt(args_.blocks.dictionary_keys.place, row), slot);
    StoreValue(value.data(), args_.blocks.shape.value_head_dim,
               ValueStride(args_.blocks.shape.value_head_dim), args_.blocks.dtype,
               BlockAt(args_.blocks.dictionary_values.place, row), slot);
  }

  void MoveWindow() const {
    const int n = static_cast<int>(config_.law.chunk_len);
    const int stay = static_cast<int>(config_.law.window_chunks - 1) * n;
    for (int i = 0; i < stay; ++i) {
      const Vector key = WindowKey(i + n), value = WindowValue(i + n);
      const std::vector<float> k(key.begin(), key.end()), v(value.begin(), value.end());
      const SlotRef to = RecentSlotRef(args_, at_, i);
      StoreKey(k.data(), args_.blocks.shape.head_dim, args_.blocks.dtype,
               const_cast<void*>(to.keys), to.slot);
      StoreValue(v.data(), args_.blocks.shape.value_head_dim,
                 ValueStride(args_.blocks.shape.value_head_dim), args_.blocks.dtype,
                 const_cast<void*>(to.values), to.slot);
      if (!config_.gated()) continue;
      *args_.parts.gates.At<float>(at_.session, at_.kv_head, i) = static_cast<float>(Gate(i + n));
    }
  }

  const KvmArgs& args_;
  const KvmRule& config_;
  const TokenRef& at_;
  const int64_t n_old_, n_next_;
  std::vector<Vector> keys_;       // keys of the leaving chunk, prepared for comparing and summing
  std::vector<Vector> slot_keys_;  // keys of the existing rows, prepared for comparing
};

void PassToken(const KvmArgs& args, const TokenRef& at) {
  const KvmLaw& law = args.config.law;
  const int64_t chunk = at.position / law.chunk_len,
                cap = args.blocks.live.HeadSlotCap(at.sequence, at.kv_head);
  const int64_t begin = std::max<int64_t>(0, (chunk + 1 - law.window_chunks) * law.chunk_len);
  const int64_t own = at.position - begin, n_live = SlotsFor(law, at.position, cap);
  std::vector<float> key(KeyRef(args, at), KeyRef(args, at) + args.blocks.shape.head_dim);
  for (float& x : key) x *= args.weights.front_temps[at.kv_head];
  StoreTokenRef(args, at, key.data(), own);
  if (args.config.gated()) {
    const double z = args.gate_logits[at.row * args.blocks.shape.n_heads + at.kv_head];
    *args.parts.gates.At<float>(at.session, at.kv_head, own) =
        static_cast<float>(z > 0 ? 1 + z : std::exp(z));
  }
  std::vector<SlotRef> slots;
  for (int64_t row = 0; row < n_live; ++row) {
    const auto block = [&](const BlockPlaces& places) {
      return places.At(at.session, at.sequence, at.kv_head, row / kBlockSlots);
    };
    slots.push_back({block(args.blocks.dictionary_keys), block(args.blocks.dictionary_values),
                     static_cast<int>(row % kBlockSlots), 0});
  }
  for (int64_t i = 0; i <= own; ++i) slots.push_back(RecentSlotRef(args, at, i));
  AttendTokenRef(args, at, slots);
  if ((at.position + 1) % law.chunk_len != 0 || chunk + 1 < law.window_chunks) return;
  FoldRef(args, at, n_live, SlotsFor(law, at.position + 1, cap)).Run();
}

}  // namespace

void KvmAttentionRef(DeviceContext&, const KvmArgs& args) {
  ForEachTokenRef(args, [&](const TokenRef& at) { PassToken(args, at); });
}

const ReferenceOf<KvmAttentionCpu> kKvm = KvmAttentionRef;

}  // namespace ovq::kernels
