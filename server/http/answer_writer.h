// What an answer of the engine's looks like to a client over HTTP.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "server/engine/engine_api.h"

namespace ovq {

// One answer, on one thread at a time.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  virtual bool streams() const = 0;
  // Of a stream: appends what goes out for it. Else it is kept.
  virtual void Add(const StreamEvent& event, std::string& out) = 0;
  // Of a stream: appends what ends it; an error has begun after all went well. Else, of an answer
  // that ended well: all of it.
  virtual void End(const absl::Status& status, std::string& out) = 0;
};

// One event of a server: "data: ...".
inline void AppendEvent(std::string_view data, std::string& out) {
  out += "data: ";
  out += data;
  out += "\n\n";
}

}  // namespace ovq
