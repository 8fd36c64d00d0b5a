// Lower bounds from x . y of keys and of values with AVX-512 BF16: products of channel pairs,
// summed in float32 in the slot's lane. With AMX, tiles of 16 by 16 compute the same products from
// the same arrays; their order of sums differs, which the slack allows for.
#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/common/instruction_sets.h"
#include "kernels/mixers/closest_pair/distance_lower_bounds.h"
#include "kernels/mixers/common/block_attention.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace ovq::kernels {
namespace {

constexpr size_t ChannelPairs(int channels) { return (static_cast<size_t>(channels) + 1) / 2; }

#if defined(__x86_64__)
// GCC warns about operands that its own intrinsics leave uninitialised on purpose.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#define OVQ_BF16_DOTS __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

constexpr int kLanes = 16;
constexpr int kVectors = kBlockSlots / kLanes;
constexpr int kRowTile = 4;

// Slack subtracted from a bound, relative to |x|^2 + |y|^2. A float32 sum of at most 1,024 terms
// errs by up to 1,024 2^-24 = 6.1e-5. That counts once for |y|^2, twice for 2 x . y (which runs
// over values, then over keys) and twice for the exact distance, which is at most
// 2 (|x|^2 + |y|^2); the rest is a tenth of a sum.
constexpr float kSlack = 3.2e-4f;
// Dot products flush float32 subnormals to 0.
constexpr float kTiny = 1e-30f;

uint32_t PairAt(const float* x, int pair, int n) {
  const auto bits = [&](int c) { return c < n ? std::bit_cast<uint32_t>(x[c]) >> 16 : 0u; };
  return bits(2 * pair) | bits(2 * pair + 1) << 16;
}

float SquaredNorm(const float* x, int n) {
  double sum = 0;
  for (int c = 0; c < n; ++c) sum += static_cast<double>(x[c]) * x[c];
  return static_cast<float>(sum);
}

OVQ_BF16_DOTS inline __m512 Dot(__m512 sum, __m512i x, __m512i y) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(y));
}
OVQ_BF16_DOTS inline __m512i Widened(const uint16_t* at) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}

// packed[pair][slot] from keys [channel][slot].
OVQ_BF16_DOTS void PackKeys(const uint16_t* keys, int head_dim, uint32_t* packed) {
  for (int c = 0; c < head_dim; c += 2) {
    for (int v = 0; v < kVectors; ++v, packed += kLanes) {
      const uint16_t* low = keys + static_cast<size_t>(c) * kBlockSlots + v * kLanes;
      __m512i pair = Widened(low);
      if (c + 1 < head_dim) {
        pair = _mm512_or_si512(pair, _mm512_slli_epi32(Widened(low + kBlockSlots), 16));
      }
      _mm512_storeu_si512(packed, pair);
    }
  }
}

// packed[pair][slot] from values [slot][channel], in blocks of four by four.
void PackValues(const uint16_t* values, int value_stride, uint32_t* packed) {
  const auto stride = static_cast<size_t>(value_stride);
  for (size_t s = 0; s < kBlockSlots; s += 4) {
    for (size_t p = 0; p < stride / 2; p += 4) {
      __m128 a[4];
      for (size_t i = 0; i < 4; ++i) {
        a[i] = _mm_loadu_ps(reinterpret_cast<const float*>(values + (s + i) * stride + 2 * p));
      }
      _MM_TRANSPOSE4_PS(a[0], a[1], a[2], a[3]);
      for (size_t i = 0; i < 4; ++i) {
        _mm_storeu_ps(reinterpret_cast<float*>(packed + (p + i) * kBlockSlots + s), a[i]);
      }
    }
  }
}

// sum[row][vector] += x . y for n_pairs channel pairs of rows [row][stride] and a block [pair][64].
template <int kRows>
OVQ_BF16_DOTS inline void AddDots(const uint32_t* rows, size_t stride, size_t n_pairs,
                                  const uint32_t* block, __m512 (&sum)[kRows][kVectors]) {
  for (size_t p = 0; p < n_pairs; ++p, block += kBlockSlots) {
    __m512i slots[kVectors];
    for (int v = 0; v < kVectors; ++v) slots[v] = _mm512_loadu_si512(block + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const __m512i x =
          _mm512_set1_epi32(static_cast<int>(rows[static_cast<size_t>(r) * stride + p]));
      for (int v = 0; v < kVectors; ++v) sum[r][v] = Dot(sum[r][v], x, slots[v]);
    }
  }
}

