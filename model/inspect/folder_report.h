// What a model folder holds and everything that is wrong with it, by the checks of a server's
// start. Weights are mapped, none is read.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/inspect/options.h"

namespace ovq {

struct FolderReport {
  // A session after `position` tokens, where layers are read through `cache_policy`.
  struct Session {
    CachePolicy cache_policy;
    int64_t position, slot_cap, live_slots;  // slots are 0 without layers that have a cap
    size_t state_bytes;                      // what is in use, as a snapshot holds it
    size_t memory_bytes;                     // the same in whole pages of a CPU
  };

  std::string folder;  // without slashes at its end
  ModelConfig config;  // as much of it as could be read
  // What a server reads of the weights, and what it skips by name.
  int64_t n_tensors = 0, parameters = 0, n_skipped = 0;
  size_t weight_bytes = 0, skipped_bytes = 0;
  std::map<std::string, int64_t> tensor_types;  // tensors by the name of their type
  DType state_dtype = DType::kF32;
  // As config.json says and, where sessions grow without end by that, through closest pairs as
  // well. None where a layer is wrong.
  std::vector<Session> sessions;
  std::string verdict;         // how a server would serve it: exactly, bounded, or not
  int64_t tokenizer_size = 0;  // 0 without a tokenizer
  std::map<int32_t, std::string> special_tokens;
  std::string chat_template;  // the file that has it; empty without one
  std::vector<std::string> notes;
  // "file: field or tensor: what was expected"; files without their folder.
  std::vector<std::string> problems;
};

FolderReport InspectFolder(const InspectOptions& options);

}  // namespace ovq
