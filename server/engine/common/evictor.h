// The interface through which Admission makes room where the server is full.
#pragma once

#include <cstddef>
#include <string>

namespace ovq::engine {

// Engine thread only.
class Evictor {
 public:
  virtual ~Evictor() = default;
  // Swaps idle states out, least recently used first, until `bytes` are free. Returns whether they
  // are. False where states cannot be swapped out.
  virtual bool EvictIdleStates(size_t bytes) = 0;
  // Takes something from a client: its idle session that was used least recently (table: so that
  // there is one session less; otherwise its state may be swapped out), or if it has none and
  // `running` is set the call of it that began last. False if there is nothing to take.
  virtual bool EvictFrom(const std::string& client, bool table, bool running) = 0;
};

}  // namespace ovq::engine
