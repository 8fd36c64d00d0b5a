// The layout of a whole session: every layer's fixed part, then one growing group per growth law
// (DESIGN 2.1). Sizes follow from the position and the cap in closed form.
//
//   [fixed: layer 0 | layer 1 | ...][group 0: block 0 | block 1 | ...][group 1: ...]
//   a block of a group = that group's layers one after another, each MixerState::block.bytes()
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/mixers/mixer.h"

namespace ovq {

// Server-wide limits that size the virtual address ranges.
struct StateLimits {
  int64_t max_centroids = 65536;           // the largest cap a session may ask for
  int64_t max_unbounded_tokens = 1 << 20;  // positions a session with kTokens layers may reach
};

// Live bytes of one session: ranges relative to the session's base.
struct StateExtent {
  size_t offset;
  size_t bytes;
};

class StateLayout {
 public:
  StateLayout(const std::vector<MixerState>& layers, const StateLimits& limits);

  const LayerState& layer(int i) const { return layers_[i]; }
  const StateLimits& limits() const { return limits_; }

  // Physical bytes a session holds after `position` tokens with dictionary cap N: whole pages of
  // the fixed part plus every block that has a live slot. Equal to the pool's committed bytes.
  size_t bytes_at(int64_t position, int64_t max_centroids) const;
  // The most the session will ever hold (for kTokens layers: at limits().max_unbounded_tokens).
  size_t bytes_cap(int64_t max_centroids) const;
  // The committed ranges behind bytes_at, in address order; each a multiple of the page size.
  std::vector<StateExtent> extents_at(int64_t position, int64_t max_centroids) const;
  size_t virtual_bytes() const { return virtual_bytes_; }  // address range per session
  bool has_unbounded() const;                              // some layer is kTokens
  bool has_centroids() const;
  int64_t LiveCentroids(int64_t position, int64_t max_centroids) const;  // 0 without kCentroids
  // Hash of every field's name, type, shape and offset: equal layouts only.
  uint64_t fingerprint() const { return fingerprint_; }

  static constexpr size_t kPageBytes = 4096;

 private:
  struct Group {
    Growth growth;
    size_t offset = 0;       // from the session's base, page-aligned
    size_t block_bytes = 0;  // all its layers, rounded up to a page
  };
  std::vector<LayerState> layers_;
  std::vector<Group> groups_;
  StateLimits limits_;
  size_t fixed_bytes_ = 0;  // rounded up to a page
  size_t virtual_bytes_ = 0;
  uint64_t fingerprint_ = 0;
};

}  // namespace ovq
