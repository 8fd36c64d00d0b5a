// FolderReport: the content of a model folder and all of its problems, found by the checks of a
// server's start. Weights are mapped but not read.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "model/cache_policy.h"
#include "model/config.h"
#include "model/inspect/options.h"

namespace ovq::model {

struct FolderReport {
  // Size of a session after `position` tokens under `cache_policy`.
  struct Session {
    CachePolicy cache_policy;
    int64_t position, slot_cap, live_slots;  // 0 without layers that have a slot cap
    size_t state_bytes;                      // live bytes, as in a snapshot
    size_t memory_bytes;                     // whole pages of host memory
  };

  std::string folder;  // without trailing slashes
  ModelConfig config;  // as far as it could be read
  // Tensors and parameters that a server reads, and tensors that it skips by name.
  int64_t n_tensors = 0, parameters = 0, n_skipped = 0;
  size_t weight_bytes = 0, skipped_bytes = 0;
  std::map<std::string, int64_t> tensor_types;  // number of tensors by type name
  kernels::DType state_dtype = kernels::DType::kF32;
  // Sessions under the config's own policy and, if they grow without bound, under closest pairs
  // too. Empty if a layer is invalid.
  std::vector<Session> sessions;
  std::string verdict;         // how a server would serve it: exactly, bounded, or not
  int64_t tokenizer_size = 0;  // 0 without a tokenizer
  std::map<int32_t, std::string> special_tokens;
  std::string chat_template;  // name of the template's file; empty: none
  std::vector<std::string> notes;
  // "file: field or tensor: what was expected", file names without the folder.
  std::vector<std::string> problems;
};

FolderReport InspectFolder(const InspectOptions& options);

}  // namespace ovq::model
