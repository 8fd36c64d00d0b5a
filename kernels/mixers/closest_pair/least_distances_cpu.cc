// x . y of keys and of values by the dot products of AVX-512 BF16: pairs of channels, summed up in
// float32 in a lane. Lanes are slots for keys, which lie [head_dim][64], and rows of the batch for
// values, which lie [64][value_stride]. Where there is AMX, tiles of 16 by 16 take the same
// products from the same arrays; the order of a sum is another one, which the slack allows.
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "kernels/mixers/closest_pair/least_distances.h"
#include "kernels/mixers/common/block_attention.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace ovq {
namespace {

constexpr size_t PairsOf(int channels) { return (static_cast<size_t>(channels) + 1) / 2; }

#if defined(__x86_64__)
// GCC takes the operands that its own intrinsics leave open for mistakes.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#define OVQ_BF16_DOTS __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

constexpr int kLanes = kLeastTogether;
constexpr int kVectors = kBlockSlots / kLanes;
constexpr int kRowTile = 4;    // of keys
constexpr int kValueTile = 8;  // slots
constexpr int kFewRows = 4;    // are not worth a lane each

// What is subtracted, relative to |x|^2 + |y|^2. Sums of at most 1,024 terms in float32 err by up
// to 1,024 2^-24 = 6.1e-5: that of |y|^2, that of 2 x . y, and that of the distance that this is
// compared with, which is at most 2 (|x|^2 + |y|^2), makes twice as much; a tenth of a sum for all
// the rest.
constexpr float kSlack = 2.6e-4f;
// Numbers that are too small for float32 count as 0 in dot products.
constexpr float kTiny = 1e-30f;

uint32_t PairAt(const float* x, int pair, int n) {
  const auto bits = [&](int c) { return c < n ? std::bit_cast<uint32_t>(x[c]) >> 16 : 0u; };
  return bits(2 * pair) | bits(2 * pair + 1) << 16;
}

float SquareOf(const float* x, int n) {
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

// pairs[pair][slot]
OVQ_BF16_DOTS void PairChannels(const uint16_t* keys, int head_dim, uint32_t* pairs) {
  for (int c = 0; c < head_dim; c += 2) {
    for (int v = 0; v < kVectors; ++v, pairs += kLanes) {
      const uint16_t* low = keys + static_cast<size_t>(c) * kBlockSlots + v * kLanes;
      __m512i pair = Widened(low);
      if (c + 1 < head_dim) {
        pair = _mm512_or_si512(pair, _mm512_slli_epi32(Widened(low + kBlockSlots), 16));
      }
      _mm512_storeu_si512(pairs, pair);
    }
  }
}

// dots[row][64]
template <int kRows>
OVQ_BF16_DOTS void DotKeys(const uint32_t* rows, size_t n_pairs, const uint32_t* block,
                           float* dots) {
  __m512 sum[kRows][kVectors];
  for (auto& of_row : sum) {
    for (__m512& vector : of_row) vector = _mm512_setzero_ps();
  }
  for (size_t p = 0; p < n_pairs; ++p) {
    __m512i keys[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      keys[v] = _mm512_loadu_si512(block + p * kBlockSlots + static_cast<size_t>(v) * kLanes);
    }
    for (int r = 0; r < kRows; ++r) {
      const __m512i x =
          _mm512_set1_epi32(static_cast<int>(rows[static_cast<size_t>(r) * n_pairs + p]));
      for (int v = 0; v < kVectors; ++v) sum[r][v] = Dot(sum[r][v], x, keys[v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      _mm512_storeu_ps(dots + r * kBlockSlots + v * kLanes, sum[r][v]);
    }
  }
}

// 16 lanes, and 8 for batches that leave the others empty.
struct Lanes16 {
  OVQ_BF16_DOTS static __m512 Dot(__m512 sum, __m512i x, int y) {
    return ovq::Dot(sum, x, _mm512_set1_epi32(y));
  }
  OVQ_BF16_DOTS static __m512i Load(const uint32_t* at) { return _mm512_loadu_si512(at); }
  OVQ_BF16_DOTS static __m512 Zero() { return _mm512_setzero_ps(); }
  OVQ_BF16_DOTS static void Store(float* at, __m512 sum) { _mm512_storeu_ps(at, sum); }
};
struct Lanes8 {
  OVQ_BF16_DOTS static __m256 Dot(__m256 sum, __m256i x, int y) {
    return _mm256_dpbf16_ps(sum, reinterpret_cast<__m256bh>(x),
                            reinterpret_cast<__m256bh>(_mm256_set1_epi32(y)));
  }
  OVQ_BF16_DOTS static __m256i Load(const uint32_t* at) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
  }
  OVQ_BF16_DOTS static __m256 Zero() { return _mm256_setzero_ps(); }
  OVQ_BF16_DOTS static void Store(float* at, __m256 sum) { _mm256_storeu_ps(at, sum); }
};

// dots[slot][row]; rows[pair][row]
template <class Lanes>
OVQ_BF16_DOTS void DotValues(const uint32_t* rows, int value_stride, const uint16_t* values,
                             float* dots) {
  const auto stride = static_cast<size_t>(value_stride);
  for (int s = 0; s < kBlockSlots; s += kValueTile) {
    const uint16_t* at = values + static_cast<size_t>(s) * stride;
    decltype(Lanes::Zero()) sum[kValueTile];
    for (auto& vector : sum) vector = Lanes::Zero();
    for (size_t c = 0; c < stride; c += 2) {
      const auto x = Lanes::Load(rows + c / 2 * kLanes);
      for (size_t i = 0; i < kValueTile; ++i) {
        int pair;
        std::memcpy(&pair, at + i * stride + c, sizeof(pair));
        sum[i] = Lanes::Dot(sum[i], x, pair);
      }
    }
    for (int i = 0; i < kValueTile; ++i) Lanes::Store(dots + (s + i) * kLanes, sum[i]);
  }
}

// The same of one row, to dots[slot]; row[pair].
OVQ_BF16_DOTS void DotValuesOfOne(const uint32_t* row, int value_stride, const uint16_t* values,
                                  float* dots) {
  for (int s = 0; s < kBlockSlots; ++s, values += value_stride) {
    __m512 sum = _mm512_setzero_ps();
    for (int c = 0; c < value_stride; c += 2 * kLanes) {
      const __mmask32 open = value_stride - c >= 2 * kLanes ? ~__mmask32{0} : 0xffff;
      sum = Dot(sum, _mm512_maskz_loadu_epi16(open, row + c / 2),
                _mm512_maskz_loadu_epi16(open, values + c));
    }
    dots[s] = _mm512_reduce_add_ps(sum);
  }
}

// to[row][slot] of from[slot][row], four by four.
OVQ_BF16_DOTS void Turn(const float* from, int n_rows, float* to) {
  for (int r = 0; r < n_rows; r += 4) {
    for (int s = 0; s < kBlockSlots; s += 4) {
      __m128 a[4];
      for (int i = 0; i < 4; ++i) a[i] = _mm_loadu_ps(from + (s + i) * kLanes + r);
      _MM_TRANSPOSE4_PS(a[0], a[1], a[2], a[3]);
      for (int i = 0; i < 4; ++i) _mm_storeu_ps(to + (r + i) * kBlockSlots + s, a[i]);
    }
  }
}

// Not inlined: a load of a tile does not tell the compiler what memory it reads, a call does.
#define OVQ_TILES __attribute__((target("amx-tile,amx-bf16"), noinline))
constexpr int kTile = 16;          // rows, and pairs of channels in a row
constexpr int kTileChannels = 32;  // a multiple of which heads must have
constexpr int kLeastTileRows = 3;  // of a batch; fewer are quicker without tiles

// Whether the CPU has tiles of bfloat16 and the system gives them to this process.
bool HasTiles() {
  static const bool has = [] {
    constexpr unsigned kBf16 = 1u << 22, kTiles = 1u << 24, kBoth = kBf16 | kTiles;
    constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kBoth) == kBoth &&
           syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return has;
}

// All tiles are 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t n_rows[16] = {kTile, kTile, kTile, kTile, kTile, kTile, kTile, kTile};
};

// dots[row][64]: 16 rows of pairs by a block [pair][64].
OVQ_TILES void TileKeys(const uint32_t* rows, size_t n_pairs, const uint32_t* block, float* dots) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (size_t p = 0; p < n_pairs; p += kTile, block += kTile * kBlockSlots) {
    _tile_loadd(4, rows + p, n_pairs * sizeof(uint32_t));
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

// As DotValues.
OVQ_TILES void TileValues(const uint32_t* rows, int value_stride, const uint16_t* values,
                          float* dots) {
  const auto stride = static_cast<size_t>(value_stride) * sizeof(uint16_t);
  const size_t tile = static_cast<size_t>(kTile) * static_cast<size_t>(value_stride);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int c = 0; c < value_stride; c += kTileChannels, values += kTileChannels) {
    _tile_loadd(4, rows + c / 2 * kLanes, kLanes * sizeof(uint32_t));
    _tile_loadd(5, values, stride);
    _tile_dpbf16ps(0, 5, 4);
    _tile_loadd(6, values + tile, stride);
    _tile_dpbf16ps(1, 6, 4);
    _tile_loadd(5, values + 2 * tile, stride);
    _tile_dpbf16ps(2, 5, 4);
    _tile_loadd(6, values + 3 * tile, stride);
    _tile_dpbf16ps(3, 6, 4);
  }
  _tile_stored(0, dots, kLanes * sizeof(float));
  _tile_stored(1, dots + kTile * kLanes, kLanes * sizeof(float));
  _tile_stored(2, dots + 2 * kTile * kLanes, kLanes * sizeof(float));
  _tile_stored(3, dots + 3 * kTile * kLanes, kLanes * sizeof(float));
}

OVQ_TILES void BeginTiles() {
  // Static, as compilers take the first bytes for all that is read.
  static constexpr TileConfig kConfig;
  _tile_loadconfig(&kConfig);
}
OVQ_TILES void EndTiles() { _tile_release(); }
#undef OVQ_TILES

OVQ_BF16_DOTS void FillLeast(const LeastDistances& batch) {
  const auto n_rows = static_cast<int>(batch.rows.size());
  const size_t key_pairs = PairsOf(batch.head_dim), value_pairs = PairsOf(batch.value_stride);
  uint32_t* keys = batch.scratch;
  uint32_t* values = keys + kLanes * key_pairs;
  uint32_t* block_keys = values + kLanes * value_pairs;
  float squares[kLanes] = {};
  const bool tiles = n_rows >= kLeastTileRows && batch.head_dim % kTileChannels == 0 &&
                     batch.value_stride % kTileChannels == 0 && HasTiles();
  const bool few = !tiles && n_rows <= kFewRows;
  if (!few) std::fill_n(values, kLanes * value_pairs, 0u);
  if (tiles) std::fill_n(keys, kLanes * key_pairs, 0u);
  for (int r = 0; r < n_rows; ++r) {
    const LeastDistances::Row& row = batch.rows[static_cast<size_t>(r)];
    for (size_t p = 0; p < key_pairs; ++p) {
      keys[static_cast<size_t>(r) * key_pairs + p] =
          PairAt(row.key, static_cast<int>(p), batch.head_dim);
    }
    for (size_t p = 0; p < value_pairs; ++p) {
      values[few ? static_cast<size_t>(r) * value_pairs + p : p * kLanes + static_cast<size_t>(r)] =
          PairAt(row.value, static_cast<int>(p), batch.value_stride);
    }
    squares[r] = SquareOf(row.key, batch.head_dim) +
                 batch.value_scale * SquareOf(row.value, batch.value_stride);
  }
  alignas(64) float of_keys[kLanes * kBlockSlots], of_values[kLanes * kBlockSlots],
      turned[kLanes * kBlockSlots];
  const __m512 scale = _mm512_set1_ps(batch.value_scale), minus_two = _mm512_set1_ps(-2.0f),
               whole = _mm512_set1_ps(1 - kSlack), tiny = _mm512_set1_ps(kTiny),
               infinity = _mm512_set1_ps(std::numeric_limits<float>::infinity());
  if (tiles) BeginTiles();
  for (size_t b = 0; b < batch.blocks.size(); ++b) {
    const CandidateBlock& block = batch.blocks[b];
    PairChannels(static_cast<const uint16_t*>(block.keys), batch.head_dim, block_keys);
    int r = 0;
    if (tiles) {
      TileKeys(keys, key_pairs, block_keys, of_keys);
      r = n_rows;
    }
    for (; r + kRowTile <= n_rows; r += kRowTile) {
      DotKeys<kRowTile>(keys + static_cast<size_t>(r) * key_pairs, key_pairs, block_keys,
                        of_keys + r * kBlockSlots);
    }
    for (; r < n_rows; ++r) {
      DotKeys<1>(keys + static_cast<size_t>(r) * key_pairs, key_pairs, block_keys,
                 of_keys + r * kBlockSlots);
    }
    const auto* block_values = static_cast<const uint16_t*>(block.values);
    if (few) {
      for (r = 0; r < n_rows; ++r) {
        DotValuesOfOne(values + static_cast<size_t>(r) * value_pairs, batch.value_stride,
                       block_values, turned + r * kBlockSlots);
      }
    } else {
      const auto dot = tiles                  ? TileValues
                       : n_rows <= kLanes / 2 ? DotValues<Lanes8>
                                              : DotValues<Lanes16>;
      dot(values, batch.value_stride, block_values, of_values);
      Turn(of_values, n_rows, turned);
    }
    for (int s = 0; s < kBlockSlots; s += kLanes) {
      const size_t at = b * kBlockSlots + static_cast<size_t>(s);
      const __m512 others = _mm512_loadu_ps(batch.squares + at);
      for (r = 0; r < n_rows; ++r) {
        const int from = r * kBlockSlots + s;
        const __m512 dot =
            _mm512_fmadd_ps(scale, _mm512_loadu_ps(turned + from), _mm512_loadu_ps(of_keys + from));
        const __m512 both = _mm512_add_ps(others, _mm512_set1_ps(squares[r]));
        const __m512 least =
            _mm512_sub_ps(_mm512_fmadd_ps(minus_two, dot, _mm512_mul_ps(both, whole)), tiny);
        // What is no finite number is no bound either.
        const __mmask16 known = _mm512_cmp_ps_mask(least, _mm512_setzero_ps(), _CMP_GT_OQ) &
                                _mm512_cmp_ps_mask(least, infinity, _CMP_LT_OQ);
        _mm512_storeu_ps(batch.rows[static_cast<size_t>(r)].least + at,
                         _mm512_maskz_mov_ps(known, least));
      }
    }
  }
  if (tiles) EndTiles();
}

OVQ_BF16_DOTS void MoveLeast(const float* of_y, float share, float apart, std::span<float> of_x) {
  // Of sums of these three: what their rounding stays below.
  constexpr float kRounding = 1e-6f;
  const __m512 s = _mm512_set1_ps(share), rest = _mm512_set1_ps(1 - share),
               less = _mm512_set1_ps(share * (1 - share) * apart + kRounding * apart),
               rounding = _mm512_set1_ps(kRounding);
  for (size_t i = 0; i < of_x.size(); i += kLanes) {
    const __m512 x = _mm512_loadu_ps(of_x.data() + i), y = _mm512_loadu_ps(of_y + i);
    const __m512 whole = _mm512_sub_ps(_mm512_fmadd_ps(rest, x, _mm512_mul_ps(s, y)), less);
    const __m512 least = _mm512_fnmadd_ps(rounding, _mm512_add_ps(x, y), whole);
    const __mmask16 known = _mm512_cmp_ps_mask(least, _mm512_setzero_ps(), _CMP_GT_OQ);
    _mm512_storeu_ps(of_x.data() + i, _mm512_maskz_mov_ps(known, least));
  }
}
#undef OVQ_BF16_DOTS
#endif

}  // namespace

bool HasLeastDistances() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0;
#else
  return false;
#endif
}

size_t LeastDistancesScratch(int head_dim, int value_stride) {
  return kLeastTogether * (PairsOf(head_dim) + PairsOf(value_stride)) +
         PairsOf(head_dim) * kBlockSlots;
}

void LeastDistancesCpu([[maybe_unused]] const LeastDistances& batch) {
#if defined(__x86_64__)
  FillLeast(batch);
#endif
}

void MoveLeastDistancesCpu([[maybe_unused]] const float* of_y, [[maybe_unused]] float share,
                           [[maybe_unused]] float apart, [[maybe_unused]] std::span<float> of_x) {
#if defined(__x86_64__)
  MoveLeast(of_y, share, apart, of_x);
#endif
}

}  // namespace ovq
