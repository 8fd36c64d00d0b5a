// Sessions of random tokens that run through attention on CUDA in batches of any split.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kernels/mixers/common/block_attention.h"
#include "kernels/mixers/common/cuda/attend.h"
#include "kernels/mixers/common/slots.h"
#include "kernels/mixers/ovq/ovq.h"
#include "tests/test_util.h"

namespace ovq::kernels::test {

using cuda::Split;

inline constexpr float kBeta = 6;  // norm of queries: |q| = beta, |k| = 1

struct AttendConfig {
  std::string name;
  int n_heads, n_kv_heads, head_dim, value_head_dim;
  DType dtype, compute_dtype;
  int wave_span;
  bool by_chunk = false;  // the dictionary grows with the spans, up to n_slots; else it has n_slots
  int n_slots = 0;
  bool from_span = false;
  int window = 0;
  bool probe = false;
  int closed_from = 1 << 30;    // dictionary slots from here on have a bias of -infinity
  bool rounds_to_int8 = false;  // keys and values are exact in int8

  int value_stride() const { return ValueStride(value_head_dim); }
  int64_t key_bytes() const { return static_cast<int64_t>(BlockBytes(dtype, head_dim)); }
  int64_t value_bytes() const { return static_cast<int64_t>(BlockBytes(dtype, value_stride())); }
  int32_t ring() const { return window == 0 ? 0 : static_cast<int32_t>(1 + NumBlocks(window - 1)); }
  int64_t live_at(int64_t t) const {
    return by_chunk ? CentroidsAt(t / wave_span * wave_span, n_slots) : n_slots;
  }
  int64_t origin(int64_t t) const { return from_span ? t / wave_span * wave_span : 0; }
  // The oldest recent token that a query at t attends to.
  int64_t oldest(int64_t t) const {
    return window > 0 ? std::max<int64_t>(0, t - window + 1) : origin(t);
  }
  bool tensor_cores() const { return dtype != DType::kF32 && compute_dtype == DType::kBF16; }
};

// The compute dtype of models with states of this type.
inline DType ComputeFor(DType state) { return state == DType::kI8 ? DType::kBF16 : state; }

inline void PrintTo(const AttendConfig& config, std::ostream* out) { *out << config.name; }

// Rounds a key or a value to int8 values if the config asks for it.
inline void RoundRowFor(const AttendConfig& config, float* row, int n) {
  if (!config.rounds_to_int8) return;
  std::vector<Int8> rounded(static_cast<size_t>(n) + 1);
  const SlotRow<Int8> slot = {rounded.data(), 1, &rounded.back()};
  StoreNearest(row, n, 1, slot);
  slot.Load(n, row);
}

// A token's queries, keys and values: [n_heads + n_kv_heads][head_dim],
// [n_kv_heads][value_head_dim].
inline std::vector<float> TokenRow(const AttendConfig& config, int session, int64_t t) {
  const auto vectors = static_cast<size_t>(config.n_heads + config.n_kv_heads);
  const auto d = static_cast<size_t>(config.head_dim);
  const size_t n_values = static_cast<size_t>(config.n_kv_heads) * config.value_head_dim;
  std::vector<float> row = RandomNormal(
      vectors * d + n_values, static_cast<uint64_t>(t) * 16 + static_cast<uint64_t>(session));
  for (size_t i = 0; i < vectors; ++i) {
    float square = 0;
    for (size_t c = 0; c < d; ++c) square += row[i * d + c] * row[i * d + c];
    const bool is_query = i < static_cast<size_t>(config.n_heads);
    const float scale = (is_query ? kBeta : 1.0f) / std::sqrt(square);
    for (size_t c = 0; c < d; ++c) {
      float& x = row[i * d + c];
      x *= scale;
      if (config.compute_dtype == DType::kBF16) x = ToFloat(RoundToBF16(x));
    }
    if (!is_query) RoundRowFor(config, row.data() + i * d, config.head_dim);
  }
  for (int h = 0; h < config.n_kv_heads; ++h) {
    RoundRowFor(config, row.data() + vectors * d + static_cast<size_t>(h * config.value_head_dim),
                config.value_head_dim);
  }
  return row;
}

// Sessions in the memory of the device, and the same bytes on the host.
class Sessions {
 public:
  struct Session {
    int64_t start;
    int n_tokens;
    std::vector<std::byte> host;  // expected bytes: every token stored when it comes
    Buffer device;
    int done = 0;
    std::vector<float> out;  // outputs of the processed tokens
  };

