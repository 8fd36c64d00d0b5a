// The runner's calls over gRPC's callback interface: no thread waits for a stream.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "clients/load/options.h"
#include "clients/load/result.h"
#include "clients/load/runner.h"

namespace ovq::load {

// Any thread. All calls must have ended before it goes.
class GrpcCalls {
 public:
  // Reads the credentials' files. InvalidArgument names the flag.
  static absl::StatusOr<std::unique_ptr<GrpcCalls>> Make(const Options& options);
  ~GrpcCalls();

  absl::StatusOr<ModelFacts> GetModel();                                    // blocks
  absl::StatusOr<std::vector<uint32_t>> Tokenize(const std::string& text);  // blocks

  Calls calls();
  int64_t tokens_received() const;  // of all calls so far

 private:
  class Impl;
  explicit GrpcCalls(std::shared_ptr<Impl> impl);
  const std::shared_ptr<Impl> impl_;
};

}  // namespace ovq::load
