// Session stores as the conformance test opens, damages and breaks them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/store/session_store.h"

namespace ovq::store::test {

// An empty place where sessions are stored; servers open stores on it.
class Backend {
 public:
  virtual ~Backend() = default;
  // Opens a server's store. Another server's sessions are waited for a tenth of a second.
  virtual std::unique_ptr<SessionStore> Open() = 0;
  // Until it is called with false, no append of a store succeeds.
  virtual void BreakAppends(const std::string& id, bool broken) = 0;
  // Changes the bytes that the place holds of a session.
  enum class Part { kJournal, kSnapshot, kText };
  using Change = std::function<void(std::string& bytes)>;
  virtual void ChangeBytes(const std::string& id, Part part, const Change& change) = 0;
};

struct BackendCase {
  std::string name;
  // Returns null, and why in the second member, where this machine cannot have one.
  std::function<std::pair<std::unique_ptr<Backend>, std::string>()> make;
};
std::vector<BackendCase> Backends();

}  // namespace ovq::store::test