  // No session without a ring or a span goes beyond `end`.
  Sessions(const AttendConfig& config, DeviceContext& context, int64_t end)
      : config_(config), context_(context) {
    Place(end);
  }

  void Add(int64_t start, int n_tokens) {
    Session session = {.start = start, .n_tokens = n_tokens, .host = {}, .device = {}, .out = {}};
    const int index = static_cast<int>(sessions_.size());
    const std::vector<float> noise =
        RandomNormal(static_cast<size_t>(bytes_), 77 + static_cast<uint64_t>(index));
    session.host.resize(static_cast<size_t>(bytes_));
    FillNoise(session.host, noise);
    for (int64_t t = config_.oldest(start); t < start; ++t) Store(session, index, t);
    sessions_.push_back(std::move(session));
  }

  // Changes the host's bytes of all sessions before they are used.
  template <class Fn>
  void Edit(Fn fn) {
    for (Session& session : sessions_) fn(session.host.data());
  }

  // Runs the tokens of all sessions, `batch_tokens` of each at a time, with padding if it is 1.
  void Run(int batch_tokens, Split split) {
    for (Session& session : sessions_) {
      if (session.device.bytes() == 0) {
        session.device = context_.Upload(session.host.data(), session.host.size());
      }
    }
    while (RunBatch(batch_tokens, split)) {
    }
  }

  // Resets all sessions to before their first token.
  void Restart() {
    for (Session& session : sessions_) {
      session.done = 0;
      session.out.clear();
      session.device = {};
    }
  }

  std::vector<Session>& list() { return sessions_; }
  const AttentionBlocks& blocks() const { return blocks_; }
  int64_t bytes() const { return bytes_; }

  // The host's copy of the device's bytes.
  std::vector<std::byte> Fetch(const Session& session) {
    std::vector<std::byte> bytes(session.host.size());
    context_.CopyToHost(bytes.data(), session.device.as<std::byte>(), bytes.size());
    return bytes;
  }
  template <class T>
  T* At(std::byte* state, const BlockPlaces& places, int head, int64_t i) const {
    return places.At<T>(state, 0, head, i);
  }
  // Bytes that the probes write.
  int64_t probe_begin() const { return static_cast<int64_t>(blocks_.best_score.offset); }

 private:
  void Place(int64_t end) {
    const int64_t heads = config_.n_kv_heads;
    blocks_.shape = {.n_heads = config_.n_heads,
                     .n_kv_heads = config_.n_kv_heads,
                     .head_dim = config_.head_dim,
                     .value_head_dim = config_.value_head_dim};
    blocks_.dtype = config_.dtype;
    blocks_.compute_dtype = config_.compute_dtype;
    blocks_.wave_span = config_.wave_span;
    if (config_.by_chunk) {
      growths_ = {GrowsByChunk(config_.wave_span, config_.n_slots)};
    } else {
      blocks_.fixed_live = config_.n_slots;
    }
    blocks_.recent_spans = config_.from_span ? 1 : 0;
    blocks_.window = config_.window;
    blocks_.probe = config_.probe;
    recent_ = config_.ring() > 0  ? config_.ring()
              : config_.from_span ? NumBlocks(config_.wave_span)
                                  : NumBlocks(end);
    const int64_t keys = config_.key_bytes(), values = config_.value_bytes();
    const auto at = [](int64_t offset, int64_t head_stride, int64_t index_stride) {
      return StatePlace{static_cast<size_t>(offset), static_cast<size_t>(head_stride),
                        static_cast<size_t>(index_stride)};
    };
    blocks_.recent_keys = {.place = at(0, recent_ * keys, keys), .ring = config_.ring()};
    blocks_.recent_values = {.place = at(heads * recent_ * keys, recent_ * values, values),
                             .ring = config_.ring()};
    dictionary_begin_ = heads * recent_ * (keys + values);
    const int64_t bias = kBlockSlots * sizeof(float), of_head = bias + keys + values;
    const auto in_block = [&](int64_t offset) {
      return BlockPlaces{at(dictionary_begin_ + offset, of_head, heads * of_head)};
    };
    blocks_.dictionary_bias = in_block(0);
    blocks_.dictionary_keys = in_block(bias);
    blocks_.dictionary_values = in_block(bias + keys);
    const int64_t dictionary = NumBlocks(config_.n_slots);
    const int64_t best = dictionary_begin_ + dictionary * heads * of_head;
    const int64_t span = std::max(config_.wave_span, 1);
    blocks_.best_score = at(best, span * 4, 4);
    blocks_.best_slot = at(best + heads * span * 4, span * 4, 4);
    bytes_ = best + 2 * heads * span * 4;
  }

