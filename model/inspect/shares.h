// Measured shares of a session's slots: the layers or heads that lose least get the fewest.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "base/json.h"

namespace ovq::model {

struct ShareOptions {
  // UTF-8 text, or NAME.jsonl with a line {"tokens": [ids], "scored": [indices]} a sequence.
  std::string file;
  std::string memory = "closest-pair";  // a cache policy with slots
  int64_t slots = 256;                  // the slot cap that is shared out
  int64_t tokens = 4096;                // in a sequence of a text
  int64_t sequences = 2;                // measured on; as many others are tried
  bool by_head = false;                 // key/value heads have shares of their own
  bool write = false;                   // into config.json
  int threads = 0;                      // 0: all cores
};

// Bounds one layer after another to a ladder of shares, with all others as good as exact, chooses
// the shares, by ShareOptions::by_head changes those of heads from there (ImproveShares), and tries
// them on other sequences. Closest pairs and KeyDiff are also tried with the newest half of the
// slots untouched (ovq.recent_tokens), then closest pairs and the paper's rule with ovq.variance,
// then closest pairs with that variance in distances (ovq.merge_variance) and with lighter and
// heavier values (ovq.value_weight): with equal shares and again with the chosen ones, each kept
// where it loses less. Calls `say` with lines of the report as they are known; returns the report
// as an object. With ShareOptions::write, config.json is replaced if the shares lose less than what
// it says.
//
// InvalidArgument names the flag or the file's line; errors of the model as those of Load.
absl::StatusOr<nlohmann::ordered_json> MeasureShares(
    const std::string& folder, const ShareOptions& options,
    const std::function<void(const std::string& line)>& say);

}  // namespace ovq::model
