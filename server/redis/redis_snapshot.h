// Defines RedisSnapshot, a session's snapshot as values of Redis.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/redis/redis_connection.h"
#include "server/store/session_store.h"

namespace ovq::redis {

inline constexpr size_t kPartBytes = size_t{4} << 20;  // of every part but the last

// Parts that another snapshot replaces stay for a minute.
class RedisSnapshot final : public store::SnapshotReader {
 public:
  using Runner = std::function<absl::StatusOr<Reply>(Command)>;

  RedisSnapshot(std::string prefix, uint64_t bytes, Runner run)
      : prefix_(std::move(prefix)), bytes_(bytes), run_(std::move(run)) {}

  uint64_t bytes() const override { return bytes_; }
  uint64_t left() const override { return bytes_ - read_; }
  absl::Status Read(std::span<char> into) override {
    while (!into.empty()) {
      if (at_ == part_.size()) RETURN_IF_ERROR(ReadPart());
      const size_t n = std::min(into.size(), part_.size() - at_);
      std::copy_n(part_.data() + at_, n, into.data());
      at_ += n;
      read_ += n;
      into = into.subspan(n);
    }
    return absl::OkStatus();
  }

 private:
  absl::Status ReadPart() {
    const std::string key = absl::StrCat(prefix_, ":", ++parts_);
    ASSIGN_OR_RETURN(Reply reply, run_({"GET", key}));
    if (reply.text.empty()) {
      return absl::DataLossError(absl::StrCat(key, ": ends at byte ", read_));
    }
    part_ = std::move(reply.text);
    at_ = 0;
    return absl::OkStatus();
  }

  const std::string prefix_;
  const uint64_t bytes_;
  const Runner run_;
  std::string part_ = {};  // the last part that was read
  size_t at_ = 0;          // in it
  uint64_t parts_ = 0, read_ = 0;
};

}  // namespace ovq::redis