// dots[row][64] = x . y of keys + scale x . y of values.
template <int kRows>
OVQ_BF16_DOTS void DotRows(const uint32_t* rows, size_t key_pairs, size_t n_pairs,
                           const uint32_t* block, float scale, float* dots) {
  __m512 sum[kRows][kVectors];
  for (auto& of_row : sum) {
    for (__m512& vector : of_row) vector = _mm512_setzero_ps();
  }
  AddDots<kRows>(rows + key_pairs, n_pairs, n_pairs - key_pairs, block + key_pairs * kBlockSlots,
                 sum);
  for (auto& of_row : sum) {
    for (__m512& vector : of_row) vector = _mm512_mul_ps(vector, _mm512_set1_ps(scale));
  }
  AddDots<kRows>(rows, n_pairs, key_pairs, block, sum);
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      _mm512_storeu_ps(dots + r * kBlockSlots + v * kLanes, sum[r][v]);
    }
  }
}

// squares[64] = |y|^2 of a block [pair][64], key and value together.
OVQ_BF16_DOTS void FillSquares(size_t key_pairs, size_t n_pairs, const uint32_t* block, float scale,
                               float* squares) {
  for (int s = 0; s < kBlockSlots; s += kLanes) {
    __m512 keys = _mm512_setzero_ps(), values = _mm512_setzero_ps();
    for (size_t p = 0; p < n_pairs; ++p) {
      const __m512i pair = _mm512_loadu_si512(block + p * kBlockSlots + s);
      __m512& sum = p < key_pairs ? keys : values;
      sum = Dot(sum, pair, pair);
    }
    _mm512_storeu_ps(squares + s, _mm512_fmadd_ps(_mm512_set1_ps(scale), values, keys));
  }
}

void DotAllRows(const uint32_t* rows, int n_rows, size_t key_pairs, size_t n_pairs,
                const uint32_t* block, float scale, float* dots) {
  for (int r = 0; r < n_rows;) {
    const bool whole = n_rows - r >= kRowTile;
    const auto dot = whole ? DotRows<kRowTile> : DotRows<1>;
    dot(rows + static_cast<size_t>(r) * n_pairs, key_pairs, n_pairs, block, scale,
        dots + r * kBlockSlots);
    r += whole ? kRowTile : 1;
  }
}

// noinline: a tile load does not tell the compiler what memory it reads; a call does.
#define OVQ_TILES __attribute__((target("amx-tile,amx-bf16"), noinline))
constexpr int kTile = 16;          // rows, and pairs of channels in a row
constexpr int kTileChannels = 32;  // head dimensions must be a multiple of it
constexpr int kMinTileRows = 3;    // smaller batches are faster without tiles

// True if the CPU has bfloat16 tiles and the system permits this process to use them.
bool HasTiles() {
  static const bool has = [] {
    constexpr unsigned kBf16 = 1u << 22, kTiles = 1u << 24, kBoth = kBf16 | kTiles;
    constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
    unsigned a, b, c, d;
    return MaxInstructionSet() >= InstructionSet::kAmx &&
           __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kBoth) == kBoth &&
           syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return has;
}

// All tiles have 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t n_rows[16] = {kTile, kTile, kTile, kTile, kTile, kTile, kTile, kTile};
};

