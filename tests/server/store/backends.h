// Session stores as the conformance test opens, damages and breaks them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "server/store/session_store.h"

namespace ovq::store::test {

// An empty place where sessions are stored; servers open stores on it.
class Backend {
 public:
  virtual ~Backend() = default;
  // Opens a server's store. It waits for so long for a session that another server has.
  virtual std::unique_ptr<SessionStore> Open(absl::Duration ownership_timeout) = 0;
  // Until it is called with false, no append of a store succeeds.
  virtual void BreakAppends(const std::string& id, bool broken) = 0;
  // Changes the bytes that the place holds of a session.
  enum class Part { kJournal, kSnapshot, kText };
  using Change = std::function<void(std::string& bytes)>;
  virtual void ChangeBytes(const std::string& id, Part part, const Change& change) = 0;
  // Loses the next so many acknowledgements of writes on their way to a store, if they have a way.
  virtual void LoseAcknowledgements(int count) = 0;
  // Sets the place's wall clock on by `time`, or back, as its stored times show it.
  virtual void JumpClock(absl::Duration time) = 0;
};

struct BackendCase {
  std::string name;
  // Returns null, and why in the second member, where this machine cannot have one.
  std::function<std::pair<std::unique_ptr<Backend>, std::string>()> make;
};
std::vector<BackendCase> Backends();

}  // namespace ovq::store::test
