// x . y of packed candidates with AVX-512 BF16: products of channel pairs, summed in float32 in the
// slot's lane. With AMX, tiles of 16 by 16 compute the same products from the same arrays.
#include <algorithm>
#include <bit>

#include "kernels/common/instruction_sets.h"
#include "kernels/mixers/closest_pair/bf16_dots.h"
#include "kernels/mixers/common/block_attention.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace ovq::kernels {

#if defined(__x86_64__)
// GCC warns about operands that its own intrinsics leave uninitialised on purpose.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#define OVQ_BF16_DOTS __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

namespace {

constexpr int kLanes = 16;
constexpr int kVectors = kBlockSlots / kLanes;
constexpr int kRowTile = 4;

uint32_t PairAt(const float* x, int pair, int n) {
  const auto bits = [&](int c) { return c < n ? std::bit_cast<uint32_t>(x[c]) >> 16 : 0u; };
  return bits(2 * pair) | bits(2 * pair + 1) << 16;
}

OVQ_BF16_DOTS inline __m512 Dot(__m512 sum, __m512i x, __m512i y) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(y));
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

// Packs a query, two channels a word.
void PackQuery(const PackedCandidates& packed, const LowerBoundQuery& query, uint32_t* to) {
  for (int p = 0; 2 * p < packed.head_dim; ++p) *to++ = PairAt(query.key, p, packed.head_dim);
  for (int p = 0; 2 * p < packed.value_stride; ++p) {
    *to++ = PairAt(query.value, p, packed.value_stride);
  }
}

}  // namespace

bool HasBf16Dots() {
  return MaxInstructionSet() >= InstructionSet::kAvx512Bf16 &&
         __builtin_cpu_supports("avx512bf16") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0;
}

Bf16Dots::Bf16Dots(const PackedCandidates& packed, std::span<const LowerBoundQuery> queries,
                   uint32_t* scratch)
    : n_rows_(static_cast<int>(queries.size())),
      key_pairs_(PackedPairs(packed.head_dim, 0)),
      value_pairs_(PackedPairs(0, packed.value_stride)),
      value_scale_(packed.value_scale),
      rows_(scratch),
      tiles_(n_rows_ >= kMinTileRows && packed.head_dim % kTileChannels == 0 &&
             packed.value_stride % kTileChannels == 0 && HasTiles()) {
  const size_t n_pairs = key_pairs_ + value_pairs_;
  if (tiles_) std::fill_n(scratch, kMaxLowerBoundQueries * n_pairs, 0u);
  for (size_t r = 0; r < queries.size(); ++r) PackQuery(packed, queries[r], scratch + r * n_pairs);
  if (tiles_) BeginTiles();
}

Bf16Dots::~Bf16Dots() {
  if (tiles_) EndTiles();
}

void Bf16Dots::Multiply(const uint32_t* block, float* dots) const {
  const size_t n_pairs = key_pairs_ + value_pairs_;
  if (!tiles_) return DotAllRows(rows_, n_rows_, key_pairs_, n_pairs, block, value_scale_, dots);
  alignas(64) float of_values[kMaxLowerBoundQueries * kBlockSlots];
  DotTiles(rows_, n_pairs, key_pairs_, block, dots);
  DotTiles(rows_ + key_pairs_, n_pairs, value_pairs_, block + key_pairs_ * kBlockSlots, of_values);
  AddScaled(of_values, value_scale_, n_rows_ * kBlockSlots, dots);
}
#undef OVQ_BF16_DOTS

#else

bool HasBf16Dots() { return false; }
Bf16Dots::Bf16Dots(const PackedCandidates&, std::span<const LowerBoundQuery>, uint32_t*) {}
Bf16Dots::~Bf16Dots() = default;
void Bf16Dots::Multiply(const uint32_t*, float*) const {}

#endif

}  // namespace ovq::kernels