// dots[row][64] = x . y of 16 rows [stride] and a block [pair][64].
OVQ_TILES void DotTiles(const uint32_t* rows, size_t stride, size_t n_pairs, const uint32_t* block,
                        float* dots) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (size_t p = 0; p < n_pairs; p += kTile, block += kTile * kBlockSlots) {
    _tile_loadd(4, rows + p, stride * sizeof(uint32_t));
    _tile_loadd(5, block, kBlockSlots * sizeof(uint32_t));
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(6, block + kTile, kBlockSlots * sizeof(uint32_t));
    _tile_dpbf16ps(1, 4, 6);
    _tile_loadd(5, block + 2 * kTile, kBlockSlots * sizeof(uint32_t));
    _tile_dpbf16ps(2, 4, 5);
    _tile_loadd(6, block + 3 * kTile, kBlockSlots * sizeof(uint32_t));
    _tile_dpbf16ps(3, 4, 6);
  }
  _tile_stored(0, dots, kBlockSlots * sizeof(float));
  _tile_stored(1, dots + kTile, kBlockSlots * sizeof(float));
  _tile_stored(2, dots + 2 * kTile, kBlockSlots * sizeof(float));
  _tile_stored(3, dots + 3 * kTile, kBlockSlots * sizeof(float));
}

OVQ_TILES void BeginTiles() {
  // Static, as compilers otherwise believe that only its first bytes are read.
  static constexpr TileConfig kConfig;
  _tile_loadconfig(&kConfig);
}
OVQ_TILES void EndTiles() { _tile_release(); }
#undef OVQ_TILES

// dots += scale values, for n elements.
OVQ_BF16_DOTS void AddScaled(const float* values, float scale, int n, float* dots) {
  const __m512 by = _mm512_set1_ps(scale);
  for (int i = 0; i < n; i += kLanes) {
    _mm512_storeu_ps(dots + i,
                     _mm512_fmadd_ps(by, _mm512_loadu_ps(values + i), _mm512_loadu_ps(dots + i)));
  }
}

// Packs a query, two channels a word, and returns |key|^2 + value_scale |value|^2.
float PackQuery(const PackedCandidates& packed, const LowerBoundQuery& query, uint32_t* to) {
  for (int p = 0; 2 * p < packed.head_dim; ++p) *to++ = PairAt(query.key, p, packed.head_dim);
  for (int p = 0; 2 * p < packed.value_stride; ++p) {
    *to++ = PairAt(query.value, p, packed.value_stride);
  }
  return SquaredNorm(query.key, packed.head_dim) +
         packed.value_scale * SquaredNorm(query.value, packed.value_stride);
}

OVQ_BF16_DOTS void FillLowerBounds(const PackedCandidates& packed,
                                   std::span<const LowerBoundQuery> queries, uint32_t* rows) {
  const auto n_rows = static_cast<int>(queries.size());
  const size_t key_pairs = ChannelPairs(packed.head_dim),
               value_pairs = ChannelPairs(packed.value_stride), n_pairs = key_pairs + value_pairs;
  float squares[kMaxLowerBoundQueries];
  const bool tiles = n_rows >= kMinTileRows && packed.head_dim % kTileChannels == 0 &&
                     packed.value_stride % kTileChannels == 0 && HasTiles();
  if (tiles) std::fill_n(rows, kMaxLowerBoundQueries * n_pairs, 0u);
  for (int r = 0; r < n_rows; ++r) {
    squares[r] = PackQuery(packed, queries[r], rows + static_cast<size_t>(r) * n_pairs);
  }
  alignas(64) float dots[kMaxLowerBoundQueries * kBlockSlots],
      of_values[kMaxLowerBoundQueries * kBlockSlots];
  const __m512 minus_two = _mm512_set1_ps(-2.0f), whole = _mm512_set1_ps(1 - kSlack),
               tiny = _mm512_set1_ps(kTiny),
               infinity = _mm512_set1_ps(std::numeric_limits<float>::infinity());
  if (tiles) BeginTiles();
  const uint32_t* block = packed.pairs;
  for (size_t b = 0; b < packed.n_blocks; ++b, block += n_pairs * kBlockSlots) {
    if (tiles) {
      DotTiles(rows, n_pairs, key_pairs, block, dots);
      DotTiles(rows + key_pairs, n_pairs, value_pairs, block + key_pairs * kBlockSlots, of_values);
      AddScaled(of_values, packed.value_scale, n_rows * kBlockSlots, dots);
    } else {
      DotAllRows(rows, n_rows, key_pairs, n_pairs, block, packed.value_scale, dots);
    }
    for (int s = 0; s < kBlockSlots; s += kLanes) {
      const size_t at = b * kBlockSlots + static_cast<size_t>(s);
      const __m512 others = _mm512_loadu_ps(packed.squares + at);
      for (int r = 0; r < n_rows; ++r) {
        const __m512 dot = _mm512_loadu_ps(dots + r * kBlockSlots + s);
        const __m512 both = _mm512_add_ps(others, _mm512_set1_ps(squares[r]));
        const __m512 lower_bound =
            _mm512_sub_ps(_mm512_fmadd_ps(minus_two, dot, _mm512_mul_ps(both, whole)), tiny);
        // A bound that is not finite is useless: it becomes 0.
        const __mmask16 known = _mm512_cmp_ps_mask(lower_bound, _mm512_setzero_ps(), _CMP_GT_OQ) &
                                _mm512_cmp_ps_mask(lower_bound, infinity, _CMP_LT_OQ);
        _mm512_storeu_ps(queries[r].lower_bounds + at, _mm512_maskz_mov_ps(known, lower_bound));
      }
    }
  }
  if (tiles) EndTiles();
}