  // Fills with finite noise, like old contents of a slot; keys of a length about 1, and below 2.
  void FillNoise(std::vector<std::byte>& bytes, const std::vector<float>& noise) const {
    const size_t element = DTypeBytes(config_.dtype);
    const float scale = 1 / std::sqrt(static_cast<float>(config_.head_dim));
    for (size_t i = 0; element > 1 && i * element < static_cast<size_t>(probe_begin()); ++i) {
      const float x = noise[i] * scale;
      const BF16 rounded = RoundToBF16(x);
      std::memcpy(bytes.data() + i * element,
                  element == 2 ? static_cast<const void*>(&rounded) : &x, element);
    }
    if (element == 1 || config_.rounds_to_int8) FillRows(bytes, noise, scale);
    for (int64_t b = 0; b < NumBlocks(config_.n_slots); ++b) {
      for (int h = 0; h < config_.n_kv_heads; ++h) {
        float* bias = At<float>(bytes.data(), blocks_.dictionary_bias, h, b);
        void* values = At<void>(bytes.data(), blocks_.dictionary_values, h, b);
        for (int i = 0; i < kBlockSlots; ++i) {
          bias[i] = b * kBlockSlots + i < config_.closed_from
                        ? std::log(1.0f + static_cast<float>(i % 9))
                        : -std::numeric_limits<float>::infinity();
          const float* value = noise.data() + (b * 7 + h) * kBlockSlots + i;
          std::vector<float> row(value, value + config_.value_head_dim);
          RoundRowFor(config_, row.data(), config_.value_head_dim);
          StoreValue(row.data(), config_.value_head_dim, config_.value_stride(), config_.dtype,
                     values, i);
        }
      }
    }
  }

  // Row by row, with the same values in every storage type.
  void FillRows(std::vector<std::byte>& bytes, const std::vector<float>& noise, float scale) const {
    size_t at = 0;
    const auto next = [&](int n) {
      if (at + static_cast<size_t>(n) > noise.size()) at = 0;
      std::vector<float> row(noise.begin() + static_cast<std::ptrdiff_t>(at),
                             noise.begin() + static_cast<std::ptrdiff_t>(at) + n);
      at += static_cast<size_t>(n);
      for (float& x : row) x *= scale;
      RoundRowFor(config_, row.data(), n);
      return row;
    };
    const auto fill = [&](const BlockPlaces& keys, const BlockPlaces& values, int64_t blocks) {
      for (int64_t b = 0; b < blocks; ++b) {
        for (int h = 0; h < config_.n_kv_heads; ++h) {
          for (int slot = 0; slot < kBlockSlots; ++slot) {
            StoreKey(next(config_.head_dim).data(), config_.head_dim, config_.dtype,
                     At<void>(bytes.data(), keys, h, b), slot);
            StoreValue(next(config_.value_head_dim).data(), config_.value_head_dim,
                       config_.value_stride(), config_.dtype, At<void>(bytes.data(), values, h, b),
                       slot);
          }
        }
      }
    };
    fill(blocks_.recent_keys, blocks_.recent_values, recent_);
    fill(blocks_.dictionary_keys, blocks_.dictionary_values, NumBlocks(config_.n_slots));
  }

  void Store(Session& session, int index, int64_t t) {
    const std::vector<float> row = TokenRow(config_, index, t);
    const float* key = row.data() + int64_t{config_.n_heads} * config_.head_dim;
    const float* value = key + int64_t{config_.n_kv_heads} * config_.head_dim;
    const int64_t at = t - config_.origin(t);
    const int slot = static_cast<int>(at % kBlockSlots);
    for (int h = 0; h < config_.n_kv_heads; ++h) {
      StoreKey(key + int64_t{h} * config_.head_dim, config_.head_dim, config_.dtype,
               At<void>(session.host.data(), blocks_.recent_keys, h, at / kBlockSlots), slot);
      StoreValue(value + int64_t{h} * config_.value_head_dim, config_.value_head_dim,
                 config_.value_stride(), config_.dtype,
                 At<void>(session.host.data(), blocks_.recent_values, h, at / kBlockSlots), slot);
    }
  }

