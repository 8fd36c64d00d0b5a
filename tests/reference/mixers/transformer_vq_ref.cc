// The reference of one head of Transformer-VQ's attention, in double. With score_t(n) = (q_t + c
// xl_u) . code_n, z_j the code nearest to k_j and M = mem_len, for all j <= t:
//   s_tj = score_t(z_j) + (t - j <= M ? (q_t + c xl_v) . R_{t-j} : 0)
//   y_t = sum_j e^{s_tj} silu(v_j) / sum_j e^{s_tj}
// Positions that have joined their code's mean stand for `count` equal terms. Without means, the
// sums are over t - j <= M.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/mixers/transformer_vq/transformer_vq.h"
#include "tests/reference/reference_of.h"

namespace ovq::kernels {
namespace {

// A session's state, one element at a time.
class HeadState {
 public:
  HeadState(const TransformerVqArgs& args, std::byte* session)
      : shape_(args.shape),
        values_(reinterpret_cast<float*>(session + args.values)),
        counts_(reinterpret_cast<uint32_t*>(session + args.counts)),
        codes_(reinterpret_cast<int32_t*>(session + args.codes)) {}

  uint32_t& count(int32_t code) { return counts_[code]; }
  int32_t& code(int64_t position) { return codes_[position % shape_.ring()]; }
  float& mean(int32_t code, int channel) { return At(code, channel); }
  float& recent(int64_t position, int channel) {
    return At(shape_.n_means() + position % shape_.ring(), channel);
  }

 private:
  float& At(int64_t slot, int channel) {
    const int64_t slice = channel / kValueSlice;
    return values_[(slice * shape_.slots() + slot) * kValueSlice + channel % kValueSlice];
  }
  const TransformerVqShape& shape_;
  float* values_;
  uint32_t* counts_;
  int32_t* codes_;
};

struct Token {
  int64_t row, position;
};

// argmin |k - code|^2 = argmin |code|^2 / 2 - k . code, ties to the lowest code.
int32_t NearestCode(const TransformerVqArgs& args, int64_t row) {
  const int64_t n = args.shape.n_codes;
  const float* product = args.scores + (args.seqs.n_tokens() + row) * n;
  double least = std::numeric_limits<double>::infinity();
  int32_t nearest = 0;
  for (int32_t j = 0; j < n; ++j) {
    const double distance = double{args.half_norms[j]} - product[j];
    if (distance < least) {
      least = distance;
      nearest = j;
    }
  }
  return nearest;
}

void Store(const TransformerVqArgs& args, const Token& token, HeadState& state) {
  state.code(token.position) = NearestCode(args, token.row);
  for (int c = 0; c < args.shape.value_dim; ++c) {
    const double v = args.tokens[token.row * args.token_stride + c];
    state.recent(token.position, c) = static_cast<float>(v / (1 + std::exp(-v)));
  }
}

void Attend(const TransformerVqArgs& args, const Token& token, HeadState& state) {
  const TransformerVqShape& shape = args.shape;
  const int64_t t = token.position, span_begin = t / kTransformerVqSpan * kTransformerVqSpan;
  const float* scores = args.scores + token.row * shape.n_codes;
  const float* relative = args.relative + token.row * (shape.mem_len + 1);
  // A term of the sums: its exponent, its multiplicity and the place of its value.
  struct Term {
    double exponent, times;
    bool is_mean;
    int64_t place;
  };
  std::vector<Term> terms;
  for (int32_t n = 0; n < shape.n_means(); ++n) {
    if (state.count(n) > 0) terms.push_back({scores[n], double(state.count(n)), true, n});
  }
  for (int64_t j = shape.first(span_begin); j <= t; ++j) {
    const int64_t distance = t - j;
    if (distance > shape.mem_len && !shape.has_means) continue;
    const double bias = distance <= shape.mem_len ? relative[distance] : 0;
    terms.push_back({scores[state.code(j)] + bias, 1, false, j});
  }
  double max = -std::numeric_limits<double>::infinity(), sum = 0;
  for (const Term& term : terms) max = std::max(max, term.exponent);
  for (const Term& term : terms) sum += term.times * std::exp(term.exponent - max);
  for (int c = 0; c < shape.value_dim; ++c) {
    double y = 0;
    for (const Term& term : terms) {
      const float value = term.is_mean ? state.mean(static_cast<int32_t>(term.place), c)
                                       : state.recent(term.place, c);
      y += term.times * std::exp(term.exponent - max) * value;
    }
    args.tokens[token.row * args.token_stride + c] = static_cast<float>(y / sum);
  }
}

// After the last token of a span: merges the positions that the next span's tokens do not find in
// the ring.
void Merge(const TransformerVqArgs& args, int64_t span_begin, HeadState& state) {
  if (!args.shape.has_means) return;
  const int64_t end = args.shape.first(span_begin + kTransformerVqSpan);
  for (int64_t j = args.shape.first(span_begin); j < end; ++j) {
    const int32_t code = state.code(j);
    uint32_t& count = state.count(code);
    if (count < std::numeric_limits<uint32_t>::max()) ++count;
    for (int c = 0; c < args.shape.value_dim; ++c) {
      const double mean = state.mean(code, c);
      state.mean(code, c) = static_cast<float>(mean + (state.recent(j, c) - mean) / count);
    }
  }
}

}  // namespace

void TransformerVqRef(DeviceContext&, const TransformerVqArgs& args) {
  for (int s = 0; s < args.seqs.n_seqs(); ++s) {
    HeadState state(args, args.seqs.state[s]);
    for (int64_t row = args.seqs.token_begin[s]; row < args.seqs.token_begin[s + 1]; ++row) {
      const Token token = {row, args.seqs.start_pos[s] + row - args.seqs.token_begin[s]};
      Store(args, token, state);
      Attend(args, token, state);
      const int64_t next = token.position + 1;
      if (next % kTransformerVqSpan == 0) Merge(args, next - kTransformerVqSpan, state);
    }
  }
}

const ReferenceOf<TransformerVqCpu> kTransformerVq = TransformerVqRef;

}  // namespace ovq::kernels