OVQ_BF16_DOTS void MoveLowerBounds(const float* of_y, float share, float apart,
                                   std::span<float> of_x) {
  // Relative rounding error of the sum of these three terms stays below this.
  constexpr float kRounding = 1e-6f;
  const __m512 s = _mm512_set1_ps(share), rest = _mm512_set1_ps(1 - share),
               less = _mm512_set1_ps(share * (1 - share) * apart + kRounding * apart),
               rounding = _mm512_set1_ps(kRounding);
  for (size_t i = 0; i < of_x.size(); i += kLanes) {
    const __m512 x = _mm512_loadu_ps(of_x.data() + i), y = _mm512_loadu_ps(of_y + i);
    const __m512 whole = _mm512_sub_ps(_mm512_fmadd_ps(rest, x, _mm512_mul_ps(s, y)), less);
    const __m512 lower_bound = _mm512_fnmadd_ps(rounding, _mm512_add_ps(x, y), whole);
    const __mmask16 known = _mm512_cmp_ps_mask(lower_bound, _mm512_setzero_ps(), _CMP_GT_OQ);
    _mm512_storeu_ps(of_x.data() + i, _mm512_maskz_mov_ps(known, lower_bound));
  }
}
#undef OVQ_BF16_DOTS
#endif

}  // namespace

bool HasDistanceLowerBounds() {
#if defined(__x86_64__)
  return MaxInstructionSet() >= InstructionSet::kAvx512Bf16 &&
         __builtin_cpu_supports("avx512bf16") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0;
#else
  return false;
#endif
}

size_t PackedPairs(int head_dim, int value_stride) {
  return ChannelPairs(head_dim) + ChannelPairs(value_stride);
}

void PackCandidatesCpu([[maybe_unused]] std::span<const CandidateBlock> blocks,
                       [[maybe_unused]] const PackedCandidates& packed) {
#if defined(__x86_64__)
  const size_t key_pairs = ChannelPairs(packed.head_dim),
               n_pairs = PackedPairs(packed.head_dim, packed.value_stride);
  for (size_t b = 0; b < blocks.size(); ++b) {
    uint32_t* pairs = packed.pairs + b * n_pairs * kBlockSlots;
    PackKeys(static_cast<const uint16_t*>(blocks[b].keys), packed.head_dim, pairs);
    PackValues(static_cast<const uint16_t*>(blocks[b].values), packed.value_stride,
               pairs + key_pairs * kBlockSlots);
    FillSquares(key_pairs, n_pairs, pairs, packed.value_scale, packed.squares + b * kBlockSlots);
  }
#endif
}

void DistanceLowerBoundsCpu([[maybe_unused]] const PackedCandidates& packed,
                            [[maybe_unused]] std::span<const LowerBoundQuery> queries,
                            [[maybe_unused]] uint32_t* scratch) {
#if defined(__x86_64__)
  FillLowerBounds(packed, queries, scratch);
#endif
}

void MoveLowerBoundsCpu([[maybe_unused]] const float* of_y, [[maybe_unused]] float share,
                        [[maybe_unused]] float apart, [[maybe_unused]] std::span<float> of_x) {
#if defined(__x86_64__)
  MoveLowerBounds(of_y, share, apart, of_x);
#endif
}

}  // namespace ovq::kernels