  // The next tokens of all sessions. owner: index of the session, list().size() for padding.
  struct Batch {
    std::vector<int32_t> token_begin = {0}, caps;
    std::vector<int64_t> start_pos;
    std::vector<std::byte*> states;
    std::vector<size_t> owners;
    std::vector<float> rows;

    void End(int n, int64_t start, int cap, std::byte* state, size_t owner) {
      token_begin.push_back(token_begin.back() + n);
      start_pos.push_back(start);
      caps.push_back(cap);
      states.push_back(state);
      owners.push_back(owner);
    }
  };

  Batch Gather(int batch_tokens) {
    Batch batch;
    const size_t n_row = TokenRow(config_, 0, 0).size();
    for (size_t s = 0; s < sessions_.size(); ++s) {
      Session& session = sessions_[s];
      const int n = std::min(batch_tokens, session.n_tokens - session.done);
      if (n == 0) continue;
      if (batch_tokens == 1) {
        batch.rows.resize(batch.rows.size() + n_row, std::numeric_limits<float>::quiet_NaN());
        batch.End(1, 0, config_.n_slots, nullptr, sessions_.size());
      }
      for (int i = 0; i < n; ++i) {
        const int64_t t = session.start + session.done + i;
        const std::vector<float> row = TokenRow(config_, static_cast<int>(s), t);
        batch.rows.insert(batch.rows.end(), row.begin(), row.end());
        Store(session, static_cast<int>(s), t);
      }
      batch.End(n, session.start + session.done, config_.n_slots, session.device.as<std::byte>(),
                s);
    }
    return batch;
  }

  bool RunBatch(int batch_tokens, Split split) {
    const Batch batch = Gather(batch_tokens);
    if (batch.owners.empty()) return false;
    const BatchSequences seqs = {.token_begin = batch.token_begin,
                                 .start_pos = batch.start_pos,
                                 .slot_cap = batch.caps,
                                 .state = batch.states,
                                 .device = {}};
    StagedBatch staged = StageBatch(context_, seqs, growths_);
    if (config_.by_chunk) blocks_.live = staged.live[0];
    const std::vector<int64_t> no_positions(batch.owners.size(), -1);
    const std::vector<std::byte*> no_states(batch.owners.size(), nullptr);
    if (batch_tokens == 1) {  // as in a replayed batch: the host has the shape and bounds for more
      staged.seqs.start_pos = no_positions;
      staged.seqs.state = no_states;
      if (config_.wave_span > 0) staged.seqs.end_bound = int64_t{1} << 42;
    }
    const int32_t n_tokens = batch.token_begin.back();
    const int64_t n_out = int64_t{config_.n_heads} * config_.value_head_dim;
    std::vector<float> outs(static_cast<size_t>(n_tokens * n_out), -1.0f);
    const Buffer in = context_.Upload(batch.rows.data(), batch.rows.size() * sizeof(float));
    const Buffer out = context_.Upload(outs.data(), outs.size() * sizeof(float));
    const auto k = int64_t{config_.n_heads} * config_.head_dim;
    const AttentionTensors tokens = {
        .q = in.as<float>(),
        .k = in.as<float>() + k,
        .v = in.as<float>() + k + int64_t{config_.n_kv_heads} * config_.head_dim,
        .stride = static_cast<int64_t>(batch.rows.size()) / n_tokens,
        .out = out.as<float>(),
        .out_dtype = DType::kF32};
    cuda::AttendWaves(context_, {blocks_, staged.seqs, tokens}, split);
    context_.CopyToHost(outs.data(), out.as<float>(), outs.size() * sizeof(float));
    for (size_t i = 0; i < batch.owners.size(); ++i) {
      if (batch.owners[i] == sessions_.size()) continue;
      Session& session = sessions_[batch.owners[i]];
      session.out.insert(session.out.end(), outs.begin() + batch.token_begin[i] * n_out,
                         outs.begin() + batch.token_begin[i + 1] * n_out);
      session.done += batch.token_begin[i + 1] - batch.token_begin[i];
    }
    return true;
  }

  const AttendConfig& config_;
  DeviceContext& context_;
  AttentionBlocks blocks_;
  int64_t recent_ = 0, dictionary_begin_ = 0, bytes_ = 0;
  std::vector<Growth> growths_;
  std::vector<Session> sessions_;
};

}  // namespace ovq::kernels::test
